//! An agent: a process that uses a helper, told what to do by lines of JSON.
//!
//! Each request has an `id`, and the agent runs each as a task of its own. So requests overlap, and each answer carries
//! the `id` of its request. clients/scenarios.md lists the requests.

use serde_json::{Value, json};
use std::cell::OnceCell;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use testbed::{PATIENCE, Signal};

/// A running agent. Dropping it ends the process at once.
pub(crate) struct Agent {
    child: Child,
    requests: Requests,
}

/// The requests to an agent, which several threads may send.
#[derive(Clone)]
pub(crate) struct Requests {
    input: Arc<Mutex<ChildStdin>>,
    next: Arc<AtomicU64>,
    answers: Arc<Mutex<HashMap<u64, Sender<Answer>>>>,
}

/// What the agent answered, and when.
pub(crate) struct Answer {
    pub(crate) value: Value,
    pub(crate) at: Instant,
}

/// A request that is not answered yet.
pub(crate) struct Pending {
    pub(crate) id: u64,
    what: String,
    answer: Receiver<Answer>,
    /// What was received already.
    received: OnceCell<Answer>,
}

impl Agent {
    /// Starts an agent, and waits until it is ready. `words` go with its arguments.
    pub(crate) fn start(mut command: Command, url: &str, words: &[&str]) -> Agent {
        command.arg(url).args(words);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child =
            spawned.unwrap_or_else(|error| panic!("{command:?}: {error}: run the tests with make test-clients"));
        let input = Arc::new(Mutex::new(child.stdin.take().unwrap()));
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.next().and_then(Result::ok).unwrap_or_default();
        assert!(ready.contains("ready"), "the agent said {ready:?}: {command:?}");
        let answers = Arc::<Mutex<HashMap<u64, Sender<Answer>>>>::default();
        let waiting = Arc::clone(&answers);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let value: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("not JSON: {line}"));
                let id = value["id"].as_u64().unwrap_or_else(|| panic!("an answer without id: {line}"));
                let sender = waiting.lock().unwrap().remove(&id).unwrap_or_else(|| panic!("unasked: {line}"));
                // A scenario need not wait for an answer.
                let _: Result<(), _> = sender.send(Answer { value, at: Instant::now() });
            }
            // The scenarios that still wait learn that the agent has ended.
            waiting.lock().unwrap().clear();
        });
        Agent { child, requests: Requests { input, next: Arc::default(), answers } }
    }

    /// The requests, for other threads.
    pub(crate) fn requests(&self) -> Requests {
        self.requests.clone()
    }

    /// Sends a request: a JSON object with `do`, and what that needs.
    pub(crate) fn send(&mut self, request: Value) -> Pending {
        self.requests.send(request)
    }

    /// Sends a request, and waits for its answer.
    pub(crate) fn ask(&mut self, request: Value) -> Value {
        self.send(request).value()
    }

    /// Sends the process a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        testbed::signal(&self.child, signal);
    }

    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Names a lock of the agent. `options` has the keys, and what the helper is given.
    pub(crate) fn open(&mut self, lock: &str, mut options: Value) {
        options["do"] = json!("open");
        options["lock"] = json!(lock);
        self.ask(options);
    }

    /// Begins to acquire.
    pub(crate) fn acquire(&mut self, lock: &str) -> Pending {
        self.send(json!({"do": "acquire", "lock": lock}))
    }

    /// Begins to acquire, where the language can cancel that: Python cancels by an exception in its main thread.
    pub(crate) fn acquire_cancellable(&mut self, lock: &str) -> Pending {
        self.send(json!({"do": "acquire", "lock": lock, "main": true}))
    }

    /// Begins to release, in the same way.
    pub(crate) fn release_cancellable(&mut self, lock: &str) -> Pending {
        self.send(json!({"do": "release", "lock": lock, "main": true}))
    }

    /// Acquires what must be free: its first fence.
    pub(crate) fn acquired(&mut self, lock: &str) -> i64 {
        self.acquire(lock).fence()
    }

    /// Begins to release.
    pub(crate) fn release(&mut self, lock: &str) -> Pending {
        self.send(json!({"do": "release", "lock": lock}))
    }

    /// Releases what must be held.
    pub(crate) fn released(&mut self, lock: &str) {
        let answer = self.release(lock).value();
        assert_eq!(answer["released"], true, "{answer}");
    }

    /// Cancels a request in the manner of the language.
    pub(crate) fn cancel(&mut self, pending: &Pending) {
        self.ask(json!({"do": "cancel", "of": pending.id}));
    }

    /// Whether the helper says that the lock is lost.
    pub(crate) fn is_lost(&mut self, lock: &str) -> bool {
        self.ask(json!({"do": "lost", "lock": lock}))["lost"].as_bool().unwrap()
    }

    /// Begins to wait for the signal of loss.
    pub(crate) fn await_lost(&mut self, lock: &str) -> Pending {
        self.send(json!({"do": "await-lost", "lock": lock}))
    }

    /// The owner that the last acquisition sent.
    pub(crate) fn owner(&mut self, lock: &str) -> String {
        self.ask(json!({"do": "owner", "lock": lock}))["owner"].as_str().unwrap().to_owned()
    }

    /// How often the application was told that NOTIFY cannot be had.
    pub(crate) fn told_of_notify(&mut self) -> usize {
        let answer = self.ask(json!({"do": "troubles"}));
        let texts = answer["troubles"].as_array().unwrap_or_else(|| panic!("{answer}"));
        texts.iter().filter(|text| text.as_str().unwrap().starts_with("notify: ")).count()
    }

    /// How many threads, tasks or handles the process has.
    pub(crate) fn tasks(&mut self) -> u64 {
        self.ask(json!({"do": "tasks"}))["tasks"].as_u64().unwrap()
    }
}

