//! Scenes in which something breaks around real servers, while clients lock and unlock on them. Each judges the
//! clients' own histories. `faults SCENE --help` says what one can choose.
//!
//! A run is a number of rounds of one scene with one seed; it prints both, then its figures. It fails if it has found a
//! violation, or if it has not seen what it must see to have shown anything.

mod agents;
mod audit;
mod breaks;
mod caller;
mod chain;
mod claims;
mod client;
mod crowd;
mod history;
mod judge;
mod linear;
mod look;
mod news;
mod nodes;
mod options;
mod places;
mod report;
mod requester;
mod resource;
mod scenes {
    pub mod clock;
    pub mod cluster;
    pub mod crash;
    pub mod failover;
    pub mod history;
    pub mod limits;
    pub mod partition;
    pub mod quorum;
    pub mod resource;
    pub mod soak;
    pub mod stream;
    pub mod worst_step;
}
mod views;
mod wire;
mod witness;
mod worker;

use options::{Options, Scene};
use report::Report;
use std::process::ExitCode;

const SCENES: &[Scene] = &[
    scenes::clock::SCENE,
    scenes::cluster::SCENE,
    scenes::crash::SCENE,
    scenes::failover::SCENE,
    scenes::history::SCENE,
    scenes::limits::SCENE,
    scenes::partition::SCENE,
    scenes::quorum::SCENE,
    scenes::resource::SCENE,
    scenes::soak::SCENE,
    scenes::stream::SCENE,
    scenes::worst_step::SCENE,
];

/// What a process does, from its other arguments.
type Process = fn(&[String]);

/// What a process of clients does that a scene has started: its first argument says it.
const CLIENTS: &[(&str, Process)] = &[
    (scenes::history::CLIENTS_OF, scenes::history::clients),
    (client::RUST, client::rust),
    (client::QUORUM, client::quorum),
    (client::PROGRAM, client::starter),
    (client::INSIDE, client::inside),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some((first, words)) = words.split_first()
        && let Some((_, clients)) = CLIENTS.iter().find(|(name, _)| name == first)
    {
        clients(words);
        return ExitCode::SUCCESS;
    }
    let (scene, options) = Options::read(SCENES);
    let mut report = Report::default();
    scene.run(&options, &mut report);
    report.finish()
}
