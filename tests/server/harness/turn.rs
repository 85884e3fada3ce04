//! Lets the server do several things in one turn of its loop.

use crate::harness::connection::{Connection, Reply};
use std::time::{Duration, Instant};
use testbed::{Server, Signal};

/// In place of a command, where each has its own connection: that of `b` is closed.
pub(crate) const CLOSE: &str = "(b closes its connection)";

/// In place of a command, where each has its own connection: 3.1 seconds go by.
pub(crate) const PASS: &str = "(time passes)";

/// How the commands of one turn reach the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// In one write of one connection.
    Pipelined,
    /// Between MULTI and EXEC.
    Exec,
    /// Each by a connection of its own, all of them pending when the server polls.
    Connections,
}

pub(crate) const WAYS: [Way; 3] = [Way::Pipelined, Way::Exec, Way::Connections];

/// Lets the server serve these commands in one turn of its loop, and waits until it has.
/// A command whose reply is to be null says so: `LOCK.RW k a READ -> null`.
pub(crate) fn turn<C: AsRef<str>>(server: &Server, way: Way, commands: &[C]) {
    turn_of(server, way, commands, None);
}

/// The same, in which [`CLOSE`] closes the connection of `b`.
pub(crate) fn turn_of<C: AsRef<str>>(server: &Server, way: Way, steps: &[C], mut b: Option<&mut Connection>) {
    let (commands, nulls): (Vec<&str>, Vec<bool>) = steps
        .iter()
        .map(AsRef::as_ref)
        .map(|step| step.strip_suffix(" -> null").map_or((step, false), |command| (command, true)))
        .unzip();
    let replies: Vec<Reply> = match way {
        Way::Pipelined => {
            let mut link = Connection::resp2(server);
            link.send_line(&commands.join("\r\n"));
            commands.iter().map(|_| link.read()).collect()
        }
        Way::Exec => {
            let mut link = Connection::resp2(server);
            link.send_line(&format!("MULTI\r\n{}\r\nEXEC", commands.join("\r\n")));
            assert_eq!(link.read(), Reply::simple("OK"));
            for command in &commands {
                assert_eq!(link.read(), Reply::simple("QUEUED"), "{command}");
            }
            link.read().items()
        }
        Way::Connections => {
            let mut links: Vec<Connection> = commands.iter().map(|_| Connection::resp2(server)).collect();
            while_stopped(server, || {
                for (link, command) in links.iter_mut().zip(&commands) {
                    match *command {
                        CLOSE => b.take().expect("one whose connection is closed").close(),
                        PASS => std::thread::sleep(Duration::from_millis(3100)),
                        _ => link.send_line(command),
                    }
                }
            });
            let reply = |(link, command): (&mut Connection, &&str)| match *command {
                CLOSE | PASS => Reply::simple("OK"),
                _ => link.read(),
            };
            links.iter_mut().zip(&commands).map(reply).collect()
        }
    };
    assert_eq!(replies.len(), commands.len());
    for (command, (reply, null)) in commands.iter().zip(replies.iter().zip(nulls)) {
        match reply {
            Reply::Null if null => {}
            Reply::Int(0) => assert!(command.starts_with("LOCK.RELEASE"), "{command} did nothing"),
            Reply::Int(_) | Reply::Simple(_) if !null => {}
            other => panic!("{command}: {other:?}"),
        }
    }
}

/// Does something while the server stands still, so that it finds all of it pending in one turn, in this order.
///
/// It is stopped within a command: the kernel gives what happens in the middle of a wait for events in another order.
pub(crate) fn while_stopped(server: &Server, work: impl FnOnce()) {
    let mut sleeper = Connection::resp2(server);
    loop {
        sleeper.send_line("DEBUG SLEEP 0.2");
        let is_asleep = || {
            let syscall = std::fs::read_to_string(format!("/proc/{}/syscall", server.pid())).unwrap();
            let number = syscall.split(' ').next().and_then(|number| number.parse().ok());
            number.is_some_and(|number| [libc::SYS_nanosleep, libc::SYS_clock_nanosleep].contains(&number))
        };
        let deadline = Instant::now() + Duration::from_millis(100);
        while !is_asleep() && Instant::now() < deadline {}
        server.signal(Signal::STOP);
        if sleeper.is_waiting() {
            break;
        }
        // It slept no more.
        server.signal(Signal::CONT);
        assert_eq!(sleeper.read(), Reply::simple("OK"));
    }
    work();
    server.signal(Signal::CONT);
    assert_eq!(sleeper.read(), Reply::simple("OK"));
}
