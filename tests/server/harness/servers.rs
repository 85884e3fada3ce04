//! Which tests some server cannot run, and why: one table. Such a test asks [`not_run`] and leaves;
//! docs/compatibility.md has the same table for the servers of `make test-servers`. Both `make test` and that count
//! such a test as not run, and print why.

use std::process::Command;
use std::sync::OnceLock;
use testbed::say_not_run;

/// A test, the servers that cannot run it, and what they lack.
struct Row {
    test: &'static str,
    cannot: fn(Kind) -> bool,
    reason: &'static str,
}

const TABLE: [Row; 7] = [
    Row {
        test: "commands::fences::fences_rise_over_a_slot_that_is_moved_at_once_to_a_node_whose_clock_is_behind",
        cannot: |server| server.is_redis_below(8, 4) || server.is_valkey_below(9, 0),
        reason: "it does not move slots at once",
    },
    Row {
        test: "persistence::restarts::an_rdb_of_a_server_that_never_had_a_lock_loads_without_the_module",
        cannot: |server| server.is_redis_below(7, 2),
        reason: "it writes the module's mark into every RDB",
    },
    Row {
        test: "replication::replicas::a_replica_whose_wall_clock_is_off_restarts_from_its_own_file_with_every_lease",
        cannot: |server| server.is_valkey_from(9, 1),
        reason: "with aof-use-rdb-preamble it takes its primary's RDB for its own file, and that goes by the primary's clock",
    },
    Row {
        test: "cluster::sessions::a_hold_whose_slot_was_moved_at_once_lives_on_by_lease",
        cannot: |server| server.is_redis_below(8, 4) || server.is_valkey_below(9, 0),
        reason: "it does not move slots at once",
    },
    Row {
        test: "operators::tools::the_tools_that_look_for_big_keys_count_locks_and_go_on",
        cannot: |server| server.valkey || server.is_redis_below(8, 0),
        reason: "its client has no --keystats",
    },
    Row {
        test: "cluster::waiting::a_waiter_for_a_key_whose_slot_is_moved_at_once_is_redirected_to_it",
        cannot: |server| server.is_redis_below(8, 4) || server.is_valkey_below(9, 0),
        reason: "it does not move slots at once",
    },
    Row {
        test: "waiting::roles::a_client_that_follows_redirections_is_sent_away_like_all_others",
        cannot: |server| !server.valkey,
        reason: "it does not redirect clients",
    },
];

/// What a server is, and of which version: that is all that decides what it can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    valkey: bool,
    version: (u32, u32),
}

impl Kind {
    /// From `Redis 7.0.15` and the like.
    fn parse(text: &str) -> Option<Kind> {
        let (name, version) = text.split_once(' ')?;
        let mut numbers = version.split('.').map(str::parse);
        Some(Kind { valkey: name == "Valkey", version: (numbers.next()?.ok()?, numbers.next()?.ok()?) })
    }

    /// The one that these tests run on.
    fn here() -> Kind {
        static HERE: OnceLock<Kind> = OnceLock::new();
        *HERE.get_or_init(|| {
            let program = std::env::var_os("REDIS_LOCK_SERVER").unwrap_or_else(|| "redis-server".into());
            // Redis server v=7.0.15 sha=...
            let output = Command::new(program).arg("--version").output().expect("the server can be started");
            let text = String::from_utf8(output.stdout).unwrap().replace(" server v=", " ");
            Kind::parse(text.split(" sha=").next().unwrap()).unwrap_or_else(|| panic!("no version: {text}"))
        })
    }

    fn is_redis_below(self, major: u32, minor: u32) -> bool {
        !self.valkey && self.version < (major, minor)
    }

    fn is_valkey_below(self, major: u32, minor: u32) -> bool {
        self.valkey && self.version < (major, minor)
    }

    fn is_valkey_from(self, major: u32, minor: u32) -> bool {
        self.valkey && self.version >= (major, minor)
    }
}

/// Whether this test, or the part of it that asks, is to be left out here. With `REDIS_LOCK_TRY_ALL` all are run: one
/// that passes then has no place in the table.
pub(crate) fn not_run(test: &str) -> bool {
    let row = TABLE.iter().find(|row| row.test == test).expect("only tests in the table may be left out");
    let left_out = (row.cannot)(Kind::here()) && std::env::var_os("REDIS_LOCK_TRY_ALL").is_none();
    if left_out {
        say_not_run(test, row.reason);
    }
    left_out
}

/// Whether MEMORY USAGE leaves out, for values of modules, the allocation that has the key's name: 20 bytes and the
/// name, in steps of 16.
pub(crate) fn memory_usage_leaves_out_names() -> bool {
    Kind::here().is_valkey_below(9, 0)
}

/// Whether a connection that has subscribed to a channel may be made to wait: never on Valkey.
pub(crate) fn subscribers_can_wait() -> bool {
    !Kind::here().valkey
}

/// Whether ACL LOAD closes the clients of deleted users within the command, as on Valkey alone.
pub(crate) fn acl_load_closes_at_once() -> bool {
    Kind::here().valkey
}

#[test]
fn the_page_of_servers_lists_them_and_what_they_cannot_run() {
    // What could go wrong: a test that some server has never run, unnoticed.
    let page = include_str!("../../../docs/compatibility.md");
    let script = include_str!("../../../tools/servers.sh");
    let section = page.split_once("\n## Tested servers\n").unwrap().1.split("\n## ").next().unwrap();
    let rows = |is_wanted: fn(&str) -> bool| -> Vec<Vec<&str>> {
        let wanted = section.lines().filter(|line| is_wanted(line));
        wanted.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
    };
    let shown = rows(|line| line.starts_with("| Redis ") || line.starts_with("| Valkey "));
    let not_run = rows(|line| line.starts_with("| `"));
    let brought: Vec<(&str, &str)> = script
        .split_once("\nservers=(\n")
        .unwrap()
        .1
        .lines()
        .map_while(|line| line.trim().strip_prefix('"'))
        .map(|line| {
            let mut words = line.split_whitespace();
            (words.next().unwrap(), words.next().unwrap())
        })
        .collect();
    assert_eq!(shown.len(), brought.len());
    for (row, (family, suite)) in shown.iter().zip(brought) {
        let [server, from, passed] = row[..] else { panic!("{row:?}") };
        assert!(server.to_lowercase().starts_with(family) && from.contains(suite), "{server} from {from}");
        let kind = Kind::parse(server).unwrap();
        let cannot = TABLE.iter().filter(|row| (row.cannot)(kind)).count();
        let count = if cannot == 0 { "all".to_owned() } else { format!("all but {cannot}") };
        assert_eq!(passed, count, "{server}");
    }
    let mut expected = Vec::new();
    for row in &TABLE {
        let servers = shown.iter().map(|cells| cells[0]).filter(|server| (row.cannot)(Kind::parse(server).unwrap()));
        let servers: Vec<&str> = servers.collect();
        if !servers.is_empty() {
            expected.push(vec![format!("`{}`", row.test), servers.join(", "), row.reason.to_owned()]);
        }
    }
    assert_eq!(not_run, expected);
}
