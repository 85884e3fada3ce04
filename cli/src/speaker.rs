//! Writes to the standard error output, and never waits for a reader: a pipe that nobody reads, or a terminal after
//! Ctrl-S, must not keep this process from its work.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// How long the reader has once there is nothing else left to do.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The most that is written at once to a pipe without a thread.
const PIPE_ROOM: usize = 4096;

/// A thread that writes what it is sent. It says when it has written all.
struct Speaker {
    texts: Sender<Text>,
}

enum Text {
    Line(String),
    /// Answered when all that came before is written.
    End(Sender<()>),
}

static SPEAKER: OnceLock<Option<Speaker>> = OnceLock::new();

/// Writes a text, after those that came before it.
pub(crate) fn write(text: String) {
    match SPEAKER.get_or_init(Speaker::start) {
        // It lives as long as this process.
        Some(speaker) => drop(speaker.texts.send(Text::Line(text))),
        None => write_if_there_is_room(&text),
    }
}

/// Waits a moment for what is not yet written.
pub(crate) fn finish() {
    let Some(Some(speaker)) = SPEAKER.get() else { return };
    let (written, all) = channel();
    drop(speaker.texts.send(Text::End(written)));
    // What nobody reads meanwhile is lost.
    let _: Result<(), RecvTimeoutError> = all.recv_timeout(LAST_WORDS);
}

impl Speaker {
    fn start() -> Option<Speaker> {
        let (texts, received) = channel();
        let thread = std::thread::Builder::new().name("redis-lock-speaker".to_owned());
        thread.spawn(move || speak(&received)).ok()?;
        Some(Speaker { texts })
    }
}

fn speak(texts: &Receiver<Text>) {
    for text in texts {
        match text {
            // In one write, so that lines of several programs do not mix. That it cannot be said is no error.
            Text::Line(text) => drop(std::io::stderr().write_all(text.as_bytes())),
            Text::End(written) => drop(written.send(())),
        }
    }
}

/// Where there can be no thread.
fn write_if_there_is_room(text: &str) {
    let stderr = rustix::stdio::stderr();
    let mut files = [PollFd::new(&stderr, PollFlags::OUT)];
    if poll(&mut files, Some(&Timespec::default())).is_ok_and(|count| count > 0) {
        let _: Result<usize, _> = rustix::io::write(stderr, &text.as_bytes()[..text.len().min(PIPE_ROOM)]);
    }
}
