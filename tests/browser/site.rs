//! The site that `make docs` builds.

use crate::browser::{NO_BROWSER, NO_SITE, is_here, python, root, see};
use std::process::Command;
use std::sync::LazyLock;
use tempfile::TempDir;

/// The site, built once for all tests. The program that builds it fails if a link leads nowhere.
static SITE: LazyLock<TempDir> = LazyLock::new(|| {
    let place = tempfile::tempdir().unwrap();
    let output = Command::new(python()).arg("tools/docs.py").arg(place.path()).current_dir(root()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    place
});

fn see_site(test: &str, what: &str) {
    if is_here(test, NO_BROWSER) && is_here(test, NO_SITE) {
        see("site.mjs", &[SITE.path().to_str().unwrap(), what]);
    }
}

#[test]
fn the_navigation_has_the_pages_in_their_order_under_their_own_names() {
    see_site("site::the_navigation_has_the_pages_in_their_order_under_their_own_names", "navigation");
}

#[test]
fn the_search_for_fence_finds_the_page_about_fencing() {
    see_site("site::the_search_for_fence_finds_the_page_about_fencing", "search");
}

#[test]
fn no_page_is_wider_than_a_phone() {
    see_site("site::no_page_is_wider_than_a_phone", "phone");
}

#[test]
fn the_site_is_dark_where_the_system_is_and_accessible_in_both() {
    see_site("site::the_site_is_dark_where_the_system_is_and_accessible_in_both", "dark");
}
