//! Which functions a server's instructions are in: what callgrind has counted, without what their callees take.

use std::collections::{BTreeMap, HashMap};

/// A function: the file of the program or the library that it is in, and its name.
pub type Function = (String, String);

/// What was counted of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Its own instructions, without those of the functions that it calls.
    pub instructions: f64,
    pub calls: f64,
}

/// What was counted of all functions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile(pub BTreeMap<Function, Cost>);

impl Profile {
    /// Of a file that callgrind has written.
    #[must_use]
    pub fn parse(text: &str) -> Profile {
        let mut names: HashMap<(&str, &str), &str> = HashMap::new();
        // A name is written once, with a number; later the number stands for it.
        let mut name_of = |kind: &'static str, value| match str::split_once(value, ' ') {
            Some((number, name)) => {
                names.insert((kind, number), name);
                name
            }
            None => names.get(&(kind, value)).copied().unwrap_or(value),
        };
        let mut found: BTreeMap<Function, Cost> = BTreeMap::new();
        let (mut object, mut function) = ("", "");
        let (mut callee_object, mut callee) = (None, "");
        // The line behind a call is what the callee took, not what the caller took itself.
        let mut is_of_callee = false;
        for line in text.lines() {
            match line.split_once('=') {
                Some(("ob", value)) => object = name_of("ob", value),
                Some(("fn", value)) => function = name_of("fn", value),
                Some(("cob", value)) => callee_object = Some(name_of("ob", value)),
                Some(("cfn", value)) => callee = name_of("fn", value),
                Some(("calls", value)) => {
                    let count: f64 = value.split(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0.0);
                    let of = (file_name(callee_object.take().unwrap_or(object)), callee.to_owned());
                    found.entry(of).or_default().calls += count;
                    is_of_callee = true;
                }
                Some(_) => {}
                None if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) => {
                    let cost = line.split(' ').nth(1).and_then(|cost| cost.parse::<f64>().ok()).unwrap_or(0.0);
                    if !std::mem::take(&mut is_of_callee) {
                        found.entry((file_name(object), function.to_owned())).or_default().instructions += cost;
                    }
                }
                None => {}
            }
        }
        Profile(found)
    }

    /// What is counted here and not there, for each of so many times.
    #[must_use]
    pub fn since(&self, before: &Profile, times: f64) -> Profile {
        let each = |(function, cost): (&Function, &Cost)| {
            let before = before.0.get(function).copied().unwrap_or_default();
            let instructions = (cost.instructions - before.instructions) / times;
            (function.clone(), Cost { instructions, calls: (cost.calls - before.calls) / times })
        };
        Profile(self.0.iter().map(each).collect())
    }

    /// What all functions took that are chosen.
    pub fn sum(&self, chosen: impl Fn(&str, &str) -> bool) -> Cost {
        let mut sum = Cost::default();
        for ((object, function), cost) in &self.0 {
            if chosen(object, function) {
                sum.instructions += cost.instructions;
                sum.calls += cost.calls;
            }
        }
        sum
    }
}

fn file_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}
