//! The reply of LOCK.INFO, in whichever protocol.

use redis::{FromRedisValue, Value};

/// What LOCK.INFO says.
#[derive(Debug, Clone)]
pub struct LockInfo {
    /// Empty when it is only waited for.
    pub mode: String,
    /// 0 then.
    pub fence: i64,
    /// The read counts of all holders.
    pub shares: i64,
    pub holding: usize,
    pub holders: Vec<HolderInfo>,
    pub waiting: usize,
    pub waiters: Vec<WaiterInfo>,
}

/// Rows of LOCK.INFO, by the names of their fields.
macro_rules! rows {
    ($($(#[$about:meta])* $name:ident { $($(#[$what:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$about])*
        #[derive(Debug, Clone)]
        pub struct $name {
            $($(#[$what])* pub $field: $type,)*
        }

        impl From<Value> for $name {
            fn from(value: Value) -> $name {
                let fields = Fields::from(value);
                $name { $($field: fields.get(stringify!($field)),)* }
            }
        }
    )*};
}

rows! {
    /// What LOCK.INFO says of a waiter.
    WaiterInfo {
        owner: Vec<u8>,
        mode: String,
        waited_ms: i64,
        left_ms: Option<i64>,
        /// None while a client waits there.
        queue_left_ms: Option<i64>,
        /// None for a place whose owner has no request here now.
        client: Option<i64>,
    }
    /// What LOCK.INFO says of one holder.
    HolderInfo {
        owner: Vec<u8>,
        mode: String,
        reads: i64,
        writes: i64,
        fence: i64,
        ttl_ms: i64,
        held_ms: i64,
        /// The owner has not collected it.
        offered: bool,
        session: Option<i64>,
        client: Option<i64>,
        note: Option<String>,
    }
}

impl From<Value> for LockInfo {
    fn from(value: Value) -> LockInfo {
        let fields = Fields::from(value);
        let Value::Array(holders) = fields.value("holders") else { panic!("holders is an array") };
        let Value::Array(waiters) = fields.value("waiters") else { panic!("waiters is an array") };
        LockInfo {
            mode: fields.get::<Option<String>>("mode").unwrap_or_default(),
            fence: fields.get::<Option<i64>>("fence").unwrap_or_default(),
            shares: fields.get("shares"),
            holding: fields.get("holding"),
            holders: holders.into_iter().map(HolderInfo::from).collect(),
            waiting: fields.get("waiting"),
            waiters: waiters.into_iter().map(WaiterInfo::from).collect(),
        }
    }
}

/// The pairs of a map, which RESP2 sends as a flat array.
pub struct Fields(Vec<(String, Value)>);

impl From<Value> for Fields {
    fn from(value: Value) -> Fields {
        let pairs: Vec<(Value, Value)> = match value {
            Value::Map(pairs) => pairs,
            Value::Array(flat) => flat.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect(),
            other => panic!("neither map nor array: {other:?}"),
        };
        Fields(pairs.into_iter().map(|(name, value)| (redis::from_redis_value(name).unwrap(), value)).collect())
    }
}

impl Fields {
    pub fn names(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| name.as_str()).collect()
    }

    pub fn value(&self, name: &str) -> Value {
        let found = self.0.iter().find(|(field, _)| field == name);
        found.unwrap_or_else(|| panic!("no field {name} in {:?}", self.names())).1.clone()
    }

    pub fn get<T: FromRedisValue>(&self, name: &str) -> T {
        redis::from_redis_value(self.value(name)).unwrap()
    }
}
