//! What the documents say, compared with the code and the server.

mod compatibility;
mod documents;
mod evidence;
mod examples;
mod quorum;
mod reference;
