//! Those who wait, as clients of the server. Parks them, and answers each exactly once: when it is served, when its
//! time is up, when it is sent away; one that is killed or unblocked by somebody else is answered by the server, and
//! what it was granted meanwhile is taken back.

use super::alarm::ITEMS_PER_POLL;
use super::keyspace::OpenLocks;
use super::shell::with_manager;
use super::{alarm, clock, finish, metrics, turns};
use crate::ffi::blocked::{Blocked, Parked};
use crate::ffi::{Access, Ctx, Flags, OwnedStr, Serving, Str};
use crate::lock::manager::LockManager;
use crate::lock::model::effect::WaitEnds;
use crate::lock::model::key::{Db, KeyIndex, KeyName};
use crate::lock::model::limits::GRANTS_PER_BATCH;
use crate::lock::model::owner::Owner;
use crate::lock::model::request::{PerKey, RedirectReason, Request, WaitEnd, WaiterId};
use crate::lock::model::time::Timestamp;
use crate::lock::wait::table::{Job, WaitPoll};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};

/// How a waiter is to be answered.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    /// Whether the server made the owner, which is to be told then.
    pub generated: bool,
    /// Writes the answer.
    pub write: fn(&mut Ctx<'_>, &WaitEnd, Option<&Owner>),
}

/// A client that waits.
#[derive(Debug)]
struct Client {
    /// None once it has been unblocked.
    blocked: Option<Blocked>,
    id: u64,
    reply: Reply,
    /// The owner, if the server made it.
    generated: Option<Owner>,
    /// None while it waits.
    answer: Option<WaitEnd>,
}

/// The clients that wait, and those whose answers have not been delivered yet, each at the index of its waiter: that
/// may have gone to another meanwhile.
struct Clients(Vec<SmallVec<[(WaiterId, Client); 1]>>);

impl Clients {
    fn insert(&mut self, waiter: WaiterId, client: Client) {
        let at = waiter.index() as usize;
        if self.0.len() <= at {
            self.0.resize_with(at + 1, SmallVec::new);
        }
        self.0[at].push((waiter, client));
    }

    fn get_mut(&mut self, waiter: WaiterId) -> Option<&mut Client> {
        let there = self.0.get_mut(waiter.index() as usize)?.iter_mut();
        there.filter(|(there, _)| *there == waiter).map(|(_, client)| client).next()
    }

    fn remove(&mut self, waiter: WaiterId) -> Option<Client> {
        let there = self.0.get_mut(waiter.index() as usize)?;
        let at = there.iter().position(|(there, _)| *there == waiter)?;
        let (_, client) = there.remove(at);
        while self.0.last().is_some_and(SmallVec::is_empty) {
            self.0.pop();
        }
        Some(client)
    }
}

thread_local! {
    static CLIENTS: RefCell<Clients> = const { RefCell::new(Clients(Vec::new())) };
    /// Whether nothing may be granted by the module's hand before the next tick.
    static HELD_BACK: Cell<bool> = const { Cell::new(false) };
}

