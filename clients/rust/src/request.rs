//! The commands of the module, word by word, and what their replies mean. Sends nothing.

use crate::clock::{LEASE, LEASE_MIN};
use crate::error::Error;
use crate::owner::Owner;
use crate::slot::slot_of;
use redis::{Cmd, ToRedisArgs, Value, cmd};
use std::io;
use std::time::Duration;

/// What is asked for: which keys, and on what terms.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) shared: bool,
    pub(crate) limit: Option<u32>,
    pub(crate) take: u32,
    pub(crate) lease: Duration,
    /// How long it is held at most.
    pub(crate) max: Option<Duration>,
    pub(crate) session: Option<Duration>,
    pub(crate) note: Option<String>,
    /// Whether something else on a key is a lock of others.
    pub(crate) old_clients: bool,
}

/// Whether the owner gets or keeps a place in the queue.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Queue<'a> {
    /// No place: it tries once.
    No,
    /// A place for so long after this request, and the channel on which its owner is told to ask again.
    Place(Duration, Option<&'a str>),
    /// The same, and the reply may take so long.
    Wait(Duration, Duration),
}

impl Terms {
    pub(crate) fn new(keys: Vec<Vec<u8>>) -> Terms {
        let (max, session, note) = (None, None, None);
        Terms { keys, shared: false, limit: None, take: 1, lease: LEASE, max, session, note, old_clients: false }
    }

