//! Commands that tests run.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs a command that must succeed, in the root of the repository unless it says another folder: what it printed.
pub(crate) fn passes(command: &mut Command) -> String {
    if command.get_current_dir().is_none() {
        command.current_dir(root());
    }
    let output =
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}: run the tests with make test-clients"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} ended with {}:\n{said}{error}", output.status);
    said
}

/// Copies what git knows, or would add, of a folder of the repository, so that a build leaves nothing there.
pub(crate) fn copy_of(folder: &str, to: &Path) -> PathBuf {
    let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", folder];
    for file in passes(Command::new("git").args(list)).split_terminator('\0') {
        let copy = to.join(file);
        std::fs::create_dir_all(copy.parent().unwrap()).unwrap();
        std::fs::copy(root().join(file), copy).unwrap();
    }
    to.join(folder)
}
