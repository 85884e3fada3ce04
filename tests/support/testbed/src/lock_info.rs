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

/// What LOCK.INFO says of a waiter.
#[derive(Debug, Clone)]
pub struct WaiterInfo {
    pub owner: Vec<u8>,
    pub mode: String,
    pub waited_ms: i64,
    pub left_ms: Option<i64>,
    /// None while a client waits there.
    pub queue_left_ms: Option<i64>,
    /// None for a place whose owner has no request here now.
    pub client: Option<i64>,
}

/// What LOCK.INFO says of one holder.
#[derive(Debug, Clone)]
pub struct HolderInfo {
    pub owner: Vec<u8>,
    pub mode: String,
    pub reads: i64,
    pub writes: i64,
    pub fence: i64,
    pub ttl_ms: i64,
    pub held_ms: i64,
    /// The owner has not collected it.
    pub offered: bool,
    pub session: Option<i64>,
    pub client: Option<i64>,
    pub note: Option<String>,
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

impl From<Value> for WaiterInfo {
    fn from(value: Value) -> WaiterInfo {
        let fields = Fields::from(value);
        WaiterInfo {
            owner: fields.get("owner"),
            mode: fields.get("mode"),
            waited_ms: fields.get("waited_ms"),
            left_ms: fields.get("left_ms"),
            queue_left_ms: fields.get("queue_left_ms"),
            client: fields.get("client"),
        }
    }
}

impl From<Value> for HolderInfo {
    fn from(value: Value) -> HolderInfo {
        let fields = Fields::from(value);
        HolderInfo {
            owner: fields.get("owner"),
            mode: fields.get("mode"),
            reads: fields.get("reads"),
            writes: fields.get("writes"),
            fence: fields.get("fence"),
            ttl_ms: fields.get("ttl_ms"),
            held_ms: fields.get("held_ms"),
            offered: fields.get("offered"),
            session: fields.get("session"),
            client: fields.get("client"),
            note: fields.get("note"),
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
