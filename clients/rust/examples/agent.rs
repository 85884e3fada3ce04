//! Takes and gives back locks as it is told on standard input, one JSON object a line, for the scenarios that all
//! helpers have in common (tests/helpers). Each request runs in a thread of its own, and is answered when it is done.
//! `agent tokio URL` takes locks in tasks instead; what is cancelled there is dropped. With the URL `fake:` it has a
//! server in memory.

use redis_lock_client::redis::ConnectionLike;
use redis_lock_client::{AsyncGuard, Cancel, Client, Error, Guard, Lock, Loss, Owner, redis, testing::FakeServer};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

/// The name of the threads that requests run in.
const REQUEST: &str = "request";

/// A lock object of the scenarios.
struct Named {
    lock: Lock,
    /// None: as long as it takes.
    wait: Option<Duration>,
    /// The lock object within whose owner it is taken.
    within: Option<Arc<Named>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    owner: Option<Owner>,
    guard: Option<Arc<Guard>>,
    task_guard: Option<Arc<AsyncGuard>>,
    loss: Option<Loss>,
}

struct Agent {
    client: Client,
    /// The program's own.
    redis: redis::Client,
    /// Those over which a test speaks to the server in memory.
    idle: Mutex<Vec<redis::Connection>>,
    locks: Mutex<HashMap<String, Arc<Named>>>,
    /// By the number of the request that they end.
    cancels: Mutex<HashMap<u64, Cancel>>,
    /// What locks told.
    troubles: Arc<Mutex<Vec<String>>>,
    /// Where tasks run, if they take the locks.
    runtime: Option<Runtime>,
    /// By the number of the request whose task they end.
    ends: Mutex<HashMap<u64, Arc<Notify>>>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let in_tasks = args.first().is_some_and(|arg| arg == "tokio");
    if in_tasks {
        args.remove(0);
    }
    let fake = if args.first().is_some_and(|url| url == "fake:") { Some(FakeServer::start()?) } else { None };
    if let Some(fake) = &fake {
        args[0] = fake.url();
    }
    let url = args.first().ok_or("usage: agent [tokio] URL [--cluster] [blocking=N]")?.clone();
    let redis = redis::Client::open(url.as_str())?;
    let in_cluster = args.iter().any(|arg| arg == "--cluster");
    let mut client = if in_cluster { Client::cluster([url])? } else { Client::from(&redis) };
    if let Some(waits) = args.iter().find_map(|arg| arg.strip_prefix("blocking=")) {
        client = client.max_blocking(waits.parse()?);
    }
    let (locks, cancels, ends, troubles) = (Mutex::default(), Mutex::default(), Mutex::default(), Arc::default());
    let runtime =
        if in_tasks { Some(Builder::new_multi_thread().worker_threads(2).enable_time().build()?) } else { None };
    let agent = Arc::new(Agent { client, redis, idle: Mutex::default(), locks, cancels, troubles, runtime, ends });
    say(&json!({"ready": "rust"}));
    for line in std::io::stdin().lock().lines() {
        let request: Map<String, Value> = serde_json::from_str(&line?)?;
        // In the order in which they came: what a request needs is there before it begins.
        agent.prepare(&request);
        if let Some(task) = agent.task(&request) {
            task();
            continue;
        }
        let agent = agent.clone();
        std::thread::Builder::new().name(REQUEST.to_owned()).spawn(move || {
            let done = agent.do_it(&request);
            answer(&request, done);
        })?;
    }
    // As a process that dies: no lock is given back.
    std::process::exit(0);
}

impl Agent {
    fn prepare(&self, request: &Map<String, Value>) {
        match text(request, "do").unwrap_or_default() {
            "open" => self.open(request),
            "acquire" | "release" => {
                let id = request["id"].as_u64().unwrap_or_default();
                lock(&self.cancels).insert(id, Cancel::new());
                lock(&self.ends).insert(id, Arc::default());
            }
            _ => {}
        }
    }

