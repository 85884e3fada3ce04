//! One of the two processes is stopped, or the command is; and goes on.

use crate::harness::{Folder, is_held, queued, start, taken};
use crate::process::{lives, pid, state};
use rustix::process::kill_process;
use testbed::{Proxy, Server, Signal, wait_for};

#[test]
fn when_the_keeper_is_stopped_the_command_is_ended_before_the_lease_is_over() {
    let server = Server::new();
    let folder = Folder::new();
    let run = folder.beating(server.port(), &["-t", "2s", "-k", "500ms"], &folder.stubborn());
    let keeper = run.keeper();
    testbed::send(keeper, Signal::STOP);
    folder.assert_over(server.port());
    assert_eq!(folder.line("told"), "told");
    kill_process(keeper, Signal::CONT).unwrap();
    assert_eq!(run.end().code, Some(76));
}

#[test]
fn a_keeper_that_was_stopped_for_a_moment_renews_again() {
    let server = Server::new();
    let folder = Folder::new();
    let run = folder.beating(server.port(), &["-t", "9s"], &folder.heartbeat(":"));
    let keeper = run.keeper();
    let mut conn = server.connect();
    for _ in 0..2 {
        testbed::send(keeper, Signal::STOP);
        folder.wait_beats();
        let extended = conn.info_number("lock", "lock_extended");
        kill_process(keeper, Signal::CONT).unwrap();
        wait_for("a renewal", || conn.info_number("lock", "lock_extended") > extended);
    }
    run.signal(Signal::INT);
    assert_eq!(run.end().code, Some(130));
}

#[test]
fn a_keeper_that_slept_through_its_hold_stands_in_the_queue_again() {
    let (server, mut conn) = taken();
    let script = "redis-cli -p \"$0\" LOCK.CHECK k \"$REDIS_LOCK_OWNER\" WRITE FENCE \"$REDIS_LOCK_FENCE\"";
    let run = queued(&server, &["run", "-t", "2s", "k", "sh", "-c", script, &server.port().to_string()]);
    let keeper = run.keeper();
    testbed::send(keeper, Signal::STOP);
    let fence = conn.int(&["LOCK.EXTEND", "k", "other", "PX", "600000"]).unwrap();
    conn.int(&["LOCK.RELEASE", "k", "other"]);
    // It was granted and delivered, then its lease ended, and another came.
    let mut conn = server.connect();
    wait_for("the lock to be free", || !is_held(&mut conn, "k"));
    assert!(conn.int(&["LOCK.ACQUIRE", "k", "another", "PX", "600000"]).unwrap() > fence + 1);
    kill_process(keeper, Signal::CONT).unwrap();
    crate::harness::wait_waiters(&server, "k", 1);
    conn.int(&["LOCK.RELEASE", "k", "another"]);
    let outcome = run.end();
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    assert!(outcome.out.trim().parse::<i64>().unwrap() > fence + 2, "held when it ran: {}", outcome.out);
}

#[test]
fn while_the_parent_is_stopped_the_lock_is_renewed_and_the_command_goes_on() {
    let server = Server::new();
    let folder = Folder::new();
    let run = folder.beating(server.port(), &["-t", "9s", "-k", "1s"], &folder.stubborn());
    let mut conn = server.connect();
    run.signal(Signal::STOP);
    let fence = conn.lock_info("k").unwrap().fence;
    let extended = conn.info_number("lock", "lock_extended");
    // More than a lease.
    wait_for("renewals", || conn.info_number("lock", "lock_extended") >= extended + 4);
    folder.wait_beats();
    assert_eq!(conn.lock_info("k").unwrap().fence, fence);
    run.signal(Signal::CONT);
    run.signal(Signal::INT);
    assert_eq!(run.end().code, Some(130));
    assert_eq!(folder.read("told"), "");
}

#[test]
fn while_the_parent_is_stopped_the_end_of_the_command_releases_the_lock() {
    let server = Server::new();
    let folder = Folder::new();
    let run = start(server.port(), &["run", "k", "sh", "-c", &folder.heartbeat("trap 'exit 4' TERM")]);
    folder.line("beat");
    run.signal(Signal::STOP);
    kill_process(pid(folder.number("pid")), Signal::TERM).unwrap();
    wait_for("the release", || !is_held(&mut server.connect(), "k"));
    run.signal(Signal::CONT);
    let outcome = run.end();
    assert_eq!((outcome.code, outcome.err.as_str()), (Some(4), ""));
}

