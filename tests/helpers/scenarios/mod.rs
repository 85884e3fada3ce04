//! The scenarios, each written once for all languages.

pub(crate) mod cancelling;
pub(crate) mod leaving_nothing;
pub(crate) mod losing;
pub(crate) mod moving;
pub(crate) mod notified;
pub(crate) mod taking;
pub(crate) mod waiting;
