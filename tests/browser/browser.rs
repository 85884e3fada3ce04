//! Runs the scripts beside this file: each opens a page in a browser, and says what it saw.

use std::path::{Path, PathBuf};
use std::process::Command;
use testbed::{file_from, say_not_run};

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn python() -> PathBuf {
    file_from("REDIS_LOCK_PYTHON", "target/venv/bin/python")
}

/// Whether this machine has what `tools/install.sh` brings for these tests. Counts the test as not run if it has not;
/// with CI set that is a failure.
pub(crate) fn is_here(test: &str, file_with_reason: &str) -> bool {
    let Ok(why) = std::fs::read_to_string(root().join(file_with_reason)) else { return true };
    leave_out(test, why.trim(), std::env::var("CI").is_ok_and(|ci| !ci.is_empty()));
    false
}

fn leave_out(test: &str, why: &str, is_ci: bool) {
    assert!(!is_ci, "{why}");
    say_not_run(test, why);
}

#[test]
#[should_panic(expected = "there is no Chromium")]
fn with_ci_set_a_browser_that_is_missing_is_a_failure() {
    // What could go wrong: nobody looks at the pages for a year, and each run is green.
    leave_out("a test", "there is no Chromium", true);
}

/// What tools/install.sh writes when it cannot bring a browser, or what builds the site.
pub(crate) const NO_BROWSER: &str = "target/browser/missing";
pub(crate) const NO_SITE: &str = "target/docs-missing";

/// Runs a script with these arguments. It must find the page as it should be.
pub(crate) fn see(script: &str, args: &[&str]) {
    let path = Path::new("tests/browser").join(script);
    let mut command = Command::new(file_from("REDIS_LOCK_NODE", "target/node/bin/node"));
    let output = command.arg(path).args(args).current_dir(root()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script} {args:?}:\n{said}");
}