#[test]
fn while_the_parent_is_stopped_what_the_command_leaves_is_ended_before_the_release() {
    let server = Server::new();
    let folder = Folder::new();
    let script = "trap 'exit 4' USR1; sh -c \"$0\" & while :; do sleep 0.01; done";
    let run = start(server.port(), &["run", "-k", "3s", "k", "sh", "-c", script, &folder.stubborn()]);
    folder.line("beat");
    let command =
        run.processes().into_iter().find(|pid| crate::process::children(*pid).contains(&folder.number("pid")));
    run.signal(Signal::STOP);
    kill_process(pid(command.unwrap()), Signal::USR1).unwrap();
    folder.assert_over(server.port());
    assert_eq!(folder.line("told"), "told");
    run.signal(Signal::CONT);
    assert_eq!(run.end().code, Some(4));
}

#[test]
fn while_the_parent_is_stopped_the_keeper_ends_the_command_in_time() {
    let server = Server::new();
    let folder = Folder::new();
    let proxy = Proxy::to(server.port());
    let run = folder.beating(proxy.port(), &["-t", "2s", "-k", "500ms"], &folder.stubborn());
    run.signal(Signal::STOP);
    proxy.freeze(true);
    folder.assert_over(server.port());
    assert_eq!(folder.line("told"), "told");
    run.signal(Signal::CONT);
    assert_eq!(run.end().code, Some(76));
}

#[test]
fn when_both_are_stopped_the_command_is_killed_as_soon_as_one_goes_on() {
    let server = Server::new();
    let folder = Folder::new();
    let run = folder.beating(server.port(), &["-t", "6s", "-k", "2s"], &folder.stubborn());
    let keeper = run.keeper();
    run.signal(Signal::STOP);
    testbed::send(keeper, Signal::STOP);
    // The fence is for this: another has it, and the command works on.
    folder.second_holder(server.port());
    folder.wait_beats();
    let beats = folder.beats();
    run.signal(Signal::CONT);
    let pid = folder.number("pid");
    wait_for("the command to be killed", || !lives(pid));
    // It is not told first and given its two seconds, which are more than a hundred beats.
    assert!(folder.beats() < beats + 60, "{} beats", folder.beats() - beats);
    kill_process(keeper, Signal::CONT).unwrap();
    let outcome = run.end();
    assert_eq!(outcome.code, Some(76), "{}", outcome.err);
}

#[test]
fn a_stopped_command_goes_on_only_when_the_lock_was_renewed() {
    let server = Server::new();
    let folder = Folder::new();
    let run = folder.beating(server.port(), &["-t", "6s"], &folder.heartbeat(":"));
    let pid = folder.number("pid");
    run.signal(Signal::TSTP);
    // The command stopped before. Its own state need not say so: while it starts another program it is D.
    wait_for("the program to stop", || state(run.child.id()) == 'T');
    let stood_at = folder.beats();
    let mut conn = server.connect();
    let extended = conn.info_number("lock", "lock_extended");
    wait_for("renewals meanwhile", || conn.info_number("lock", "lock_extended") >= extended + 2);
    assert_eq!(folder.beats(), stood_at);
    // Now nothing is answered: it must not go on.
    server.signal(Signal::STOP);
    run.signal(Signal::CONT);
    let beats = folder.beats();
    wait_for("the command to be killed", || !lives(pid));
    assert_eq!(folder.beats(), beats);
    server.signal(Signal::CONT);
    assert_eq!(run.end().code, Some(76));
}

#[test]
fn a_stopped_command_goes_on_when_it_is_continued() {
    let server = Server::new();
    let folder = Folder::new();
    let run = folder.beating(server.port(), &[], &folder.heartbeat(":"));
    for _ in 0..3 {
        run.signal(Signal::TSTP);
        wait_for("the program to stop", || state(run.child.id()) == 'T');
        run.signal(Signal::CONT);
        folder.wait_beats();
    }
    run.signal(Signal::TERM);
    assert_eq!(run.end().code, Some(143));
}
