//! Pages that name tests as evidence: each of these tests exists.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The source below these folders, by the path of its module. `tests/server/waiting/mod.rs` is `waiting`.
fn modules() -> BTreeMap<String, String> {
    fn collect(top: &Path, dir: &Path, into: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(top, &path, into);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let name = path.with_extension("").strip_prefix(top).unwrap().to_str().unwrap().replace('/', "::");
                let name = name.strip_suffix("::mod").unwrap_or(&name).to_owned();
                into.entry(name).or_default().push_str(&fs::read_to_string(&path).unwrap());
            }
        }
    }
    let mut modules = BTreeMap::new();
    for folder in ["tests/server", "tests/model", "src", "crates", "faults/src"] {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        collect(&top, &top, &mut modules);
    }
    modules
}

/// The words in backticks of a text that are paths of tests: `waiting::fifo::waiters_are_served_in_order`.
fn named(text: &str) -> Vec<&str> {
    let quoted = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let is_path = |word: &&str| {
        word.contains("::") && word.chars().all(|char| char.is_ascii_alphanumeric() || "_:*".contains(char))
    };
    quoted.filter(is_path).filter(|word| !word.starts_with(char::is_uppercase)).collect()
}

/// True if a path names a module, or a function or a row of a table in one. A star stands for the beginning of a name.
fn exists(path: &str, modules: &BTreeMap<String, String>) -> bool {
    let of = |wanted: &str| {
        let suffix = format!("::{wanted}");
        let wanted = wanted.to_owned();
        modules.iter().filter(move |(name, _)| **name == wanted || name.ends_with(&suffix)).map(|(_, text)| text)
    };
    if of(path).next().is_some() {
        return true;
    }
    let (module, item) = path.rsplit_once("::").unwrap();
    let module = module.strip_suffix("::tests").unwrap_or(module);
    let begins = |text: &str, at: usize| !text[..at].ends_with(|char: char| char.is_alphanumeric() || char == '_');
    let ends = |text: &str, at: usize| !text[at..].starts_with(|char: char| char.is_alphanumeric() || char == '_');
    let (item, is_suffix) = item.strip_prefix('*').map_or((item, false), |item| (item, true));
    of(module).any(|text| {
        text.match_indices(item).any(|(at, _)| (is_suffix || begins(text, at)) && ends(text, at + item.len()))
    })
}

#[test]
fn every_test_that_a_page_names_exists() {
    // What could go wrong: a test is renamed or removed, and a promise has no evidence any more.
    let modules = modules();
    for (page, least) in
        [(include_str!("../../../docs/reliability.md"), 60), (include_str!("../../../docs/internals/waiting.md"), 8)]
    {
        let named = named(page);
        assert!(named.len() >= least, "the page names {} tests", named.len());
        let gone: Vec<&&str> = named.iter().filter(|path| !exists(path, &modules)).collect();
        assert!(gone.is_empty(), "{gone:#?}");
    }
    assert!(!exists("waiting::fifo::who_waits_is_served_in", &modules), "part of a name");
    assert!(!exists("waiting::retry::waiters_are_served_in_order", &modules), "another module");
}
