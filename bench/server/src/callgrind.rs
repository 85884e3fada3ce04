//! Reads what callgrind counted of each instruction, and says to which function of the module each belongs.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// An instruction: the file that it comes from, and its address there.
pub type At = (String, u64);

/// How many instructions ran, and which called what.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// By the instruction itself.
    pub own: BTreeMap<At, i64>,
    /// By the instruction that calls, and the one that is called: all that ran until the return.
    pub calls: BTreeMap<(At, At), i64>,
}

impl Counts {
    /// Reads a file that was written with `--dump-instr=yes` and without compression.
    pub fn parse(text: &str) -> Counts {
        let mut counts = Counts::default();
        let (mut file, mut called_file) = (String::new(), None);
        let mut called = None;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("ob=") {
                name.clone_into(&mut file);
            } else if let Some(name) = line.strip_prefix("cob=") {
                called_file = Some(name.to_owned());
            } else if let Some(call) = line.strip_prefix("calls=") {
                let to = call.split(' ').nth(1).and_then(address);
                called = to.map(|to| (called_file.take().unwrap_or_else(|| file.clone()), to));
            } else if let Some((at, cost)) = counted(line) {
                let at = (file.clone(), at);
                match called.take() {
                    Some(to) => *counts.calls.entry((at, to)).or_default() += cost,
                    None => *counts.own.entry(at).or_default() += cost,
                }
            }
        }
        counts
    }

    /// What these have more than others.
    pub fn less(mut self, others: &Counts) -> Counts {
        for (at, cost) in &others.own {
            *self.own.entry(at.clone()).or_default() -= cost;
        }
        for (call, cost) in &others.calls {
            *self.calls.entry(call.clone()).or_default() -= cost;
        }
        self
    }
}

/// `0x1234 56 7`: an address, a line, a cost.
fn counted(line: &str) -> Option<(u64, i64)> {
    let mut words = line.split(' ');
    let at = address(words.next()?)?;
    Some((at, words.nth(1)?.parse().ok()?))
}

fn address(word: &str) -> Option<u64> {
    u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
}

/// The functions to which instructions of a file belong, as its debug information has it: the innermost one of these
/// crates, into which the compiler may have put others, or else the function itself. None for what has no name, such as
/// the way to a function of another file.
pub fn functions(file: &Path, at: &[u64], crates: &[&str]) -> io::Result<BTreeMap<u64, Option<String>>> {
    let mut reader = Command::new("addr2line")
        .args(["--functions", "--inlines", "--demangle", "--addresses", "--exe"])
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let asked: String = at.iter().map(|at| format!("{at:#x}\n")).collect();
    let mut input = reader.stdin.take().expect("it is piped");
    let writer = std::thread::spawn(move || input.write_all(asked.as_bytes()));
    let output = reader.wait_with_output()?;
    writer.join().expect("writing does not panic")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut found = BTreeMap::new();
    let mut frames: Vec<&str> = Vec::new();
    let mut of = None;
    let mut lines = text.lines();
    let mut keep = |of: Option<u64>, frames: &[&str]| {
        if let Some(of) = of {
            found.insert(of, function(frames, crates));
        }
    };
    while let Some(line) = lines.next() {
        if let Some(at) = address(line) {
            keep(of.replace(at), &frames);
            frames.clear();
        } else {
            frames.push(line);
            // The place in the source.
            lines.next();
        }
    }
    keep(of, &frames);
    Ok(found)
}

/// Of these frames, the innermost first.
fn function(frames: &[&str], crates: &[&str]) -> Option<String> {
    let is_of = |frame: &str, name: &&str| frame.strip_prefix(*name).is_some_and(|rest| rest.starts_with("::"));
    let is_ours = |frame: &str| crates.iter().any(|name| is_of(frame.trim_start_matches(['<', '&']), name));
    let ours = frames.iter().find(|frame| is_ours(frame));
    let name = ours.or(frames.last()).filter(|name| **name != "??")?;
    Some(readable(name, crates))
}

/// Without the name of the first crate, type arguments, hashes and the numbers of closures.
fn readable(name: &str, crates: &[&str]) -> String {
    let name = name.split("::{closure").next().unwrap_or(name).split("::{{closure").next().unwrap_or(name);
    let (mut plain, mut depth) = (String::new(), 0_usize);
    for (at, c) in name.char_indices() {
        let opens = c == '<' && at > 0 && !name[..at].ends_with([' ', '<', '&']);
        match c {
            '<' if opens || depth > 0 => depth += 1,
            '>' if depth > 0 => depth -= 1,
            '<' | '>' => {}
            _ if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    let first = format!("{}::", crates[0]);
    let plain = plain.replace(&first, "").replace("::::", "::");
    let plain = plain.trim_end_matches("::");
    match plain.rsplit_once("::h") {
        Some((whole, hash)) if hash.len() == 16 && hash.bytes().all(|c| c.is_ascii_hexdigit()) => whole.to_owned(),
        _ => plain.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_no_cost_of_its_caller() {
        // What could go wrong: what a function calls counts twice, as its own and as that of the called one.
        let text = "positions: instr line\nevents: Ir\nob=/m\nfn=a\n0x10 3 5\ncob=/s\ncfn=b\ncalls=2 0x99 0\n0x14 3 70\n\
                    0x18 4 1\ncfn=c\ncalls=1 0x30 0\n0x18 4 9\nob=/s\nfn=b\n0x99 0 70\n";
        let counts = Counts::parse(text);
        let at = |file: &str, at| (file.to_owned(), at);
        assert_eq!(counts.own, [(at("/m", 0x10), 5), (at("/m", 0x18), 1), (at("/s", 0x99), 70)].into());
        let calls = [((at("/m", 0x14), at("/s", 0x99)), 70), ((at("/m", 0x18), at("/m", 0x30)), 9)];
        assert_eq!(counts.calls, calls.into());
        let rest = counts.clone().less(&counts);
        assert!(rest.own.values().chain(rest.calls.values()).all(|cost| *cost == 0));
    }

    #[test]
    fn inlined_code_belongs_to_the_innermost_function_of_the_crates() {
        let crates = ["redis_lock", "lock_core"];
        let frames = ["core::mem::replace", "lock_core::model::Holds::put", "redis_lock::command::serve"];
        assert_eq!(function(&frames, &crates).as_deref(), Some("lock_core::model::Holds::put"));
        assert_eq!(function(&frames, &crates[..1]).as_deref(), Some("command::serve"));
        assert_eq!(function(&["core::ptr::drop_in_place"], &crates).as_deref(), Some("core::ptr::drop_in_place"));
        assert_eq!(function(&["redis_lock_client::f", "g"], &crates).as_deref(), Some("g"));
        assert_eq!(function(&["??"], &crates), None);
    }

    #[test]
    fn names_are_shown_without_what_tells_the_compiler_alone() {
        let names = [
            ("redis_lock::a::B<redis_lock::C>::d::{{closure}}", "a::B::d"),
            ("<redis_lock::a::B as redis_lock::c::D>::e", "a::B as c::D::e"),
            ("redis_lock::a::b::h0123456789abcdef", "a::b"),
            ("server_api::guard::guard::<(), redis_lock::x>", "server_api::guard::guard"),
        ];
        for (name, shown) in names {
            assert_eq!(readable(name, &["redis_lock", "server_api"]), shown);
        }
    }
}
