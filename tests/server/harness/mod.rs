//! What the tests share: connections, transcripts, payloads, and which servers cannot run which tests.

pub(crate) mod connection;
pub(crate) mod dice;
pub(crate) mod hold_back;
pub(crate) mod lapses;
pub(crate) mod payload;
pub(crate) mod picture;
pub(crate) mod scene;
pub(crate) mod scripts;
pub(crate) mod servers;
pub(crate) mod state;
pub(crate) mod stream;
pub(crate) mod texts;
pub(crate) mod transcript;
pub(crate) mod turn;