impl Requests {
    /// Sends a request, as [`Agent::send`] does.
    pub(crate) fn send(&self, mut request: Value) -> Pending {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        request["id"] = json!(id);
        let (sender, answer) = channel();
        self.answers.lock().unwrap().insert(id, sender);
        writeln!(self.input.lock().unwrap(), "{request}").expect("the agent runs");
        Pending { id, what: request.to_string(), answer, received: OnceCell::new() }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Pending {
    /// The answer, and when it came.
    pub(crate) fn answer(&self) -> &Answer {
        self.within(PATIENCE).unwrap_or_else(|| panic!("no answer to {}", self.what))
    }

    /// The answer, if it comes within this time.
    pub(crate) fn within(&self, time: Duration) -> Option<&Answer> {
        if self.received.get().is_none()
            && let Ok(answer) = self.answer.recv_timeout(time)
        {
            let _: Result<(), Answer> = self.received.set(answer);
        }
        self.received.get()
    }

    /// The answer.
    pub(crate) fn value(&self) -> Value {
        self.answer().value.clone()
    }

    /// The answer, however late it comes; None if the agent ends before.
    pub(crate) fn value_or_end(self) -> Option<Value> {
        self.answer.recv().ok().map(|answer| answer.value)
    }

    /// The first fence of an acquisition that must succeed.
    pub(crate) fn fence(&self) -> i64 {
        let answer = self.value();
        answer["fences"][0].as_i64().unwrap_or_else(|| panic!("{}: {answer}", self.what))
    }

    /// Whether an acquisition has succeeded by now.
    pub(crate) fn is_granted(&self) -> bool {
        self.within(Duration::ZERO).is_some() && self.fence() > 0
    }

    /// The kind of the error that the answer must be.
    pub(crate) fn error(&self) -> String {
        let answer = self.value();
        answer["error"].as_str().unwrap_or_else(|| panic!("{}: {answer}", self.what)).to_owned()
    }
}
