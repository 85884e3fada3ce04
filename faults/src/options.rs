//! The table of scenes, and their command line.

use crate::report::Report;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::path::PathBuf;

/// Servers and their topology, clients, what disturbs both, and the judgement on what the clients saw.
pub struct Scene {
    pub name: &'static str,
    pub about: &'static str,
    pub rounds: &'static str,
    /// Its variants: the name of the option that chooses some of them, and what that chooses.
    pub variants: (&'static str, &'static str, &'static [&'static str]),
    /// How many variants are played without the option: the first ones.
    pub usual: usize,
    /// What else one can choose.
    pub more: fn() -> Vec<Arg>,
    /// How often a variant is played, at most, until it has seen what it must see to have shown anything: what is under
    /// way at a fault depends on the machine.
    pub attempts: u64,
    pub play: fn(&Options, &mut Report),
}

impl Scene {
    /// A scene without variants, which shows what it must at once.
    pub const PLAIN: Scene = Scene {
        name: "",
        about: "",
        rounds: "1",
        variants: ("", "", &[""]),
        usual: usize::MAX,
        more: Vec::new,
        attempts: 1,
        play: |_, _| (),
    };

    fn arguments(&self) -> Vec<Arg> {
        let (name, help, values) = self.variants;
        let variants = Arg::new(name).long(name).help(help).value_parser(values.to_vec()).action(ArgAction::Append);
        (self.more)().into_iter().chain((!name.is_empty()).then_some(variants)).collect()
    }

    /// Plays the variants that were chosen, one after the other.
    pub fn run(&self, options: &Options, report: &mut Report) {
        let (name, _, values) = self.variants;
        let named = if name.is_empty() { Vec::new() } else { options.all(name) };
        let is_chosen = |number: usize, value: &str| {
            if named.is_empty() { number < self.usual } else { named.contains(&value) }
        };
        for (_, variant) in values.iter().enumerate().filter(|(number, value)| is_chosen(*number, value)) {
            report.turn_to(variant);
            for attempt in 0..self.attempts {
                let seed = options.seed.wrapping_add(attempt << 48);
                (self.play)(&Options { seed, variant, ..options.clone() }, report);
                if report.has_seen_all() || report.violation_count() > 0 {
                    break;
                }
            }
        }
    }
}

/// How long a scene goes on, and what was chosen.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whatever is chosen at random follows from this.
    pub seed: u64,
    /// How many rounds; what a round is, each scene says.
    pub rounds: u64,
    pub variant: &'static str,
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
                .args(scene.arguments());
            command = command.subcommand(scene_command);
        }
        let (name, found) = command.get_matches().remove_subcommand().expect("it is required");
        let scene = scenes.iter().find(|scene| scene.name == name).expect("one of them");
        let seed = found.get_one("seed").copied().unwrap_or_else(rand::random);
        let options = Options { seed, rounds: *found.get_one("rounds").expect("has a default"), variant: "", found };
        println!("faults {name} --seed {seed} --rounds {}{}", options.rounds, options.chosen_text(scene));
        (scene, options)
    }

    fn chosen_text(&self, scene: &Scene) -> String {
        let more = scene.arguments();
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

    /// The values of an option that may be given more than once.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.found.get_many::<String>(name).into_iter().flatten().map(String::as_str).collect()
    }

    /// The value of an option that is a number and has a default.
    pub fn number(&self, name: &str) -> u64 {
        *self.found.get_one(name).expect("has a default")
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_variants_are_played_and_again_if_they_have_shown_too_little() {
        let scene = Scene {
            variants: ("kind", "", &["a", "b", "c"]),
            usual: 2,
            attempts: 3,
            play: |options, report| {
                report.add("plays", 1);
                // The second one shows all at once, the others in their second attempt.
                report.must_reach("plays", if options.variant == "b" { 1 } else { 2 });
            },
            ..Scene::PLAIN
        };
        let plays = |words: &[&str]| {
            let found = Command::new("faults").args(scene.arguments()).get_matches_from(words);
            let mut report = Report::default();
            scene.run(&Options { seed: 1, rounds: 1, variant: "", found }, &mut report);
            ["a", "b", "c"].map(|variant| {
                report.turn_to(variant);
                report.figure("plays")
            })
        };
        assert_eq!(plays(&["faults"]), [2, 1, 0]);
        assert_eq!(plays(&["faults", "--kind", "c"]), [0, 0, 2]);
    }
}
