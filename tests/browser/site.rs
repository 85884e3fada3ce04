//! The site that `make docs` builds.

use crate::browser::{NO_BROWSER, NO_SITE, is_here, python, root, see};
use std::process::Command;

/// Builds it, which fails if a link leads nowhere, and looks at it in five ways. The build takes longer than these.
#[test]
fn the_site_can_be_navigated_and_searched_and_is_readable_on_a_phone_and_in_the_dark() {
    let test = "site::the_site_can_be_navigated_and_searched_and_is_readable_on_a_phone_and_in_the_dark";
    if !(is_here(test, NO_BROWSER) && is_here(test, NO_SITE)) {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let output = Command::new(python()).arg("tools/docs.py").arg(place.path()).current_dir(root()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    for what in ["navigation", "search", "tabs", "phone", "dark"] {
        see("site.mjs", &[place.path().to_str().unwrap(), what]);
    }
}
