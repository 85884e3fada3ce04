//! Says how the figures in bench/results stand to their bounds, or writes them into the page.

use bench::Outcome;
use bench::page::{PAGE, blocks, filled, machines, top};
use bench::results;
use clap::{Arg, ArgAction, Command};
use std::fs;
use std::process::ExitCode;

fn main() -> ExitCode {
    bench::finish(run())
}

fn run() -> Outcome<()> {
    let options = Command::new("figures")
        .about("How the figures in bench/results stand to their bounds")
        .arg(Arg::new("write").long("write").action(ArgAction::SetTrue).help("Write them into the page instead"))
        .get_matches();
    let machines = machines(&results::folder())?;
    if !options.get_flag("write") {
        let newest = machines
            .iter()
            .find(|machine| machine.has_figures())
            .ok_or("bench/results has no figures: run make bench")?;
        println!("{}", newest.verdicts());
        return Ok(());
    }
    let path = top().join(PAGE);
    fs::write(&path, filled(&fs::read_to_string(&path)?, &blocks(&machines))?)?;
    println!("figures: written to {PAGE}");
    Ok(())
}
