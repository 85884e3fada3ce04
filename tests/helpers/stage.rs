//! Where a scenario is played: a server, a wire to it, an agent, and a client of the test's own.

use crate::agent::{Agent, Pending};
use crate::fake;
use crate::language::Language;
use testbed::{Client, Proxy, Server, Setup, say_not_run};

/// For an agent: so many waits may block, and the others wait by NOTIFY.
pub(crate) const NO_BLOCKING: &str = "blocking=0";

/// A scenario that is to be played.
pub(crate) struct Play {
    pub(crate) language: Language,
    /// On the server in memory of this language, in place of a real one.
    in_memory: bool,
}

impl Play {
    /// Plays a scenario with the agent of a language. Counts it as not run where the machine lacks the language.
    pub(crate) fn scenario(language: Language, name: &str, scenario: fn(Play)) {
        Play { language, in_memory: false }.run(name, scenario);
    }

    /// The same on the language's server in memory.
    pub(crate) fn in_memory(language: Language, name: &str, scenario: fn(Play)) {
        Play { language, in_memory: true }.run(name, scenario);
    }

    fn run(self, name: &str, scenario: fn(Play)) {
        match self.language.lacks().or_else(|| self.language.leaves_out(name)) {
            Some(what) => say_not_run(name, &what),
            None => scenario(self),
        }
    }

    /// For a scenario that needs no wire: with a server as it comes, or with one in memory.
    pub(crate) fn pair(self) -> Pair {
        if self.in_memory {
            let agent = Agent::start(self.language.agent(), "fake:", &[]);
            let port = fake::serve(agent.requests());
            return Pair { agent, conn: connect(port), port, _server: None };
        }
        let server = Server::new();
        let port = server.port();
        Pair { agent: self.agent(port, false), conn: server.connect(), port, _server: Some(server) }
    }

    /// With a server as it comes.
    pub(crate) fn stage(self) -> Stage {
        self.stage_on(Server::setup())
    }

    /// With a server of another kind.
    pub(crate) fn stage_on(self, setup: Setup) -> Stage {
        self.stage_with(setup, &[])
    }

    /// With an agent in which no wait blocks: all wait by NOTIFY.
    pub(crate) fn stage_by_notify(self) -> Stage {
        self.stage_with(Server::setup(), &[NO_BLOCKING])
    }

    fn stage_with(self, setup: Setup, words: &[&str]) -> Stage {
        let server = setup.start();
        let proxy = Proxy::to(server.port());
        Stage { agent: self.agent_with(proxy.port(), words), conn: server.connect(), proxy, server }
    }

    /// An agent for the server on this port, or for the cluster of which it is a node.
    pub(crate) fn agent(&self, port: u16, cluster: bool) -> Agent {
        self.agent_with(port, if cluster { &["--cluster"] } else { &[] })
    }

    /// An agent with these words behind the address of its server.
    pub(crate) fn agent_with(&self, port: u16, words: &[&str]) -> Agent {
        Agent::start(self.language.agent(), &format!("redis://127.0.0.1:{port}"), words)
    }
}

/// What most scenarios need. Its agent reaches the server through the proxy.
pub(crate) struct Stage {
    pub(crate) agent: Agent,
    pub(crate) conn: Client,
    pub(crate) proxy: Proxy,
    pub(crate) server: Server,
}

/// What a scenario without a wire needs.
pub(crate) struct Pair {
    pub(crate) agent: Agent,
    pub(crate) conn: Client,
    pub(crate) port: u16,
    _server: Option<Server>,
}

/// Connects one more client of the test's own to the server of a pair.
pub(crate) fn connect(port: u16) -> Client {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
    Client(client.get_connection().unwrap())
}

/// Another one holds the key, and the lock begins to wait for it.
pub(crate) fn waits_for_held(agent: &mut Agent, conn: &mut Client, lock: &str, key: &str) -> Pending {
    conn.int(&["LOCK.ACQUIRE", key, "first", "PX", "60000"]).unwrap();
    let asked = agent.acquire(lock);
    conn.await_waiters(key, 1);
    asked
}

/// The names of the holders of a key.
pub(crate) fn holders(conn: &mut Client, key: &str) -> Vec<String> {
    let holders = conn.lock_info(key).map(|info| info.holders).unwrap_or_default();
    holders.into_iter().map(|holder| String::from_utf8(holder.owner).unwrap()).collect()
}

/// How often a command was called on the server, or another number that INFO counts for it.
pub(crate) fn count(conn: &mut Client, command: &str, field: &str) -> u64 {
    let text: String = conn.get(&["INFO", "commandstats"]);
    let row = text.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:"))).unwrap_or_default();
    let number = row.split(',').find_map(|pair| pair.strip_prefix(&format!("{field}=")));
    number.map_or(0, |number| number.parse().unwrap())
}
