//! What people see in a browser: the page of examples/job-queue, and the site of `make docs`. A real browser opens
//! them, without a window.
//!
//! A machine without one counts the tests as not run. `tools/install.sh browser docs` brings Chromium, and what builds
//! the site, where it can.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod browser;
mod job_queue;
mod site;
