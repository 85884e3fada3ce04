//! What the documents say, compared with the code and the server.

mod compatibility;
mod documents;
mod evidence;
mod quorum;
mod reference;
