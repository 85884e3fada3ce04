//! docs/guide/clients.md, held against real client libraries and real servers: each example keeps its place in the
//! queue and gives the lock back, and each client does by default what the table says. And the programs of the guide
//! that need a framework or a store.
//!
//! A library that the machine lacks counts as not run. `tools/install.sh client-libraries` brings them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod examples;
mod library;
mod page;
mod program;
mod programs;
mod redis_rs;
mod traps;

use library::Library::Jedis;

/// For each client of the page that can be run here: what its examples do, and what it does by default.
macro_rules! for_each_client {
    ($($name:ident = $variant:ident),+ $(,)?) => {
        $(mod $name {
            use crate::library::Library::$variant;
            use crate::{examples, traps};

            #[test]
            fn the_example_waits_in_its_place_and_gives_the_lock_back() {
                let test = concat!(stringify!($name), "::the_example_waits_in_its_place_and_gives_the_lock_back");
                if $variant.is_here(test) {
                    examples::check($variant);
                }
            }

            #[test]
            fn a_wrong_example_is_found_out() {
                let test = concat!(stringify!($name), "::a_wrong_example_is_found_out");
                if $variant.is_here(test) {
                    examples::check_wrong_ones($variant);
                }
            }

            #[test]
            fn the_client_does_by_default_what_the_table_says() {
                let test = concat!(stringify!($name), "::the_client_does_by_default_what_the_table_says");
                if $variant.is_here(test) {
                    traps::check($variant, test);
                }
            }
        })+
        /// All of them.
        const TESTED: &[library::Library] = &[$(library::Library::$variant),+];
    };
}

for_each_client! {
    redis_py = RedisPy,
    redis_py_asyncio = RedisPyAsyncio,
    valkey_py = ValkeyPy,
    node_redis = NodeRedis,
    ioredis = Ioredis,
    iovalkey = Iovalkey,
    redis_rs_blocking = RedisRs,
    redis_rs_tasks = RedisRsAsync,
    redigo = Redigo,
    go_redis = GoRedis,
    hiredis = Hiredis,
    phpredis = Phpredis,
    predis = Predis,
    redis_rb = RedisRb,
    glide_python = GlidePython,
    glide_python_sync = GlidePythonSync,
    glide_node = GlideNode,
}

/// What this one does by default the page has from its sources.
mod jedis {
    use crate::examples;
    use crate::library::Library::Jedis;

    #[test]
    fn the_example_waits_in_its_place_and_gives_the_lock_back() {
        if Jedis.is_here("jedis::the_example_waits_in_its_place_and_gives_the_lock_back") {
            examples::check(Jedis);
        }
    }

    #[test]
    fn a_wrong_example_is_found_out() {
        if Jedis.is_here("jedis::a_wrong_example_is_found_out") {
            examples::check_wrong_ones(Jedis);
        }
    }
}

#[test]
fn every_client_of_the_page_is_tested_or_said_not_to_be() {
    // What could go wrong: an example that nothing runs, and a reader who believes that all are.
    for section in page::sections() {
        let tested = TESTED.iter().chain([&Jedis]).any(|library| library.heading() == section.heading);
        assert_eq!(!tested, section.text.contains("\n**Not run.**"), "{}", section.heading);
        assert!(!tested || section.blocks().next().is_some(), "{} has no example", section.heading);
    }
    for library in TESTED {
        assert!(page::row(library.row()).is_some(), "no row for {}", library.row());
    }
}
