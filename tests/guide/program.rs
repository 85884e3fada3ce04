//! A program that runs beside the test: a process, or a thread of this one.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

/// What is told to the program: go on.
type Go = Box<dyn FnMut() + Send>;

/// A program that runs, and what it has said.
pub(crate) struct Program {
    lines: Receiver<String>,
    said: Vec<String>,
    go: Go,
    body: Body,
}

enum Body {
    Process(Child),
    /// True when all went well.
    Thread(Option<JoinHandle<bool>>),
}

impl Program {
    /// Starts a process.
    pub(crate) fn process(mut command: Command) -> Program {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (sender, lines) = channel();
        let mut input = child.stdin.take().unwrap();
        read_all(child.stdout.take().unwrap(), sender.clone());
        read_all(child.stderr.take().unwrap(), sender);
        let go = move || input.write_all(b"go\n").unwrap();
        Program { lines, said: Vec::new(), go: Box::new(go), body: Body::Process(child) }
    }

    /// Starts a thread. It says lines, and hears when it may go on.
    pub(crate) fn thread(run: impl FnOnce(Sender<String>, Receiver<()>) -> bool + Send + 'static) -> Program {
        let (sender, lines) = channel();
        let (go, heard) = channel();
        let body = Body::Thread(Some(thread::spawn(move || run(sender, heard))));
        Program { lines, said: Vec::new(), go: Box::new(move || go.send(()).unwrap()), body }
    }

    /// Lets it go on.
    pub(crate) fn go_on(&mut self) {
        (self.go)();
    }

    /// What it has said until now.
    pub(crate) fn said(&mut self) -> &[String] {
        self.said.extend(self.lines.try_iter());
        &self.said
    }

    /// Whether it has ended, and well.
    pub(crate) fn ended(&mut self) -> Option<bool> {
        match &mut self.body {
            Body::Process(child) => child.try_wait().unwrap().map(|status| status.success()),
            Body::Thread(thread) if thread.as_ref().unwrap().is_finished() => {
                let well = thread.take().unwrap().join().unwrap_or(false);
                *thread = Some(thread::spawn(move || well));
                Some(well)
            }
            Body::Thread(_) => None,
        }
    }

    /// Waits for its end; what it said, to the last line.
    pub(crate) fn end(mut self) -> Result<Vec<String>, String> {
        let mut well = None;
        testbed::wait_for("a program to end", || {
            well = self.ended();
            well.is_some()
        });
        self.said.extend(self.lines.iter());
        let said = std::mem::take(&mut self.said);
        if well == Some(true) { Ok(said) } else { Err(format!("the program failed: {}", said.join("\n"))) }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Body::Process(child) = &mut self.body {
            // Does nothing to one that has ended already.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn read_all(from: impl std::io::Read + Send + 'static, to: Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if to.send(line).is_err() {
                return;
            }
        }
    });
}
