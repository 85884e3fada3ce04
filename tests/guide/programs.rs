//! The programs in Python of docs/guide/frameworks.md and docs/guide/stores.md, each with what it needs: the library,
//! and a store or its stand-in. programs/programs.py runs them.

use crate::library::{python, root};
use std::fs;
use std::process::Command;
use testbed::{Server, say_not_run};

const FRAMEWORKS: &str = include_str!("../../docs/guide/frameworks.md");
const STORES: &str = include_str!("../../docs/guide/stores.md");

/// The program below a heading of a page.
fn program(page: &'static str, heading: &str) -> &'static str {
    let below = page.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("no heading {heading}")).1;
    let section = below.split("\n## ").next().unwrap();
    let block = section.split_once("\n```python\n").unwrap_or_else(|| panic!("{heading} has no program")).1;
    block.split("\n```").next().unwrap()
}

fn check(test: &str, page: &'static str, heading: &str) {
    let (server, folder) = (Server::new(), tempfile::tempdir().unwrap());
    let file = folder.path().join("program.py");
    let port = server.port().to_string();
    fs::write(&file, program(page, heading).replace("6379", &port)).unwrap();
    let mut command = Command::new(python());
    command.arg("tests/guide/programs/programs.py").arg(heading.to_lowercase()).arg(&file).current_dir(root());
    command.env("REDIS_LOCK_PORT", &port).env("PYTHONPATH", root().join("clients/python"));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => assert!(server.connect().info_number("lock", "lock_granted") > 0, "{heading} has taken no lock"),
        Some(77) => say_not_run(test, said.lines().last().unwrap_or_default()),
        _ => panic!("{heading}: {}:\n{said}", output.status),
    }
}

#[test]
fn a_task_of_celery_is_tried_again_while_others_hold_the_lock() {
    check("programs::a_task_of_celery_is_tried_again_while_others_hold_the_lock", FRAMEWORKS, "Celery");
}

#[test]
fn a_view_of_django_answers_while_others_hold_the_lock() {
    check("programs::a_view_of_django_answers_while_others_hold_the_lock", FRAMEWORKS, "Django");
}

#[test]
fn a_second_beat_of_redbeat_waits_in_the_queue() {
    check("programs::a_second_beat_of_redbeat_waits_in_the_queue", FRAMEWORKS, "RedBeat");
}

#[test]
fn the_lock_of_django_redis_is_the_helpers() {
    check("programs::the_lock_of_django_redis_is_the_helpers", FRAMEWORKS, "django-redis");
}

#[test]
fn postgresql_refuses_a_late_write() {
    check("programs::postgresql_refuses_a_late_write", STORES, "PostgreSQL");
}

#[test]
fn mariadb_refuses_a_late_write() {
    check("programs::mariadb_refuses_a_late_write", STORES, "MariaDB");
}

#[test]
fn s3_refuses_a_late_write() {
    check("programs::s3_refuses_a_late_write", STORES, "S3");
}