    /// Refuses what the server would refuse, or what cannot be kept alive.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let refused = |why: &str| Err(Error::Refused(why.to_owned()));
        let counts = self.limit.is_some() || self.take != 1;
        match self {
            _ if self.keys.is_empty() => refused("no key is given"),
            _ if self.lease < LEASE_MIN => refused("lease must be at least 1 s"),
            _ if self.session.is_some_and(|session| session < LEASE_MIN) => refused("session must be at least 1 s"),
            _ if self.max.is_some_and(|max| max < self.lasts()) => refused("max must be at least the lease"),
            _ if counts && self.shared => refused("shared and limit exclude each other"),
            _ if counts && self.keys.len() > 1 => refused("limit is for one key"),
            Terms { limit: None, take, .. } if *take != 1 => refused("take needs a limit"),
            Terms { limit: Some(0), .. } => refused("limit must be at least 1"),
            Terms { limit: Some(limit), take, .. } if !(1..=*limit).contains(take) => {
                refused("take must be from 1 to the limit")
            }
            _ => Ok(()),
        }
    }

    /// Refuses what only one server can do.
    pub(crate) fn check_for_quorum(&self) -> Result<(), Error> {
        match self {
            _ if self.limit.is_some() => {
                Err(Error::Refused("a quorum has no limit: it is taken alone or shared".into()))
            }
            _ if self.max.is_some() => Err(Error::Refused("a quorum has no max".into())),
            _ if self.old_clients => Err(Error::Refused("a quorum has no old clients".into())),
            _ if self.keys.len() != 1 => Err(Error::Refused("a quorum takes one key at a time".into())),
            _ => Ok(()),
        }
    }

    /// Where the keys lie in a cluster. All of them lie there, or the server says CROSSSLOT.
    pub(crate) fn slot(&self) -> u16 {
        self.keys.first().map_or(0, |key| slot_of(key))
    }

    /// How long a hold surely lasts after a request that the server granted.
    pub(crate) fn lasts(&self) -> Duration {
        self.session.map_or(self.lease, |session| session.min(self.lease))
    }

    /// Whether others may hold the keys at the same time.
    pub(crate) fn is_for_one(&self) -> bool {
        !self.shared && self.limit.is_none()
    }

    /// Asks for the lock, under a fence that is at least this one. It may be sent twice: `RETRY` lets it count once.
    pub(crate) fn acquire(&self, owner: &Owner, queue: Queue<'_>, floor: Option<u64>) -> Cmd {
        let mut request = match (&self.keys[..], self.limit) {
            ([key], Some(limit)) => {
                let mut share = cmd("LOCK.SHARE");
                share.arg(key).arg(owner.as_str()).arg(limit).arg("TAKE").arg(self.take);
                share
            }
            ([key], None) if self.shared => cmd("LOCK.RW").arg(key).arg(owner.as_str()).arg("READ").take(),
            ([key], None) => cmd("LOCK.ACQUIRE").arg(key).arg(owner.as_str()).take(),
            (keys, _) => cmd("LOCK.MACQUIRE").arg(keys.len()).arg(keys).arg(owner.as_str()).arg(self.mode()).take(),
        };
        self.lease_args(&mut request);
        match queue {
            Queue::No => {}
            Queue::Place(keep, channel) => {
                option(&mut request, "QUEUE", millis(keep));
                if let Some(channel) = channel {
                    option(&mut request, "NOTIFY", channel);
                }
            }
            Queue::Wait(keep, time) => {
                option(&mut request, "BLOCK", millis(time));
                option(&mut request, "QUEUE", millis(keep));
            }
        }
        option(&mut request, "RETRY", u64::from(self.take));
        if let Some(note) = &self.note {
            option(&mut request, "NOTE", note);
        }
        if let Some(floor) = floor {
            option(&mut request, "MINFENCE", floor);
        }
        request
    }

    /// Renews the lease of each key, one request each, since only so the fence can be named.
    pub(crate) fn extend(&self, owner: &Owner, fences: &[u64]) -> Vec<Cmd> {
        self.of_each(owner, fences, |key, owner, fence| {
            let mut request = cmd("LOCK.EXTEND").arg(key).arg(owner).take();
            self.lease_args(&mut request);
            option(&mut request, "FENCE", fence);
            request
        })
    }

    /// Renews the lease of one key, and raises its fence.
    pub(crate) fn raise(&self, owner: &Owner, fence: u64, floor: u64) -> Vec<Cmd> {
        let mut requests = self.extend(owner, &[fence]);
        for request in &mut requests {
            option(request, "MINFENCE", floor);
        }
        requests
    }

    /// Lets what is left of each lease be so long, and no more.
    pub(crate) fn shorten(&self, owner: &Owner, fences: &[u64], left: Duration) -> Vec<Cmd> {
        self.of_each(owner, fences, |key, owner, fence| {
            let mut request = cmd("LOCK.EXTEND").arg(key).arg(owner).take();
            option(&mut request, "PX", millis(left));
            option(&mut request, "FENCE", fence);
            request
        })
    }

    /// The same, and raises the fence of each: what names the former one is void then.
    pub(crate) fn shorten_and_raise(&self, owner: &Owner, fences: &[u64], left: Duration) -> Vec<Cmd> {
        let mut requests = self.shorten(owner, fences, left);
        for (request, fence) in requests.iter_mut().zip(fences) {
            option(request, "MINFENCE", fence + 1);
        }
        requests
    }

    /// Gives each key back.
    pub(crate) fn release(&self, owner: &Owner, fences: &[u64]) -> Vec<Cmd> {
        self.of_each(owner, fences, |key, owner, fence| {
            let mut request = cmd("LOCK.RELEASE").arg(key).arg(owner).take();
            option(&mut request, "FENCE", fence);
            request.arg("ALL").take()
        })
    }

    /// Asks about each key, whether it is held as it was taken.
    pub(crate) fn ask(&self, owner: &Owner, fences: &[u64]) -> Vec<Cmd> {
        self.of_each(owner, fences, |key, owner, fence| check(key, owner, Some(self.mode()), Some(fence)))
    }

    /// Asks whether each is held, under whichever fence.
    pub(crate) fn look(&self, owner: &Owner) -> Vec<Cmd> {
        self.keys.iter().map(|key| check(key, owner.as_str(), Some(self.mode()), None)).collect()
    }

    /// Gives up the place in the queue, and whatever was granted meanwhile.
    pub(crate) fn leave(&self, owner: &Owner) -> Cmd {
        match &self.keys[..] {
            [key] => cmd("LOCK.RELEASE").arg(key).arg(owner.as_str()).arg("ALL").take(),
            keys => cmd("LOCK.MRELEASE").arg(keys.len()).arg(keys).arg(owner.as_str()).arg("ALL").take(),
        }
    }

    /// Runs a command if the first key is held under this fence.
    pub(crate) fn guard(&self, owner: &Owner, fences: &[u64], command: &Cmd) -> Cmd {
        let mut request = cmd("LOCK.GUARD").arg(&self.keys[0]).arg(owner.as_str()).arg(fences[0]).take();
        for arg in command.args_iter() {
            // A cursor stands for the place where SCAN goes on; the first one is 0.
            match arg {
                redis::Arg::Simple(arg) => request.arg(arg),
                _ => request.arg(0),
            };
        }
        request
    }

    fn of_each(&self, owner: &Owner, fences: &[u64], request: impl Fn(&[u8], &str, u64) -> Cmd) -> Vec<Cmd> {
        self.keys.iter().zip(fences).map(|(key, fence)| request(key, owner.as_str(), *fence)).collect()
    }

    fn mode(&self) -> &'static str {
        if self.is_for_one() { "WRITE" } else { "READ" }
    }

    fn lease_args(&self, request: &mut Cmd) {
        option(request, "PX", millis(self.lease));
        if let Some(session) = self.session {
            option(request, "SESSION", millis(session));
        }
    }
}

