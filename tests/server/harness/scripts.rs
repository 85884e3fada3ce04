//! Runs the scripts of tests/clients: programs in other languages, as users of client libraries write them.

use std::path::Path;
use std::process::Command;
use testbed::{Server, file_from};

/// Runs a script against this server, which it finds by its port.
pub(crate) fn run_script(server: &Server, program: &Path, script: &str, args: &[&str]) {
    let script = file_from("REDIS_LOCK_CLIENTS", "tests/clients").join(script);
    let output = Command::new(program)
        .arg(&script)
        .arg(server.port().to_string())
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}: run the tests with make test-clients", program.display()));
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{} ended with {}:\n{said}", script.display(), output.status);
    // A script that ended early would end well, too.
    assert!(said.contains("checks passed"), "{} said:\n{said}", script.display());
}
