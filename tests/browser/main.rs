//! What people see in a browser: the page of examples/job-queue. A real browser opens it, without a window.
//!
//! A machine without one counts the tests as not run. `tools/install.sh browser` brings Chromium where it can.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod browser;
mod job_queue;
