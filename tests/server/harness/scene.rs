//! What many tests begin with: a server, a transcript on it, and a connection that looks. What else a topic asks of it
//! stands with its tests.

use super::transcript::{Row, Stage};
use testbed::{Client, Server};

/// A server, a transcript on it, and a connection that looks.
pub(crate) struct Scene<'s> {
    pub(crate) stage: Stage<'s>,
    pub(crate) conn: Client,
}

impl Scene<'_> {
    pub(crate) fn new(server: &Server) -> Scene<'_> {
        Scene { stage: Stage::new(server), conn: server.connect() }
    }

    /// Plays rows.
    #[track_caller]
    pub(crate) fn play(&mut self, rows: &[Row]) {
        self.stage.play(rows);
    }
}
