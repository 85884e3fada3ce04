//! What many tests begin with: a server, a transcript on it, and a connection that looks. What else a topic asks of it
//! stands with its tests.

use super::connection::Reply;
use super::transcript::{Row, Stage};
use testbed::{Client, Server};

/// A server, a transcript on it, and a connection that looks.
pub(crate) struct Scene<'s> {
    pub(crate) stage: Stage<'s>,
    pub(crate) conn: Client,
}

impl Scene<'_> {
    /// On a server of its own.
    pub(crate) fn alone() -> Scene<'static> {
        Scene::owning(Server::new())
    }

    /// On a server of its own that was set up.
    pub(crate) fn owning(server: Server) -> Scene<'static> {
        Scene::with(Stage::owning(server))
    }

    pub(crate) fn new(server: &Server) -> Scene<'_> {
        Scene::with(Stage::new(server))
    }

    fn with(stage: Stage<'_>) -> Scene<'_> {
        Scene { conn: stage.connect(), stage }
    }

    /// Plays rows.
    #[track_caller]
    pub(crate) fn play(&mut self, rows: &[Row]) {
        self.stage.play(rows);
    }

    /// A field of the first holder of `k`, or of its first waiter.
    pub(crate) fn of(&mut self, rows: &str, field: &str) -> Reply {
        self.stage.ask(&["LOCK.INFO", "k"]).field(rows).items().remove(0).field(field)
    }
}