/// Asks whether an owner holds a key, under a fence if one is given.
pub(crate) fn check(key: &[u8], owner: &str, mode: Option<&str>, fence: Option<u64>) -> Cmd {
    let mut request = cmd("LOCK.CHECK").arg(key).arg(owner).arg(mode).take();
    if let Some(fence) = fence {
        option(&mut request, "FENCE", fence);
    }
    request
}

/// The fences of a grant, one for each key; None when it was not granted.
pub(crate) fn fences_of(reply: Value) -> Result<Option<Vec<u64>>, Error> {
    let fence_of = |reply: &Value| match reply {
        Value::Int(fence) => u64::try_from(*fence).ok().filter(|fence| *fence > 0),
        _ => None,
    };
    let fences = match &reply {
        Value::Nil => return Ok(None),
        Value::Array(fences) => fences.iter().map(fence_of).collect(),
        one => fence_of(one).map(|fence| vec![fence]),
    };
    let no_fence = || io::Error::new(io::ErrorKind::InvalidData, "the reply is no fence: no server with locks?");
    fences.map(Some).ok_or_else(|| Error::Connection(no_fence().into()))
}

/// How long the server keeps a place at most, if an error says that it was asked for longer.
pub(crate) fn queue_max_of(error: &Error) -> Option<Duration> {
    let Error::Server(error) = error else { return None };
    let most = error.detail()?.strip_prefix("QUEUE must be a whole number from 1 to ")?;
    most.parse().ok().map(Duration::from_millis)
}

/// Whether a reply to HELLO is that of a node of a cluster.
pub(crate) fn is_of_cluster(hello: &Value) -> bool {
    field(hello, "mode").is_some_and(|mode| redis::from_redis_value::<String>(mode).is_ok_and(|mode| mode == "cluster"))
}

/// The owners and notes of the holders in a reply of LOCK.INFO. What is not understood is left out.
pub(crate) fn holders_of(reply: Value) -> Vec<(String, Option<String>)> {
    let Some(Value::Array(holders)) = field(&reply, "holders") else { return Vec::new() };
    let text = |holder: &Value, name: &str| field(holder, name).and_then(|value| redis::from_redis_value(value).ok());
    holders.iter().filter_map(|holder| Some((text(holder, "owner")?, text(holder, "note")))).collect()
}

/// A field of a map, which RESP2 sends as a flat array.
fn field(map: &Value, name: &str) -> Option<Value> {
    let fields = redis::from_redis_value::<Vec<(String, Value)>>(map.clone()).ok()?;
    fields.into_iter().find(|(field, _)| field == name).map(|(_, value)| value)
}

