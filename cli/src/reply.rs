//! What a server replied, as JSON.

use crate::time;
use redis_lock_client::redis::Value;
use serde_json::Value as Json;
use std::time::Duration;

/// The same with the same names. Bytes that are no UTF-8 become U+FFFD.
pub(crate) fn json(reply: Value) -> Json {
    match reply {
        Value::Int(number) => number.into(),
        Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => text.into(),
        Value::Array(items) => items.into_iter().map(json).collect(),
        Value::Map(fields) => fields.into_iter().map(|(name, value)| (text(&json(name)), json(value))).collect(),
        _ => Json::Null,
    }
}

/// A value for people: `-` stands for none.
pub(crate) fn text(value: &Json) -> String {
    match value {
        Json::Null => "-".to_owned(),
        Json::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A time of a server in milliseconds, for people.
pub(crate) fn time_of(ms: &Json) -> String {
    ms.as_u64().map_or_else(|| text(ms), |ms| time::text(Duration::from_millis(ms)))
}
