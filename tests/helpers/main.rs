//! The helpers for applications in clients/ and cli/, each through all scenarios of clients/scenarios.md, on real
//! servers and with real client libraries as they come.
//!
//! A scenario is written once. It speaks to an agent: a small program in the helper's language, which uses the helper
//! as an application does. [`agent`] has what they say to each other.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod agent;
mod fake;
mod language;
mod own;
mod packages;
mod run;
mod scenarios;
mod stage;
mod times;
mod versions;

/// A module for each language, with a test for each scenario. The servers in memory have those that need no wire.
macro_rules! in_each_language {
    ($($language:ident = $variant:ident),+; in memory: $($fake:ident = $of:ident),*; $wired:tt $wireless:tt)
    => {
        $(mod $language {
            in_each_language!(@tests $language $variant scenario $wired);
            in_each_language!(@tests $language $variant scenario $wireless);
        })+
        $(mod $fake {
            in_each_language!(@tests $fake $of in_memory $wireless);
        })*
    };
    (@tests $module:ident $language:ident $play:ident { $($file:ident: $($name:ident),+;)+ }) => {
        $($(
            #[test]
            fn $name() {
                let name = concat!(stringify!($module), "::", stringify!($name));
                let scenario = crate::scenarios::$file::$name;
                crate::stage::Play::$play(crate::language::Language::$language, name, scenario);
            }
        )+)+
    };
}

in_each_language! {
    python = Python, python_asyncio = PythonAsyncio, node_redis = NodeRedis, ioredis = Ioredis,
    go_redis = GoRedis, rueidis = Rueidis, redigo = Redigo, rust = Rust, rust_tokio = RustTokio,
    lettuce = Lettuce, jedis = Jedis;
    in memory: fake_python = Python, fake_python_asyncio = PythonAsyncio, fake_node = NodeRedis,
        fake_go = GoRedis, fake_java = Lettuce, fake_rust = Rust, fake_rust_tokio = RustTokio;
    {
        waiting:
            a_wait_outlives_its_connection,
            an_early_null_is_no_reason_to_ask_at_once,
            a_grace_is_waited_for,
            an_error_that_does_not_pass_is_raised_when_the_wait_is_over,
            a_server_that_hangs_does_not_prolong_a_wait;
        notified:
            a_wait_by_notify_is_told_when_it_is_its_turn,
            a_wait_by_notify_that_is_over_or_cancelled_leaves_no_place,
            a_subscription_that_is_killed_is_there_again,
            a_message_that_is_lost_costs_no_wake_up,
            messages_that_are_forged_or_doubled_take_no_lock,
            without_the_right_to_publish_or_subscribe_a_wait_asks_by_itself,
            waits_by_notify_outlive_their_connections,
            a_process_that_is_told_and_killed_costs_others_a_short_time,
            five_hundred_waits_have_two_connections,
            a_wait_by_notify_goes_with_a_slot_that_moves;
        cancelling:
            a_wait_that_is_cancelled_while_the_server_hangs_locks_nobody_out;
        losing:
            a_process_that_sleeps_beyond_its_lease_is_told_once,
            a_lock_is_lost_when_its_time_is_over_and_no_later_if_the_server_is_dead,
            a_lock_that_a_server_forgot_is_lost_at_the_next_renewal,
            a_network_that_hangs_for_less_than_the_lease_loses_nothing,
            a_release_whose_reply_is_cut_off_is_no_loss;
        moving:
            a_wait_goes_with_a_slot_that_moves,
            a_primary_of_a_cluster_that_dies_is_left_for_its_replica,
            a_failover_and_its_grace_are_waited_through,
            a_held_lock_outlasts_a_failover;
        leaving_nothing:
            a_thousand_locks_leave_no_connection_and_no_task,
            waits_leave_no_connection_and_no_task;
    }
    {
        taking:
            a_lock_is_taken_and_given_back,
            what_was_asked_for_is_what_the_server_has,
            a_guard_of_a_shared_lock_is_refused_and_the_lock_stays,
            several_keys_are_one_lock,
            a_key_twice_under_one_owner_is_refused,
            two_tasks_of_one_process_do_not_share,
            a_semaphore_of_3_with_10_tasks_is_never_above_3,
            a_cycle_of_nested_locks_is_a_deadlock,
            a_lock_within_another_has_its_owner;
        waiting:
            a_wait_outlasts_the_clients_timeout_in_its_place,
            a_wait_that_is_over_leaves_no_place,
            a_wait_of_zero_tries_once;
        cancelling:
            a_wait_that_is_cancelled_around_the_hand_off_locks_nobody_out,
            a_request_that_is_cancelled_at_once_locks_nobody_out,
            a_release_that_is_cancelled_still_gives_back;
        losing:
            a_lock_is_renewed_over_ten_leases,
            a_break_is_told_within_a_renewal,
            a_key_that_is_overwritten_is_a_loss,
            a_release_of_a_lost_lock_says_so;
    }
}
