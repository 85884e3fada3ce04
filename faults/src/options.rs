//! The command line, the same for all programs.

use clap::{Arg, ArgMatches, Command, value_parser};
use rand::SeedableRng;
use rand::rngs::StdRng;

/// What the user of a program can choose, besides how long it runs.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// The option's name, without the dashes.
    pub name: &'static str,
    /// What it chooses.
    pub help: &'static str,
    /// What there is. Without the option it is all of these, one after the other.
    pub values: &'static [&'static str],
}

/// How long a program runs, and what it chooses.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whatever is chosen at random follows from this.
    pub seed: u64,
    /// How many rounds; what a round is, each program says.
    pub rounds: u64,
}

impl Options {
    /// From the command line; says on standard output how the run can be repeated.
    pub fn read(program: &'static str, about: &'static str, rounds: &'static str) -> Options {
        let options = Options::of(&command(program, about, rounds).get_matches());
        println!("{program} --seed {} --rounds {}", options.seed, options.rounds);
        options
    }

    /// The same for a program that lets one choose; what was chosen comes along.
    pub fn read_choosing(
        program: &'static str,
        about: &'static str,
        rounds: &'static str,
        choice: &Choice,
    ) -> (Options, Vec<&'static str>) {
        let option = Arg::new(choice.name).long(choice.name).help(choice.help).value_parser(choice.values.to_vec());
        let found = command(program, about, rounds).arg(option).get_matches();
        let options = Options::of(&found);
        let chosen = found.get_one::<String>(choice.name);
        let chosen_text = chosen.map_or(String::new(), |chosen| format!(" --{} {chosen}", choice.name));
        println!("{program} --seed {} --rounds {}{chosen_text}", options.seed, options.rounds);
        let is_chosen = |value: &&str| chosen.is_none_or(|chosen| chosen == value);
        (options, choice.values.iter().copied().filter(is_chosen).collect())
    }

    /// The same for a program with more options of its own, which it reads and prints itself.
    pub fn read_with(
        program: &'static str,
        about: &'static str,
        rounds: &'static str,
        more: impl IntoIterator<Item = Arg>,
    ) -> (Options, ArgMatches) {
        let found = command(program, about, rounds).args(more).get_matches();
        (Options::of(&found), found)
    }

    fn of(found: &ArgMatches) -> Options {
        let seed = found.get_one("seed").copied().unwrap_or_else(rand::random);
        Options { seed, rounds: *found.get_one("rounds").expect("has a default") }
    }

    /// The dice of one party: a client, or the thread that injects the faults.
    pub fn dice(&self, number: u64) -> StdRng {
        StdRng::seed_from_u64(self.seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }
}

fn command(program: &'static str, about: &'static str, rounds: &'static str) -> Command {
    let number = |name: &'static str| Arg::new(name).long(name).value_parser(value_parser!(u64));
    Command::new(program)
        .about(about)
        .arg(number("seed").help("Repeats the choices of the run that had this seed"))
        .arg(number("rounds").help("How many rounds").default_value(rounds))
}
