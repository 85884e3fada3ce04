//! The table of scenes, and their command line.

use crate::report::Report;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, value_parser};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::path::PathBuf;

/// Servers and their topology, clients, what disturbs both, and the judgement on what the clients saw.
pub struct Scene {
    /// Its name on the command line.
    pub name: &'static str,
    /// What happens in it.
    pub about: &'static str,
    /// How many rounds it has by default.
    pub rounds: &'static str,
    /// What else one can choose.
    pub more: fn() -> Vec<Arg>,
    /// Plays all rounds.
    pub play: fn(&Options, &mut Report),
}

/// What the user of a scene can choose, besides how long it goes on.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// The option's name, without the dashes.
    pub name: &'static str,
    /// What it chooses.
    pub help: &'static str,
    /// What there is. Without the option it is all of these, one after the other.
    pub values: &'static [&'static str],
}

impl Choice {
    /// For the command line.
    pub fn arg(&self) -> Arg {
        Arg::new(self.name).long(self.name).help(self.help).value_parser(self.values.to_vec())
    }
}

/// How long a scene goes on, and what was chosen.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whatever is chosen at random follows from this.
    pub seed: u64,
    /// How many rounds; what a round is, each scene says.
    pub rounds: u64,
    found: ArgMatches,
}

impl Options {
    /// From the command line, which names one of these scenes. Says on standard output how the run can be repeated.
    pub fn read(scenes: &'static [Scene]) -> (&'static Scene, Options) {
        let about = "Breaks things around real servers with the module, and judges what clients saw";
        let mut command = Command::new("faults").about(about).subcommand_required(true);
        for scene in scenes {
            let number = |name: &'static str| Arg::new(name).long(name).value_parser(value_parser!(u64));
            let scene_command = Command::new(scene.name)
                .about(scene.about)
                .arg(number("seed").help("Repeats the choices of the run that had this seed"))
                .arg(number("rounds").help("How many rounds").default_value(scene.rounds))
                .args((scene.more)());
            command = command.subcommand(scene_command);
        }
        let (name, found) = command.get_matches().remove_subcommand().expect("it is required");
        let scene = scenes.iter().find(|scene| scene.name == name).expect("one of them");
        let seed = found.get_one("seed").copied().unwrap_or_else(rand::random);
        let options = Options { seed, rounds: *found.get_one("rounds").expect("has a default"), found };
        println!("faults {name} --seed {seed} --rounds {}{}", options.rounds, options.chosen_text(scene));
        (scene, options)
    }

    fn chosen_text(&self, scene: &Scene) -> String {
        let more = (scene.more)();
        let given = |arg: &&Arg| self.found.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
        let words = more.iter().filter(given).flat_map(|arg| {
            let name = arg.get_id().as_str();
            let values = self.found.get_raw(name).into_iter().flatten();
            values.map(move |value| match value.to_string_lossy() {
                flag if flag == "true" => format!(" --{name}"),
                value => format!(" --{name} {value}"),
            })
        });
        words.collect()
    }

    /// What was chosen: one of these, or all.
    pub fn chosen(&self, choice: &Choice) -> Vec<&'static str> {
        let chosen = self.found.get_one::<String>(choice.name);
        choice.values.iter().copied().filter(|value| chosen.is_none_or(|chosen| chosen == value)).collect()
    }

    /// The values of an option that may be given more than once.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.found.get_many::<String>(name).into_iter().flatten().map(String::as_str).collect()
    }

    /// The value of an option that is a number and has a default.
    pub fn number(&self, name: &str) -> u64 {
        *self.found.get_one(name).expect("has a default")
    }

    /// The file that an option names.
    pub fn path(&self, name: &str) -> Option<&PathBuf> {
        self.found.get_one(name)
    }

    /// Whether an option without a value was given.
    pub fn has(&self, flag: &str) -> bool {
        self.found.get_flag(flag)
    }

    /// The dice of one party: a client, or the thread that injects the faults.
    pub fn dice(&self, number: u64) -> StdRng {
        dice(self.seed, number)
    }
}

/// The dice of one party of a run with this seed.
pub fn dice(seed: u64, number: u64) -> StdRng {
    StdRng::seed_from_u64(seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}
