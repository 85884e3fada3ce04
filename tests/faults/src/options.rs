//! The command line, the same for all programs.

use clap::{Arg, Command, value_parser};
use rand::SeedableRng;
use rand::rngs::StdRng;

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
        let number = |name: &'static str| Arg::new(name).long(name).value_parser(value_parser!(u64));
        let found = Command::new(program)
            .about(about)
            .arg(number("seed").help("Repeats the choices of the run that had this seed"))
            .arg(number("rounds").help("How many rounds").default_value(rounds))
            .get_matches();
        let seed = found.get_one("seed").copied().unwrap_or_else(rand::random);
        let options = Options { seed, rounds: *found.get_one("rounds").expect("has a default") };
        println!("{program} --seed {} --rounds {}", options.seed, options.rounds);
        options
    }

    /// The dice of one who chooses: a client, or the one who breaks things.
    pub fn dice(&self, number: u64) -> StdRng {
        StdRng::seed_from_u64(self.seed.wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }
}
