//! Something stands in the way: nobody reads what the program says, or the command hides.

use crate::harness::{Folder, Run, program};
use rustix::process::kill_process;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use testbed::{Server, Signal};

/// Lets the standard error output of a program be full. It stays so as long as the other end lives.
fn fill_stderr(command: &mut Command) -> UnixStream {
    let (mut here, there) = UnixStream::pair().unwrap();
    here.set_nonblocking(true).unwrap();
    while here.write(&[b'x'; 1000]).is_ok() {}
    while here.write(b"x").is_ok() {}
    here.set_nonblocking(false).unwrap();
    command.stderr(OwnedFd::from(here));
    there
}

#[test]
fn a_parent_that_cannot_speak_ends_the_command_in_time() {
    let server = Server::new();
    let folder = Folder::new();
    let mut command = program(server.port(), &["run", "-t", "2s", "-k", "500ms", "k", "-c", &folder.stubborn()]);
    let _unread = fill_stderr(&mut command);
    let run = Run::of(command);
    folder.line("beat");
    // It has to say that first, and then that the lock could not be renewed.
    kill_process(run.keeper(), Signal::KILL).unwrap();
    let second = folder.second_holder(server.port(), "k");
    assert!(folder.last_beat() < second);
    assert_eq!(run.end().code, Some(76));
}
