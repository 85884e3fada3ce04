//! The locks of a server in memory: holds, queues and leases as the module has them. Sends nothing.

use crate::clock::Moment;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

/// How long a place outlives its connection.
const AWAY: Duration = Duration::from_secs(2);

pub(super) type Bytes = Vec<u8>;

/// A reply, or a message of a subscription.
#[derive(Debug, Clone)]
pub(super) enum Reply {
    Null,
    Int(u64),
    Text(Bytes),
    Status(&'static str),
    Error(String),
    Array(Vec<Reply>),
    Map(Vec<(&'static str, Reply)>),
    Push(Vec<Reply>),
}

impl Reply {
    pub(super) fn text(text: &str) -> Reply {
        Reply::Text(text.as_bytes().to_vec())
    }

    pub(super) fn int(number: Option<u64>) -> Reply {
        number.map_or(Reply::Null, Reply::Int)
    }

    fn bytes(bytes: Option<&Bytes>) -> Reply {
        bytes.map_or(Reply::Null, |bytes| Reply::Text(bytes.clone()))
    }
}

/// A request that acquires.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) keys: Vec<Bytes>,
    pub(super) owner: Bytes,
    pub(super) writes: bool,
    /// Of all shares; none for a reader.
    pub(super) limit: Option<u64>,
    pub(super) take: u64,
    pub(super) lease: Duration,
    /// Zero for as long as it takes.
    pub(super) block: Option<Duration>,
    pub(super) queue: Option<Duration>,
    pub(super) channel: Option<Bytes>,
    pub(super) retry: Option<u64>,
    pub(super) note: Option<Bytes>,
    /// The fence is to be this one or a higher one.
    pub(super) least: u64,
    pub(super) several: bool,
    /// The connection that asks.
    pub(super) session: u64,
}

impl Ask {
    fn reply(&self, mut fences: Vec<u64>) -> Reply {
        match (self.several, fences.pop()) {
            (false, Some(fence)) => Reply::Int(fence),
            (_, last) => Reply::Array(fences.into_iter().chain(last).map(Reply::Int).collect()),
        }
    }

    fn overlaps(&self, other: &Ask) -> bool {
        self.keys.iter().any(|key| other.keys.contains(key))
    }
}

/// What one owner has of one key.
#[derive(Debug)]
pub(super) struct Hold {
    ask: Ask,
    pub(super) fence: u64,
    until: Option<Moment>,
    reads: u64,
    pub(super) writes: u64,
    offered: bool,
    since: Moment,
}

/// An owner that waits, for all of its keys.
#[derive(Debug)]
struct Place {
    ask: Ask,
    since: Moment,
    /// Whether a client waits there.
    parked: bool,
    /// When the client, or without one the place, has waited long enough.
    until: Option<Moment>,
}

/// All locks of a server.
#[derive(Debug, Default)]
pub(super) struct Locks {
    fence: u64,
    holds: BTreeMap<Bytes, Vec<Hold>>,
    /// In the order in which they came.
    places: Vec<Place>,
    /// Replies that come later, by connection, and messages, by channel.
    pub(super) answers: Vec<(u64, Reply)>,
    pub(super) messages: Vec<(Bytes, Bytes)>,
    pub(super) notified: u64,
    pub(super) queued: u64,
}

impl Locks {
    /// The reply; None if it comes later.
    pub(super) fn acquire(&mut self, ask: Ask) -> Result<Option<Reply>, String> {
        let place = self.place_of(&ask)?;
        if ask.keys.iter().all(|key| self.has(key, &ask)) {
            let fences = ask.keys.iter().map(|key| self.again(key, &ask)).collect();
            return Ok(Some(ask.reply(fences)));
        }
        if self.is_free(&ask, place) {
            if let Some(place) = place {
                self.places.remove(place);
            }
            let fences = ask.keys.iter().map(|key| self.grant(key, &ask, None)).collect();
            self.serve();
            return Ok(Some(ask.reply(fences)));
        }
        if ask.block.is_none() && ask.queue.is_none() {
            return Ok(Some(Reply::Null));
        }
        if let Some(cycle) = self.cycle(&ask) {
            let names: Vec<_> = cycle.iter().map(|name| String::from_utf8_lossy(name)).collect();
            return Err(format!("DEADLOCK {}", names.join(" -> ")));
        }
        let place = place.unwrap_or_else(|| {
            let place = Place { ask: ask.clone(), since: Moment::now(), parked: false, until: None };
            self.places.push(place);
            self.queued += 1;
            self.places.len() - 1
        });
        let blocks = ask.block.is_some();
        self.renew(place, ask);
        Ok(if blocks { None } else { Some(Reply::Null) })
    }

    fn renew(&mut self, place: usize, ask: Ask) {
        let place = &mut self.places[place];
        match ask.block {
            Some(block) => {
                if place.parked {
                    let text = "UNBLOCKED lock wait ended: a later request of this owner waits there now";
                    let keeps = place.ask.queue.is_some() || ask.queue.is_some();
                    let reply = if keeps { Reply::Error(text.to_owned()) } else { Reply::Null };
                    self.answers.push((place.ask.session, reply));
                }
                place.parked = true;
                place.until = (!block.is_zero()).then(|| Moment::now() + block);
                place.ask = ask;
            }
            None if place.parked => (place.ask.queue, place.ask.channel) = (ask.queue, ask.channel),
            None => {
                place.until = Some(Moment::now() + ask.queue.unwrap_or_default());
                place.ask = ask;
            }
        }
    }

    pub(super) fn extend(
        &mut self,
        key: &Bytes,
        owner: &Bytes,
        fence: Option<u64>,
        lease: Duration,
        least: u64,
        note: Option<Bytes>,
    ) -> Reply {
        if self.held(key, owner, fence).is_none() {
            return Reply::Null;
        }
        let raised =
            self.held(key, owner, fence).is_some_and(|hold| hold.fence < least).then(|| self.next_fence(least));
        let Some(hold) = self.held(key, owner, fence) else { return Reply::Null };
        hold.fence = raised.unwrap_or(hold.fence);
        hold.until = Some(Moment::now() + lease);
        if note.is_some() {
            hold.ask.note = note.filter(|note| !note.is_empty());
        }
        Reply::Int(hold.fence)
    }

    pub(super) fn release(&mut self, key: &Bytes, owner: &Bytes, all: bool, fence: Option<u64>) -> Reply {
        if fence.is_none() {
            self.leave(key, owner);
        }
        let hold = self.holds.get_mut(key).and_then(|holds| holds.iter_mut().find(|hold| hold.ask.owner == *owner));
        let mut left = None;
        if let Some(hold) = hold.filter(|hold| fence.is_none_or(|fence| fence == hold.fence)) {
            let count = if hold.writes > 0 { &mut hold.writes } else { &mut hold.reads };
            *count = if all || hold.offered { 0 } else { *count - 1 };
            left = Some(*count);
            let keys = if hold.offered { hold.ask.keys.clone() } else { vec![key.clone()] };
            if left == Some(0) {
                self.end(&keys, owner);
            }
        }
        self.serve();
        Reply::int(left)
    }

    fn leave(&mut self, key: &Bytes, owner: &Bytes) {
        let answers = &mut self.answers;
        self.places.retain(|place| {
            let stays = place.ask.owner != *owner || !place.ask.keys.contains(key);
            if !stays && place.parked {
                answers.push((place.ask.session, Reply::Null));
            }
            stays
        });
    }

    /// The hold of which the owner knows, if it has this fence.
    pub(super) fn held(&mut self, key: &Bytes, owner: &Bytes, fence: Option<u64>) -> Option<&mut Hold> {
        let is_it = |hold: &&mut Hold| {
            hold.ask.owner == *owner && !hold.offered && fence.is_none_or(|fence| fence == hold.fence)
        };
        self.holds.get_mut(key)?.iter_mut().find(is_it)
    }

    pub(super) fn is_held(&self, key: &Bytes) -> bool {
        self.holds.contains_key(key)
    }

    /// Ends all holds of a key, and says how many there were.
    pub(super) fn clear(&mut self, key: &Bytes) -> u64 {
        let count = self.holds.remove(key).map_or(0, |holds| holds.len() as u64);
        self.serve();
        count
    }

    /// All leases are over.
    pub(super) fn expire(&mut self) {
        self.holds.clear();
        self.serve();
    }

    pub(super) fn info(&self, key: &Bytes) -> Reply {
        let holds = self.holds.get(key).map_or(&[][..], Vec::as_slice);
        let places: Vec<&Place> = self.places.iter().filter(|place| place.ask.keys.contains(key)).collect();
        if holds.is_empty() && places.is_empty() {
            return Reply::Null;
        }
        let mode = |writes| Reply::text(if writes { "write" } else { "read" });
        let is_written = holds.iter().any(|hold| hold.writes > 0);
        Reply::Map(vec![
            ("mode", if holds.is_empty() { Reply::Null } else { mode(is_written) }),
            ("fence", Reply::int(holds.iter().map(|hold| hold.fence).max())),
            ("shares", Reply::Int(holds.iter().map(|hold| hold.reads).sum())),
            ("holding", Reply::Int(holds.len() as u64)),
            ("holders", Reply::Array(holds.iter().map(shown_hold).collect())),
            ("waiting", Reply::Int(places.len() as u64)),
            ("waiters", Reply::Array(places.into_iter().map(shown_place).collect())),
            ("reserved_by", Reply::Null),
        ])
    }

    fn place_of(&self, ask: &Ask) -> Result<Option<usize>, String> {
        let found = self.places.iter().position(|place| place.ask.owner == ask.owner && place.ask.overlaps(ask));
        match found.map(|found| &self.places[found].ask) {
            Some(there) if there.keys != ask.keys => {
                Err("ERR owner stands there with other keys: release that first".to_owned())
            }
            Some(there) if (there.writes, there.take) != (ask.writes, ask.take) => {
                Err("ERR owner stands there in another mode: release that first".to_owned())
            }
            Some(_) if ask.retry.is_none() && ask.queue.is_none() => {
                Err("ERR owner already waits there: use RETRY".to_owned())
            }
            _ => Ok(found),
        }
    }

    /// Whether the owner has what it asks for, or may have more of it at once.
    fn has(&self, key: &Bytes, ask: &Ask) -> bool {
        let holds = self.holds.get(key).map_or(&[][..], Vec::as_slice);
        let Some(hold) = holds.iter().find(|hold| hold.ask.owner == ask.owner) else { return false };
        if ask.writes || hold.writes > 0 {
            return hold.writes > 0;
        }
        hold.offered || ask.queue.is_some() || ask.retry.unwrap_or(0) <= hold.reads || self.fits(key, ask)
    }

    fn again(&mut self, key: &Bytes, ask: &Ask) -> u64 {
        let next = self.next_fence(ask.least);
        let holds = self.holds.get_mut(key).into_iter().flatten();
        let Some(hold) = holds.into_iter().find(|hold| hold.ask.owner == ask.owner) else { return 0 };
        let is_once = ask.queue.is_some() || hold.offered;
        let retry = ask.retry.or(is_once.then_some(ask.take));
        let (count, more) = if ask.writes { (&mut hold.writes, 1) } else { (&mut hold.reads, ask.take) };
        *count = retry.map_or(*count + more, |retry| retry.max(*count));
        let end = Moment::now() + ask.lease;
        hold.until = if hold.offered { Some(end) } else { hold.until.map(|until| until.max(end)) };
        hold.offered = false;
        let note = ask.note.clone().or_else(|| hold.ask.note.clone());
        hold.ask = Ask { note, ..ask.clone() };
        if ask.least > hold.fence {
            hold.fence = next;
        }
        hold.fence
    }

    /// Whether the holders of this key let it in.
    fn fits(&self, key: &Bytes, ask: &Ask) -> bool {
        let holds = self.holds.get(key).map_or(&[][..], Vec::as_slice);
        let others: Vec<&Hold> = holds.iter().filter(|hold| hold.ask.owner != ask.owner).collect();
        if ask.writes || others.iter().any(|hold| hold.writes > 0) {
            return others.is_empty();
        }
        let taken: u64 = others.iter().map(|hold| hold.reads).sum();
        ask.limit.is_none_or(|limit| taken + ask.take <= limit)
    }

    /// Whether no holder is in the way, and nobody who came before.
    fn is_free(&self, ask: &Ask, place: Option<usize>) -> bool {
        let before = &self.places[..place.unwrap_or(self.places.len())];
        !before.iter().any(|earlier| earlier.ask.overlaps(ask)) && ask.keys.iter().all(|key| self.fits(key, ask))
    }

    /// The owners and keys between this request and itself, if it would wait for its own owner.
    fn cycle(&self, ask: &Ask) -> Option<Vec<Bytes>> {
        let mut paths: Vec<Vec<Bytes>> = ask.keys.iter().map(|key| vec![ask.owner.clone(), key.clone()]).collect();
        let mut seen = BTreeSet::new();
        while let Some(path) = paths.pop() {
            for hold in path.last().and_then(|key| self.holds.get(key)).into_iter().flatten() {
                let owner = &hold.ask.owner;
                let with = |more: &[&Bytes]| path.iter().chain(more.iter().copied()).cloned().collect::<Vec<_>>();
                // More than the owner and its key.
                if *owner == ask.owner && path.len() > 2 {
                    return Some(with(&[owner]));
                }
                if *owner != ask.owner && seen.insert(owner.clone()) {
                    let waits = self.places.iter().filter(|place| place.ask.owner == *owner);
                    paths.extend(waits.flat_map(|place| &place.ask.keys).map(|key| with(&[owner, key])));
                }
            }
        }
        None
    }

    fn next_fence(&mut self, least: u64) -> u64 {
        let wall = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| u64::try_from(time.as_micros()).unwrap_or(0));
        self.fence = (self.fence + 1).max(wall).max(least);
        self.fence
    }

    /// Gives a key to who asks. An offer, which lasts until then, has yet to be collected.
    fn grant(&mut self, key: &Bytes, ask: &Ask, offer: Option<Moment>) -> u64 {
        let fence = self.next_fence(ask.least);
        let (since, until) = (Moment::now(), offer.unwrap_or(Moment::now() + ask.lease));
        let (reads, writes) = if ask.writes { (0, 1) } else { (ask.take, 0) };
        let offered = offer.is_some();
        let hold = Hold { ask: ask.clone(), fence, until: Some(until), reads, writes, offered, since };
        let holds = self.holds.entry(key.clone()).or_default();
        holds.retain(|other| other.ask.owner != ask.owner);
        holds.push(hold);
        fence
    }

    fn end(&mut self, keys: &[Bytes], owner: &Bytes) {
        for key in keys {
            if let Some(holds) = self.holds.get_mut(key) {
                holds.retain(|hold| hold.ask.owner != *owner);
            }
        }
        self.holds.retain(|_, holds| !holds.is_empty());
    }

    /// Gives what is free to those who wait, in the order in which they came.
    fn serve(&mut self) {
        let mut taken: BTreeSet<Bytes> = BTreeSet::new();
        let mut next = 0;
        while next < self.places.len() {
            let ask = &self.places[next].ask;
            if ask.keys.iter().any(|key| taken.contains(key) || !self.fits(key, ask)) {
                taken.extend(ask.keys.iter().cloned());
                next += 1;
                continue;
            }
            let Place { ask, parked, until, .. } = self.places.remove(next);
            let offer = if parked { None } else { until };
            let fences = ask.keys.iter().map(|key| self.grant(key, &ask, offer)).collect();
            if parked {
                self.answers.push((ask.session, ask.reply(fences)));
            } else if let Some(channel) = ask.channel {
                self.notified += 1;
                self.messages.push((channel, ask.owner));
            }
        }
    }

    /// Ends what is over, and gives the moment when something else is.
    pub(super) fn tick(&mut self) -> Option<Moment> {
        let now = Moment::now();
        let is_over = |until: Option<Moment>| until.is_some_and(|until| until <= now);
        for holds in self.holds.values_mut() {
            holds.retain(|hold| !is_over(hold.until));
        }
        self.holds.retain(|_, holds| !holds.is_empty());
        let answers = &mut self.answers;
        self.places.retain_mut(|place| {
            if is_over(place.until) && place.parked {
                answers.push((place.ask.session, Reply::Null));
                place.parked = false;
                place.until = Some(now + place.ask.queue.unwrap_or_default());
            }
            !is_over(place.until)
        });
        self.serve();
        let holds = self.holds.values().flatten().filter_map(|hold| hold.until);
        holds.chain(self.places.iter().filter_map(|place| place.until)).min()
    }

    /// The connection is closed: its places, and the offers that came of them, end soon.
    pub(super) fn part(&mut self, session: u64) {
        let soon = Moment::now() + AWAY;
        self.places.retain_mut(|place| {
            if place.ask.session != session {
                return true;
            }
            let is_bound = place.parked || place.ask.channel.is_some();
            if place.parked {
                place.parked = false;
                place.until = Some(Moment::now() + place.ask.queue.unwrap_or_default());
            }
            if is_bound {
                place.until = place.until.map(|until| until.min(soon));
            }
            place.ask.queue.is_some()
        });
        for hold in self.holds.values_mut().flatten().filter(|hold| hold.offered && hold.ask.session == session) {
            hold.until = hold.until.map(|until| until.min(soon));
        }
        self.serve();
    }
}

fn ms(time: Duration) -> Reply {
    Reply::Int(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

fn shown_hold(hold: &Hold) -> Reply {
    Reply::Map(vec![
        ("owner", Reply::Text(hold.ask.owner.clone())),
        ("mode", Reply::text(if hold.writes > 0 { "write" } else { "read" })),
        ("reads", Reply::Int(hold.reads)),
        ("writes", Reply::Int(hold.writes)),
        ("fence", Reply::Int(hold.fence)),
        ("ttl_ms", hold.until.map_or(Reply::Null, |until| ms(until.left()))),
        ("held_ms", ms(hold.since.elapsed())),
        ("offered", Reply::Int(hold.offered.into())),
        ("session", Reply::Null),
        ("client", Reply::Null),
        ("note", Reply::bytes(hold.ask.note.as_ref())),
    ])
}

fn shown_place(place: &Place) -> Reply {
    let left = |shown: bool| place.until.filter(|_| shown).map_or(Reply::Null, |until| ms(until.left()));
    let ask = &place.ask;
    Reply::Map(vec![
        ("owner", Reply::Text(ask.owner.clone())),
        ("mode", Reply::text(if ask.writes { "write" } else { "read" })),
        ("limit", Reply::int(ask.limit)),
        ("take", Reply::int(ask.limit.map(|_| ask.take))),
        ("waited_ms", ms(place.since.elapsed())),
        ("left_ms", left(place.parked)),
        ("queue_left_ms", left(!place.parked)),
        ("keys", Reply::Int(ask.keys.len() as u64)),
        ("client", if place.parked { Reply::Int(ask.session) } else { Reply::Null }),
    ])
}
