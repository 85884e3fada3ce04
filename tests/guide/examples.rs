//! Each example of the page, run against a server: it waits behind a holder, keeps its place from one request to the
//! next and over a lost connection, is served before a later one, and gives the lock back.

use crate::library::Library;
use crate::page;
use crate::program::Program;
use crate::redis_rs;
use std::path::Path;
use std::time::{Duration, Instant};
use testbed::{Client, PATIENCE, Server, WaiterInfo};

/// Plays the example of a client.
pub(crate) fn check(library: Library) {
    play(library, &example(library)).unwrap_or_else(|wrong| panic!("{wrong}"));
}

/// Breaks the example, and sees that it does not pass.
pub(crate) fn check_wrong_ones(library: Library) {
    let right = example(library);
    if library.language() == "rust" {
        let wrong = play(library, &right.replace("QUEUE", "RETRY")).expect_err("what is not compiled here passes");
        assert!(wrong.contains("not the code"), "{wrong}");
        return;
    }
    // Without a place in the queue. What RETRY says besides does not matter here.
    let placeless = right.replace("QUEUE", "RETRY");
    let wrong = play(library, &placeless).expect_err("an example without QUEUE passes");
    assert!(wrong.contains("lost its place"), "{wrong}");
    let greedy = right.replace("LOCK.RELEASE", "LOCK.CHECK");
    let wrong = play(library, &greedy).expect_err("an example that does not release passes");
    assert!(wrong.contains("kept the lock"), "{wrong}");
}

/// The example of a client as a program.
fn example(library: Library) -> String {
    let section = page::sections().into_iter().find(|section| section.heading == library.heading()).unwrap();
    let mut blocks = section.blocks().filter(|(language, _)| *language == library.language());
    let at = usize::from(library == Library::RedisRsAsync);
    let (_, example) = blocks.nth(at).unwrap_or_else(|| panic!("{library:?} has no example"));
    assert!(example.contains("FENCE"), "{library:?} releases without its fence:\n{example}");
    library.adapt(example)
}

fn start(library: Library, example: &str, port: u16, folder: &Path) -> Result<Program, String> {
    if library.language() == "rust" {
        return redis_rs::example(library, example, port);
    }
    assert!(example.contains("6379"), "the usual port:\n{example}");
    Ok(Program::process(library.command(&example.replace("6379", &port.to_string()), folder)))
}

/// Runs an example; what is wrong with it.
fn play(library: Library, example: &str) -> Result<(), String> {
    let (server, folder) = (Server::new(), tempfile::tempdir().unwrap());
    let (mut holder, mut late) = (server.connect(), server.connect());
    holder.int(&["LOCK.ACQUIRE", "report", "holder", "PX", "600000"]).expect("free");
    let mut program = start(library, example, server.port(), folder.path())?;
    let waiters = |holder: &mut Client| holder.lock_info("report").map_or(Vec::new(), |info| info.waiters);

    // It stands in the queue, before another.
    let first = until(&mut program, || waiters(&mut holder).into_iter().next())?.owner;
    late.send(&["LOCK.ACQUIRE", "report", "late", "PX", "600000", "BLOCK", "600000"]);
    until(&mut program, || waiters(&mut holder).iter().any(|waiter| waiter.owner == b"late").then_some(()))?;

    // It asks again, and still does.
    let mut left = i64::MAX;
    until(&mut program, || {
        let now: Vec<WaiterInfo> = waiters(&mut holder);
        if now[0].owner != first {
            return Some(Err("the example lost its place".to_owned()));
        }
        let again = now[0].left_ms.is_some_and(|now| now > left);
        left = now[0].left_ms.unwrap_or(left);
        again.then_some(Ok(()))
    })??;

    // Where the client sends again by itself what it had sent on a connection that closed, that costs nothing either.
    if page::row(library.row()).unwrap()[2] == "sent again" {
        let before = until(&mut program, || waiters(&mut holder)[0].client)?;
        holder.int(&["CLIENT", "KILL", "ID", &before.to_string()]);
        until(&mut program, || {
            let now = waiters(&mut holder).remove(0);
            if now.owner != first {
                return Some(Err("the example lost its place".to_owned()));
            }
            now.client.is_some_and(|client| client != before).then_some(Ok(()))
        })??;
    }

    // It is served first, and releases.
    holder.int(&["LOCK.RELEASE", "report", "holder"]).expect("held");
    program.end()?;
    match holder.lock_info("report") {
        Some(info) if info.holders[0].owner == b"late" => {}
        other => return Err(format!("the example kept the lock: {other:?}")),
    }
    assert_eq!(holder.info_number("lock", "lock_lapsed"), 0, "a hold has lapsed");
    Ok(())
}

/// Waits for something to be there; an error if the program ends before.
fn until<T>(program: &mut Program, mut there: impl FnMut() -> Option<T>) -> Result<T, String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(it) = there() {
            return Ok(it);
        }
        if program.ended().is_some() {
            return Err(format!("the example ended early: {}", program.said().join("\n")));
        }
        assert!(Instant::now() < deadline, "waited in vain: {}", program.said().join("\n"));
        std::thread::sleep(Duration::from_millis(5));
    }
}
