//! The client libraries that docs/compatibility.md names: from which version on a helper takes them, and which one the
//! tests have.

use crate::run::root;
use std::fs;

/// A place in the tree where a version stands: a file, and the text before it.
type Place = (&'static str, &'static str);

const POM: &str = "clients/java/pom.xml";
const CRATE: &str = "clients/rust/Cargo.toml";
const LOWEST: &str = "clients/go/tests/lowest.mod";
const GO: &str = "clients/go/tests/go.mod";
const INSTALLED: &str = "tools/install.sh";

/// Each library, where it stands what its helper needs, and where it stands what the tests have.
const LIBRARIES: [(&str, Option<Place>, Place); 9] = [
    ("redis-py", Some(("clients/python/pyproject.toml", "\"redis>=")), (INSTALLED, "\nredis_py=")),
    ("node-redis", None, (INSTALLED, "\nnode_redis=")),
    ("ioredis", None, (INSTALLED, "\nioredis=")),
    ("Lettuce", Some((POM, "<lettuce.version>")), (POM, "<lettuce.version>")),
    ("Jedis", Some((POM, "<jedis.version>")), (POM, "<jedis.version>")),
    ("go-redis", Some((LOWEST, "go-redis/v9 v")), (GO, "go-redis/v9 v")),
    ("rueidis", Some((LOWEST, "rueidis v")), (GO, "rueidis v")),
    ("redigo", Some((LOWEST, "redigo v")), (GO, "redigo v")),
    ("redis-rs", Some((CRATE, "\nredis = { version = \"")), ("Cargo.lock", "\nname = \"redis\"\nversion = \"")),
];

#[test]
fn the_table_of_client_libraries_is_what_the_helpers_need_and_the_tests_have() {
    // What could go wrong: a reader takes a version that no test has seen, or gives up for one that would do.
    let page = fs::read_to_string(root().join("docs/compatibility.md")).unwrap();
    let (_, section) = page.split_once("\n## Client libraries\n").unwrap();
    let rows = section.lines().take_while(|line| !line.starts_with("## ")).filter(|line| line.starts_with("| "));
    let cells = |row: &'_ str| row.split('|').map(|cell| cell.trim().to_owned()).skip(2).take(3).collect();
    let shown: Vec<Vec<String>> = rows.skip(2).map(cells).collect();
    let real = LIBRARIES.map(|(library, needs, tested)| {
        vec![library.to_owned(), needs.map(version).unwrap_or_default(), version(tested)]
    });
    assert_eq!(shown, real);
}

fn version((file, before): Place) -> String {
    let text = fs::read_to_string(root().join(file)).unwrap();
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("{file} has no {before}"));
    let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap();
    rest[..end].trim_end_matches('.').to_owned()
}