    fn open(&self, request: &Map<String, Value>) {
        let keys: Vec<&str> = request["keys"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mut locked = match keys[..] {
            [key] => self.client.key(key),
            _ => self.client.keys(keys),
        };
        if let Some(lease) = seconds(request, "lease") {
            locked = locked.lease(lease);
        }
        if request.get("shared").and_then(Value::as_bool) == Some(true) {
            locked = locked.shared();
        }
        if let Some(limit) = number(request, "limit") {
            locked = locked.limit(limit);
        }
        if let Some(take) = number(request, "take") {
            locked = locked.take(take);
        }
        if let Some(note) = text(request, "note") {
            locked = locked.note(note);
        }
        let troubles = self.troubles.clone();
        locked = locked.on_trouble(move |error| {
            let kind = if matches!(error, Error::Notify(_)) { "notify" } else { "other" };
            lock(&troubles).push(format!("{kind}: {error}"));
        });
        let within = text(request, "within").map(|name| self.named(name));
        let wait = seconds(request, "wait");
        let named = Named { lock: locked, wait, within, state: Mutex::default() };
        let name = text(request, "lock").unwrap_or_default().to_owned();
        lock(&self.locks).insert(name, Arc::new(named));
    }

    /// Starts what tasks do, and answers when it is done or cancelled.
    fn task(self: &Arc<Self>, request: &Map<String, Value>) -> Option<impl FnOnce() + use<>> {
        let is_of_task = ["acquire", "release", "check", "guard", "await-lost"].contains(&text(request, "do")?);
        if !is_of_task || self.runtime.is_none() {
            return None;
        }
        let (agent, request) = (self.clone(), request.clone());
        // A release that is cancelled before it begins drops the guard.
        let released = if text(&request, "do") == Some("release") {
            let named = agent.named(text(&request, "lock").unwrap_or_default());
            lock(&named.state).task_guard.take()
        } else {
            None
        };
        Some(move || {
            let own = agent.clone();
            let id = request["id"].as_u64().unwrap_or_default();
            let end = lock(&agent.ends).get(&id).cloned().unwrap_or_default();
            if let Some(runtime) = &agent.runtime {
                runtime.spawn(async move {
                    let done = tokio::select! {
                        biased;
                        () = end.notified() => Err(Error::Cancelled),
                        done = own.do_in_task(&request, released) => done,
                    };
                    lock(&own.ends).remove(&id);
                    answer(&request, done);
                });
            }
        })
    }

    async fn do_in_task(
        &self,
        request: &Map<String, Value>,
        released: Option<Arc<AsyncGuard>>,
    ) -> Result<Value, Error> {
        let named = self.named(text(request, "lock").unwrap_or_default());
        let not_taken = || Error::Refused("not taken".to_owned());
        let guard = || lock(&named.state).task_guard.clone().ok_or_else(not_taken);
        match text(request, "do").unwrap_or_default() {
            "acquire" => self.acquire_in_task(&named).await,
            "release" => {
                if let Some(guard) = Arc::into_inner(released.ok_or_else(not_taken)?) {
                    guard.release().await?;
                }
                Ok(json!({"released": true}))
            }
            "check" => Ok(json!({"held": guard()?.check().await?})),
            "guard" => Ok(json!({"reply": to_json(guard()?.guard(&command_of(request)).await?)})),
            _ => {
                let loss = lock(&named.state).loss.clone();
                Ok(json!({"signals": u8::from(loss.ok_or_else(not_taken)?.wait_async().await)}))
            }
        }
    }

    async fn acquire_in_task(&self, named: &Named) -> Result<Value, Error> {
        let outer = named.within.as_ref().and_then(|outer| lock(&outer.state).task_guard.clone());
        let owner = outer.as_ref().map_or_else(Owner::new, |outer| outer.owner().clone());
        let locked = match &outer {
            Some(outer) => named.lock.clone().within_async(outer),
            None => named.lock.clone().owner(&owner),
        };
        lock(&named.state).owner = Some(owner);
        let guard = match named.wait {
            None => Some(locked.lock_async().await?),
            Some(wait) if wait.is_zero() => locked.try_lock_async().await?,
            Some(wait) => locked.try_lock_for_async(wait).await?,
        };
        let Some(guard) = guard else { return Ok(json!({"fences": null})) };
        let fences = json!({"fences": guard.fences()});
        let mut state = lock(&named.state);
        state.loss = Some(guard.loss());
        state.task_guard = Some(Arc::new(guard));
        Ok(fences)
    }

    fn do_it(&self, request: &Map<String, Value>) -> Result<Value, Error> {
        let named = || self.named(text(request, "lock").unwrap_or_default());
        let guard = || lock(&named().state).guard.clone().ok_or_else(|| Error::Refused("not taken".to_owned()));
        match text(request, "do").unwrap_or_default() {
            "open" => Ok(json!({})),
            "acquire" => self.acquire(request, &named()),
            "server" => {
                let idle = lock(&self.idle).pop();
                let mut connection = idle.map_or_else(|| self.redis.get_connection(), Ok)?;
                let reply = match connection.req_command(&command_of(request)).and_then(redis::Value::extract_error) {
                    Ok(reply) => to_json(reply),
                    Err(error) => {
                        let (code, detail) = (error.code().unwrap_or("ERR"), error.detail().unwrap_or_default());
                        json!({"error": format!("{code} {detail}")})
                    }
                };
                lock(&self.idle).push(connection);
                Ok(json!({"reply": reply}))
            }
            "cancel" => {
                let id = request["of"].as_u64().unwrap_or_default();
                if self.runtime.is_some() {
                    // One that is done hears it no more.
                    if let Some(end) = lock(&self.ends).get(&id) {
                        end.notify_one();
                    }
                } else if let Some(cancel) = lock(&self.cancels).get(&id) {
                    cancel.cancel();
                }
                Ok(json!({}))
            }
            "release" => {
                let taken = lock(&named().state).guard.take();
                let guard = taken.ok_or_else(|| Error::Refused("not taken".to_owned()))?;
                // Another request may use it still: then the last of them drops it.
                Arc::into_inner(guard).map_or(Ok(()), Guard::release)?;
                Ok(json!({"released": true}))
            }
            "check" => Ok(json!({"held": guard()?.check()?})),
            "guard" => Ok(json!({"reply": to_json(guard()?.guard(&command_of(request))?)})),
            "lost" => {
                let loss = lock(&named().state).loss.clone();
                Ok(json!({"lost": loss.is_some_and(|loss| loss.is_set())}))
            }
            "await-lost" => {
                let loss = lock(&named().state).loss.clone();
                let loss = loss.ok_or_else(|| Error::Refused("not taken".to_owned()))?;
                Ok(json!({"signals": u8::from(loss.wait(Duration::MAX))}))
            }
            "owner" => {
                let owner = lock(&named().state).owner.clone();
                Ok(json!({"owner": owner.map(|owner| owner.to_string())}))
            }
            "troubles" => Ok(json!({"troubles": *lock(&self.troubles)})),
            "tasks" => Ok(json!({"tasks": threads_but_requests()})),
            "close" => {
                lock(&self.locks).clear();
                Ok(json!({}))
            }
            "ping" => {
                let mut connection = self.redis.get_connection()?;
                redis::cmd("PING").exec(&mut connection)?;
                Ok(json!({}))
            }
            other => Err(Error::Refused(format!("nothing to do for {other}"))),
        }
    }

    fn acquire(&self, request: &Map<String, Value>, named: &Named) -> Result<Value, Error> {
        let id = request["id"].as_u64().unwrap_or_default();
        let cancel = lock(&self.cancels).get(&id).cloned().unwrap_or_default();
        let outer = named.within.as_ref().and_then(|outer| lock(&outer.state).guard.clone());
        let mut locked = named.lock.clone().cancelled_by(&cancel);
        let owner = outer.as_ref().map_or_else(Owner::new, |outer| outer.owner().clone());
        locked = match &outer {
            Some(outer) => locked.within(outer),
            None => locked.owner(&owner),
        };
        lock(&named.state).owner = Some(owner);
        let guard = match named.wait {
            None => Some(locked.lock()),
            Some(wait) if wait.is_zero() => locked.try_lock().transpose(),
            Some(wait) => locked.try_lock_for(wait).transpose(),
        };
        lock(&self.cancels).remove(&id);
        let Some(guard) = guard.transpose()? else { return Ok(json!({"fences": null})) };
        let fences = json!({"fences": guard.fences()});
        let mut state = lock(&named.state);
        state.loss = Some(guard.loss());
        state.guard = Some(Arc::new(guard));
        Ok(fences)
    }

    fn named(&self, name: &str) -> Arc<Named> {
        lock(&self.locks).get(name).cloned().unwrap_or_else(|| panic!("no lock is called {name}"))
    }
}

fn answer(request: &Map<String, Value>, done: Result<Value, Error>) {
    let mut done = done.unwrap_or_else(|error| {
        let kind = match error {
            Error::Deadlock(_) => "deadlock",
            Error::Lost => "lost",
            Error::Cancelled => "cancelled",
            Error::Refused(_) => "refused",
            Error::Server(_) => "server",
            _ => "connection",
        };
        json!({"error": kind, "message": error.to_string()})
    });
    done["id"] = request["id"].clone();
    say(&done);
}

fn command_of(request: &Map<String, Value>) -> redis::Cmd {
    let mut command = redis::Cmd::new();
    for arg in request["command"].as_array().into_iter().flatten() {
        command.arg(arg.as_str().map_or_else(|| arg.to_string(), str::to_owned));
    }
    command
}

/// Bulk and simple strings as text, numbers as numbers.
fn to_json(value: redis::Value) -> Value {
    match value {
        redis::Value::Int(number) => json!(number),
        redis::Value::BulkString(bytes) => json!(String::from_utf8_lossy(&bytes)),
        redis::Value::SimpleString(text) => json!(text),
        redis::Value::Okay => json!("OK"),
        redis::Value::Array(values) => values.into_iter().map(to_json).collect(),
        _ => Value::Null,
    }
}

/// Those that requests run in come and go.
fn threads_but_requests() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim_end() != REQUEST).count()
}

fn text<'a>(request: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    request.get(name).and_then(Value::as_str)
}

fn number(request: &Map<String, Value>, name: &str) -> Option<u32> {
    request.get(name).and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok())
}

fn seconds(request: &Map<String, Value>, name: &str) -> Option<Duration> {
    request.get(name).and_then(Value::as_f64).map(Duration::from_secs_f64)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn say(answer: &Value) {
    let mut out = std::io::stdout().lock();
    // The scenarios may have gone: then nobody listens.
    drop(writeln!(out, "{answer}").and_then(|()| out.flush()));
}