/// Whether a reply is something else than null.
pub(crate) fn is_some(reply: &Value) -> bool {
    !matches!(reply, Value::Nil)
}

fn option(request: &mut Cmd, name: &str, value: impl ToRedisArgs) {
    request.arg(name).arg(value);
}

/// Whole milliseconds, at least one: 0 would mean "no limit".
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(request: &Cmd, owner: &Owner) -> String {
        let args = request.args_iter().map(|arg| match arg {
            redis::Arg::Simple(arg) => String::from_utf8_lossy(arg).into_owned(),
            _ => "cursor".to_owned(),
        });
        args.collect::<Vec<_>>().join(" ").replace(owner.as_str(), "me")
    }

    fn terms(keys: &[&str]) -> Terms {
        Terms::new(keys.iter().map(|key| key.as_bytes().to_vec()).collect())
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn requests_are_those_of_the_commands() {
        let owner = Owner::new();
        let one = terms(&["k"]);
        assert_eq!(text(&one.acquire(&owner, Queue::No, None), &owner), "LOCK.ACQUIRE k me PX 30000 RETRY 1");
        let expected = "LOCK.ACQUIRE k me PX 30000 RETRY 1 MINFENCE 7";
        assert_eq!(text(&one.acquire(&owner, Queue::No, Some(7)), &owner), expected);
        let wait = Queue::Wait(10 * SECOND, Duration::from_micros(1));
        let noted =
            Terms { note: Some("night run".to_owned()), session: Some(9 * SECOND), shared: true, ..one.clone() };
        let expected = "LOCK.RW k me READ PX 30000 SESSION 9000 BLOCK 1 QUEUE 10000 RETRY 1 NOTE night run";
        assert_eq!(text(&noted.acquire(&owner, wait, None), &owner), expected);
        let share = Terms { limit: Some(5), take: 2, ..one.clone() };
        let expected = "LOCK.SHARE k me 5 TAKE 2 PX 30000 QUEUE 10000 RETRY 2";
        assert_eq!(text(&share.acquire(&owner, Queue::Place(10 * SECOND, None), None), &owner), expected);
        let expected = "LOCK.ACQUIRE k me PX 30000 QUEUE 30000 NOTIFY there RETRY 1";
        assert_eq!(text(&one.acquire(&owner, Queue::Place(30 * SECOND, Some("there")), None), &owner), expected);
        let two = terms(&["a", "b"]);
        let expected = "LOCK.MACQUIRE 2 a b me WRITE PX 30000 RETRY 1";
        assert_eq!(text(&two.acquire(&owner, Queue::No, None), &owner), expected);

        let texts = |requests: Vec<Cmd>| requests.iter().map(|request| text(request, &owner)).collect::<Vec<_>>();
        let expected = ["LOCK.EXTEND a me PX 30000 FENCE 7", "LOCK.EXTEND b me PX 30000 FENCE 8"];
        assert_eq!(texts(two.extend(&owner, &[7, 8])), expected);
        assert_eq!(texts(noted.extend(&owner, &[7])), ["LOCK.EXTEND k me PX 30000 SESSION 9000 FENCE 7"]);
        assert_eq!(texts(one.raise(&owner, 7, 9)), ["LOCK.EXTEND k me PX 30000 FENCE 7 MINFENCE 9"]);
        assert_eq!(texts(noted.shorten(&owner, &[7], SECOND)), ["LOCK.EXTEND k me PX 1000 FENCE 7"]);
        let raised = texts(noted.shorten_and_raise(&owner, &[7], SECOND));
        assert_eq!(raised, ["LOCK.EXTEND k me PX 1000 FENCE 7 MINFENCE 8"]);
        assert_eq!(texts(one.release(&owner, &[7])), ["LOCK.RELEASE k me FENCE 7 ALL"]);
        assert_eq!(texts(one.ask(&owner, &[7])), ["LOCK.CHECK k me WRITE FENCE 7"]);
        assert_eq!(texts(share.ask(&owner, &[7])), ["LOCK.CHECK k me READ FENCE 7"]);
        assert_eq!(texts(share.look(&owner)), ["LOCK.CHECK k me READ"]);
        assert_eq!(text(&one.leave(&owner), &owner), "LOCK.RELEASE k me ALL");
        assert_eq!(text(&two.leave(&owner), &owner), "LOCK.MRELEASE 2 a b me ALL");
        let set = cmd("SET").arg("{k}data").arg("v").take();
        assert_eq!(text(&one.guard(&owner, &[7], &set), &owner), "LOCK.GUARD k me 7 SET {k}data v");
    }

    #[test]
    fn terms_that_make_no_sense_are_refused() {
        let one = || terms(&["k"]);
        let refused = |terms: Terms| match terms.check() {
            Err(Error::Refused(why)) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(terms(&[])), "no key is given");
        assert_eq!(refused(Terms { lease: Duration::from_millis(999), ..one() }), "lease must be at least 1 s");
        assert_eq!(refused(Terms { session: Some(SECOND / 2), ..one() }), "session must be at least 1 s");
        assert_eq!(refused(Terms { max: Some(29 * SECOND), ..one() }), "max must be at least the lease");
        assert_eq!(refused(Terms { shared: true, limit: Some(3), ..one() }), "shared and limit exclude each other");
        assert_eq!(refused(Terms { limit: Some(3), ..terms(&["a", "b"]) }), "limit is for one key");
        assert_eq!(refused(Terms { take: 2, ..one() }), "take needs a limit");
        assert_eq!(refused(Terms { limit: Some(0), ..one() }), "limit must be at least 1");
        for take in [0, 4] {
            assert_eq!(refused(Terms { limit: Some(3), take, ..one() }), "take must be from 1 to the limit");
        }
        assert!(Terms { limit: Some(3), take: 3, lease: SECOND, ..one() }.check().is_ok());
        assert!(Terms { shared: true, ..terms(&["a", "b"]) }.check().is_ok());
    }

    #[test]
    fn a_session_that_is_shorter_than_the_lease_bounds_it() {
        let session = |seconds| Terms { session: Some(seconds * SECOND), ..terms(&["k"]) }.lasts();
        assert_eq!([session(9), session(90)], [9 * SECOND, 30 * SECOND]);
        assert_eq!(terms(&["k"]).lasts(), 30 * SECOND);
    }

    #[test]
    fn holders_are_read_in_both_protocols() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let flat =
            |note| Value::Array(vec![text("owner"), text("a"), text("ttl_ms"), Value::Int(5), text("note"), note]);
        let holders = vec![flat(Value::Nil), flat(text("night"))];
        let expected = vec![("a".to_owned(), None), ("a".to_owned(), Some("night".to_owned()))];
        let two = Value::Array(vec![text("mode"), text("READ"), text("holders"), Value::Array(holders.clone())]);
        assert_eq!(holders_of(two), expected);
        let maps = holders.into_iter().map(|holder| {
            let Value::Array(flat) = holder else { panic!("made above") };
            Value::Map(flat.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
        });
        assert_eq!(holders_of(Value::Map(vec![(text("holders"), Value::Array(maps.collect()))])), expected);
        assert_eq!(holders_of(Value::Nil), []);
    }

    #[test]
    fn replies_of_one_key_and_of_several_are_read_alike() {
        assert_eq!(fences_of(Value::Nil).expect("null"), None);
        assert_eq!(fences_of(Value::Int(7)).expect("a fence"), Some(vec![7]));
        let two = Value::Array(vec![Value::Int(7), Value::Int(8)]);
        assert_eq!(fences_of(two).expect("fences"), Some(vec![7, 8]));
        let zero = Value::Array(vec![Value::Int(7), Value::Int(0)]);
        for other in [Value::Okay, Value::Int(0), Value::Int(-1), Value::Double(1.5), zero] {
            // To ask again would not help.
            assert!(fences_of(other).is_err_and(|error| !error.is_transient()));
        }
    }
}