/// Parks the client of this call, and names its waiter then. None when the server does not let it wait: then `waiter`
/// was not asked for.
pub(crate) fn park(
    ctx: &mut Ctx<'_>,
    names: &[Str<'_>],
    reply: Reply,
    request: &Request,
    waiter: impl FnOnce() -> WaiterId,
) -> Option<WaiterId> {
    let mut parked = None;
    let blocked = ctx.block::<Waiter>(names, || parked.insert(waiter()).to_number())?;
    turns::watch(ctx);
    let generated = reply.generated.then(|| request.owner.clone());
    let client = Client { blocked: Some(blocked), id: ctx.client_id(), reply, generated, answer: None };
    let waiter = parked?;
    CLIENTS.with_borrow_mut(|clients| clients.insert(waiter, client));
    Some(waiter)
}

/// Whether there are clients that wait, or whose answers have not been delivered yet.
pub(crate) fn has_clients() -> bool {
    CLIENTS.with_borrow(|clients| !clients.0.is_empty())
}

/// The client that waits, by its number at the server.
pub(crate) fn client_of(waiter: WaiterId) -> Option<u64> {
    CLIENTS.with_borrow_mut(|clients| clients.get_mut(waiter).map(|client| client.id))
}

/// Wakes those who wait no more.
pub(crate) fn wake(wait_ends: impl IntoIterator<Item = (WaiterId, WaitEnd)>, now: Timestamp) {
    for (waiter, answer) in wait_ends {
        metrics::count_wait_end(&answer);
        if let WaitEnd::Granted(_) = answer
            && let Some(since) = with_manager(|manager| manager.waited_since(waiter))
        {
            metrics::count_wait(now.0.saturating_sub(since.0));
        }
        let blocked = CLIENTS.with_borrow_mut(|clients| {
            let client = clients.get_mut(waiter)?;
            client.answer = Some(answer);
            client.blocked.take()
        });
        // The server may call `Waiter::answer` from within.
        if let Some(blocked) = blocked {
            blocked.unblock();
        }
    }
}

/// What the server says of parked clients.
struct Waiter;

impl Parked for Waiter {
    fn answer(ctx: &mut Ctx<'_>, ticket: u64) {
        let Some(waiter) = WaiterId::from_number(ticket) else { return ctx.reply_null() };
        let found = CLIENTS.with_borrow_mut(|clients| {
            let client = clients.get_mut(waiter)?;
            // The server has unblocked it already, and would not know the handle any more.
            client.blocked = None;
            Some((client.answer.clone(), client.reply, client.generated.clone()))
        });
        match found {
            Some((Some(answer), reply, generated)) => (reply.write)(ctx, &answer, generated.as_ref()),
            Some((None, reply, _)) => {
                // CLIENT UNBLOCK TIMEOUT.
                with_manager(|manager| manager.cancel(waiter));
                metrics::count_wait_end(&WaitEnd::TimedOut);
                (reply.write)(ctx, &WaitEnd::TimedOut, None);
            }
            None => unreachable!("the server asks for an answer before it lets go of a client"),
        }
    }

    fn lost(ticket: u64) {
        let Some(waiter) = WaiterId::from_number(ticket) else { return };
        let client = CLIENTS.with_borrow_mut(|clients| clients.remove(waiter));
        match client.map(|client| client.answer) {
            Some(None) => {
                metrics::count_cancelled();
                with_manager(|manager| manager.client_gone(waiter));
            }
            Some(Some(WaitEnd::Granted(_))) => {
                with_manager(|manager| manager.client_gone(waiter));
            }
            _ => {}
        }
    }

    fn done(ticket: u64) {
        let Some(waiter) = WaiterId::from_number(ticket) else { return };
        if CLIENTS.with_borrow_mut(|clients| clients.remove(waiter)).is_some() {
            with_manager(|manager| manager.delivered(waiter));
        }
    }
}

/// Answers those whose time is up, until it is time to stop. Also while nothing may be written.
pub(crate) fn time_out_waiters(end: Timestamp) {
    loop {
        let now = clock::mono();
        match with_manager(|manager| manager.poll_timeouts(now)) {
            WaitPoll::TimedOut(waiter) => wake([(waiter, WaitEnd::TimedOut)], now),
            WaitPoll::Pending => {}
            WaitPoll::Idle => return,
        }
        if now >= end {
            return;
        }
    }
}

/// Sends away who waits for a key: this node does not serve it any more.
pub(crate) fn redirect_waiters(db: Db, name: &[u8]) {
    wake(
        with_manager(|manager| manager.end_waits(db, name, &WaitEnd::Redirected(RedirectReason::SlotGone))),
        clock::mono(),
    );
}

/// Sends everybody away: this node does not grant any more.
pub(crate) fn dismiss() {
    wake(with_manager(|manager| manager.dismiss()), clock::mono());
}

/// The server's tick: what was held back may be tried again.
pub(crate) fn tick() {
    HELD_BACK.set(false);
}

/// Whether there is work that can be done now.
pub(crate) fn has_jobs_in(manager: &LockManager) -> bool {
    manager.has_jobs() && !HELD_BACK.get()
}

/// Does what is left to the module's own hand, one slice of it: looks at lines after something that was not a step on
/// their key, and takes back what could not be delivered.
pub(crate) fn work(ctx: &mut Ctx<'_>) {
    if !with_manager(|manager| has_jobs_in(manager)) {
        return;
    }
    let end = alarm::slice_end();
    let mut answered = 0;
    let mut serving = None;
    while let Some(job) = with_manager(|manager| manager.next_job()) {
        let (db, names) = match &job {
            Job::ServeQueue(db, name) | Job::Check(_, db, name) | Job::Close(_, db, name) => {
                (*db, PerKey::from([name.clone()]))
            }
            Job::RevokeUndelivered(_, db, names) => (*db, names.clone()),
        };
        ctx.select_db(db.0);
        // Without slots, one key is as good as another.
        let asked = serving.filter(|_| !ctx.flags().contains(Flags::CLUSTER));
        let answer = asked.unwrap_or_else(|| gate(ctx, &names));
        serving = Some(answer);
        match answer {
            Serving::Yes => answered += run_job(ctx, db, &names, &job),
            Serving::NotNow => {
                HELD_BACK.set(true);
                return;
            }
            Serving::Elsewhere => abandon(db, &names, &job, &WaitEnd::Redirected(RedirectReason::SlotGone)),
        }
        // Each answer costs the server more than we see here.
        if answered >= GRANTS_PER_BATCH || clock::mono() >= end {
            break;
        }
    }
    alarm::arm(ctx);
}

/// Whether a grant on these keys may be made by the module's own hand: only if a client's write would be allowed now.
fn gate(ctx: &mut Ctx<'_>, names: &[KeyName]) -> Serving {
    let flags = ctx.flags();
    if !flags.contains(Flags::PRIMARY) || flags.contains(Flags::LOADING) || ctx.is_paused() {
        return Serving::NotNow;
    }
    for name in names {
        let serving = ctx.serving(OwnedStr::new(name).as_str());
        if serving != Serving::Yes {
            return serving;
        }
    }
    Serving::Yes
}

/// How many were answered.
fn run_job(ctx: &mut Ctx<'_>, db: Db, names: &[KeyName], job: &Job) -> usize {
    let owned: Vec<OwnedStr> = names.iter().map(|name| OwnedStr::new(name)).collect();
    let lent: Vec<Str<'_>> = match job {
        // The core opens them: one of them may be no lock any more, which must not keep the others taken.
        Job::RevokeUndelivered(..) => Vec::new(),
        _ => owned.iter().map(OwnedStr::as_str).collect(),
    };
    let now = clock::now();
    let Ok(mut locks) = OpenLocks::open(ctx, &lent, Access::Write) else {
        abandon(db, names, job, &WaitEnd::WrongType);
        return 0;
    };
    let mut effects = with_manager(|manager| match job {
        Job::Close(connection, ..) => manager.end_session(&mut locks, KeyIndex(0), *connection, now, ITEMS_PER_POLL),
        Job::ServeQueue(..) => manager.serve_ready_queue(&mut locks, KeyIndex(0), now),
        Job::Check(waiter, ..) => manager.check_waiter(&mut locks, *waiter, now),
        Job::RevokeUndelivered(waiter, ..) => manager.revoke_undelivered(&mut locks, *waiter, db, now),
    });
    let answered = effects.wait_ends.len();
    let names = locks.tidy(&effects.changes);
    finish(ctx, &names, &mut effects, now);
    answered
}

/// Neither grants nor takes back, nor ends anything: the keys are not ours to change.
fn abandon(db: Db, names: &[KeyName], job: &Job, answer: &WaitEnd) {
    let wait_ends = with_manager(|manager| {
        match job {
            Job::RevokeUndelivered(waiter, ..) => manager.abandon(*waiter),
            Job::Close(connection, db, name) => manager.abandon_session(*db, name, *connection),
            Job::ServeQueue(..) | Job::Check(..) => {}
        }
        names.iter().flat_map(|name| manager.end_waits(db, name, answer)).collect::<WaitEnds>()
    });
    wake(wait_ends, clock::mono());
}
