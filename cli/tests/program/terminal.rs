//! A terminal: what its keys do, and who has it. Played by a shell with job control, behind a pseudo-terminal.

use std::process::Command;
use testbed::{Server, file_from};

#[test]
fn a_shell_with_a_terminal_can_interrupt_stop_continue_and_pipe_it() {
    let server = Server::new();
    let python = file_from("REDIS_LOCK_PYTHON", "target/venv/bin/python");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program/terminal.py");
    let output = Command::new(python)
        .arg(script)
        .env("PROGRAM", env!("CARGO_BIN_EXE_redis-lock"))
        .env("REDIS_LOCK_URL", format!("redis://127.0.0.1:{}", server.port()))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
}
