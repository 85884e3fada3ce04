//! What the front page and the guide show in Rust: each line of it is a line of this file, and runs.

use redis_lock_client::testing::FakeServer;
use redis_lock_client::{Client, Error};
use std::ops::ControlFlow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use testbed::Server;

/// A program that has the lines of a page, on the server of a URL.
type Program = fn(&str) -> Result<(), Error>;

macro_rules! pages {
    ($($page:literal = $program:ident),+ $(,)?) => {
        &[$(($page, include_str!(concat!("../../../../", $page)), $program as Program)),+]
    };
}

const PAGES: &[(&str, &str, Program)] = pages! {
    "README.md" = first_lock,
    "docs/guide/first-lock.md" = first_lock,
    "docs/guide/waiting.md" = waiting,
    "docs/guide/readers-writers.md" = reading,
    "docs/guide/semaphores.md" = sharing,
    "docs/guide/several-keys.md" = several,
    "docs/guide/losing-a-lock.md" = losing,
    "docs/guide/recipes.md" = leading,
    "docs/guide/testing.md" = testing,
};

fn first_lock(url: &str) -> Result<(), Error> {
    let client = Client::open(url)?;
    let guard = client.lock("report")?;
    println!("only one process is here; fence {}", guard.fence());
    Ok(())
}

fn waiting(url: &str) -> Result<(), Error> {
    let client = Client::open(url)?;
    match client.key("report").try_lock_for(Duration::from_secs(10))? {
        Some(guard) => println!("it was our turn; fence {}", guard.fence()),
        None => println!("others hold it"),
    }
    Ok(())
}

fn reading(url: &str) -> Result<(), Error> {
    let client = Client::open(url)?;
    let reading = client.key("shelf").shared().lock()?;
    println!("other readers may be here, but no writer");
    reading.release()
}

fn sharing(url: &str) -> Result<(), Error> {
    let client = Client::open(url)?;
    let share = client.key("api").limit(2).lock()?;
    println!("one of two");
    share.release()
}

fn several(url: &str) -> Result<(), Error> {
    let client = Client::open(url)?;
    let both = client.keys(["{acct}:1", "{acct}:2"]).lock()?;
    println!("fences {:?}", both.fences());
    both.release()
}

fn losing(url: &str) -> Result<(), Error> {
    let client = Client::open(url)?;
    let guard = client.lock("report")?;
    for page in (0..3).take_while(|_| !guard.is_lost()) {
        println!("page {page}");
    }
    guard.release()?; // Err(Error::Lost), if it was lost
    Ok(())
}

fn leading(url: &str) -> Result<(), Error> {
    let client = Client::open(url)?;
    let done = client.key("leader").lead(|guard| {
        println!("leading with the fence {}", guard.fence());
        ControlFlow::Break("done") // Continue: to lead again. The work ends when the guard is lost
    })?;
    println!("{done}");
    let day = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 86_400; // in UTC
    let done = format!("{{nightly}}{day}");
    if let Some(guard) = client.key("{nightly}lock").try_lock()? {
        // None: another host runs it
        if !guard.guard::<bool>(redis::cmd("EXISTS").arg(&done))? {
            println!("once a day");
            guard.guard::<()>(redis::cmd("SET").arg(&done).arg("").arg("EX").arg(172_800))?;
        }
        guard.release()?;
    }
    Ok(())
}

fn testing(_: &str) -> Result<(), Error> {
    let fake = FakeServer::start().expect("a free port");
    let guard = fake.client().key("report").lease(Duration::from_secs(1)).lock()?;
    fake.lose("report");
    assert!(guard.wait_lost(Duration::from_secs(60)));
    Ok(())
}

/// The lines of all blocks in Rust, without their indentation. The server is another one here.
fn shown(page: &str) -> Vec<String> {
    let blocks = page.split("\n```rust\n").skip(1).map(|rest| rest.split("\n```").next().unwrap());
    let lines = blocks.flat_map(|block| block.lines().chain([""]));
    lines.map(|line| line.trim().replace("\"redis://127.0.0.1:6379\"", "url")).collect()
}

#[test]
fn what_a_page_shows_in_rust_runs_here() {
    // What could go wrong: a reader copies a line that does not compile, or that takes no lock.
    let own: Vec<&str> = include_str!("pages.rs").lines().map(str::trim).collect();
    let server = Server::new();
    let url = format!("redis://127.0.0.1:{}", server.port());
    for (name, page, program) in PAGES {
        let shown = shown(page);
        assert!(!shown.is_empty(), "{name}");
        for block in shown.split(String::is_empty).filter(|block| !block.is_empty()) {
            assert!(own.windows(block.len()).any(|lines| lines == block), "{name}: {block:?}");
        }
        let granted = || server.connect().info_number("lock", "lock_granted");
        let before = granted();
        program(&url).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(granted() > before || shown.iter().any(|line| line.contains("FakeServer")), "{name}");
    }
}

#[test]
fn the_recipes_lead_each_time_and_run_the_job_once_a_day() {
    // What could go wrong: the job never runs, or runs again on each host.
    let server = Server::new();
    for _ in 0..2 {
        leading(&format!("redis://127.0.0.1:{}", server.port())).unwrap();
    }
    let mut conn = server.connect();
    let days: Vec<String> = conn.get(&["KEYS", "{nightly}*"]);
    assert!(!days.is_empty(), "the job has not run");
    // Both ask whether it ran today, and one a day records it.
    assert_eq!(conn.info_number("lock", "lock_guarded"), 2 + days.len() as u64);
    assert_eq!(conn.info_number("lock", "lock_granted"), 4, "each leads once, and has the lock of the job once");
}
