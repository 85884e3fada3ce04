//! What the module does without a command: it ends leases and waits that are over, and does the jobs that steps leave.
//!
//! The timer and the server's tick poll what is due. The event loop runs the jobs before the server sleeps. All of it
//! happens in slices, and only while a client's write would be allowed.

use super::blocked_clients::{redirect_waiters, wake, wake_all};
use super::data_type::Stored;
use super::grace;
use super::open_locks::{gone_at, with_key};
use super::replication;
use super::resync::Unsent;
use super::scheduler::SLICE_MS;
use super::shell::{shell, with_manager};
use super::step::{self, Publish};
use lock_core::collections::wheel::EntryId;
use lock_core::manager::LeasePoll;
use lock_core::model::effect::{self, Ended};
use lock_core::model::key::{Db, KeyIndex};
use lock_core::model::limits::StepLimits;
use lock_core::model::request::{PerKey, RedirectReason, WaitEnd};
use lock_core::model::time::{Timestamp, WallTime};
use lock_core::wait::jobs::Job;
use lock_core::wait::timers::WaitPoll;
use server_api::{Access, Ctx, Flags, OwnedStr, Serving, Str, WrongType};

/// How many holds of one key may end between two readings of the clock.
const ITEMS_PER_POLL: usize = 64;
/// After how many microseconds a key is opened again that has expired and that the server keeps.
const HIDDEN_US: u64 = 100_000;
/// How many records of one lock are sent between two readings of the clock.
const RECORDS_PER_PIECE: usize = 512;

/// The timer rings.
pub(crate) fn on_ring(ctx: &mut Ctx<'_>) {
    shell().scheduler.on_ring();
    // Its next moment is set before the server sleeps.
    shell().scheduler.watch_event_loop(ctx);
    poll(ctx);
}

/// The server's tick: polls for itself, and sets the timer anew in case the wall clock was set meanwhile.
pub(crate) fn on_tick(ctx: &mut Ctx<'_>) {
    let shell = shell();
    shell.scheduler.stop_timer(ctx);
    let end = shell.clock.mono() + SLICE_MS;
    while with_manager(|manager| manager.shed()) && shell.clock.mono() < end {}
    while let Some((entry, name)) = with_manager(|manager| manager.next_db_unknown()) {
        resolve_db(ctx, entry, &OwnedStr::new(&name));
        if shell.clock.mono() >= end {
            break;
        }
    }
    shell.scheduler.release_jobs();
    poll(ctx);
}

/// The server is about to sleep.
pub(crate) fn on_before_sleep(ctx: &mut Ctx<'_>) {
    let shell = shell();
    if shell.has_jobs() {
        let end = shell.scheduler.resume_slice(shell.clock.mono());
        match run_slice(ctx, Jobs { ended: 0 }, end) {
            Slice::Over => shell.schedule(ctx),
            Slice::NoWrites => shell.scheduler.hold_jobs_back(),
        }
    }
    if shell.scheduler.on_before_sleep() {
        shell.schedule(ctx);
    }
}

/// Ends what is over, for one slice. While writes may not flow no lease ends here, and the next tick polls again.
fn poll(ctx: &mut Ctx<'_>) {
    let shell = shell();
    grace::end_if_over();
    if !ctx.flags().contains(Flags::PRIMARY) || ctx.flags().contains(Flags::LOADING) {
        shell.resync.clear();
        return;
    }
    let end = shell.scheduler.begin_slice(shell.clock.mono());
    time_out_waiters(ctx, end);
    if ctx.is_paused() {
        return;
    }
    send_records(ctx, end);
    if run_slice(ctx, Expiries, end) == Slice::Over && run_slice(ctx, Leases, end) == Slice::Over {
        shell.schedule(ctx);
    }
}

/// Answers the waiters whose time is up, until the slice ends. Also while nothing may be written. Then places do not
/// end: their owners may be kept from asking.
fn time_out_waiters(ctx: &mut Ctx<'_>, end: Timestamp) {
    let mut known = None;
    loop {
        let now = shell().clock.mono();
        match with_manager(|manager| manager.poll_timeouts(now)) {
            WaitPoll::Ended(waiter, end) => wake([(waiter, end)], now),
            WaitPoll::PlaceOver(place, db, name) => {
                ctx.select_db(db.0);
                let reusable = known.filter(|_| !ctx.flags().contains(Flags::CLUSTER));
                let serving = reusable.unwrap_or_else(|| may_write(ctx, &[OwnedStr::new(&name)]));
                known = Some(serving);
                let may_grant = serving != Serving::NotNow;
                if with_manager(|manager| manager.end_place(place, may_grant, now)) {
                    wake([(place, WaitEnd::TimedOut)], now);
                }
            }
            WaitPoll::Pending => {}
            WaitPoll::Idle => return,
        }
        if now >= end {
            return;
        }
    }
}

/// Sends the records of locks that a RESTORE has brought, until the slice ends.
fn send_records(ctx: &mut Ctx<'_>, end: Timestamp) {
    while shell().clock.mono() < end {
        let Some(Unsent { db, name: of, after }) = shell().resync.pop() else { return };
        let name = OwnedStr::new(&of);
        ctx.select_db(db.0);
        let read = with_key(ctx, name.as_str(), Access::Read, |keys| {
            let Stored(lock) = keys.get(0)?;
            let records = effect::records_after(lock, KeyIndex(0), after.as_ref()).take(RECORDS_PER_PIECE);
            Some((records.collect::<Vec<_>>(), keys.expires_at(0)))
        });
        // A value of another type lies there now, or none: there is nothing to send.
        let Ok(Some((records, expires_at))) = read else { continue };
        for record in &records {
            replication::send(ctx, name.as_str(), record, shell().clock.now());
        }
        if let Some(last) = records.last().filter(|_| records.len() == RECORDS_PER_PIECE) {
            shell().resync.push(Unsent { db, name: of, after: Some(last.owner.clone()) });
            continue;
        }
        // A time to live that came with it, or was set since, ends where the records are read.
        if let Some(at_ms) = expires_at {
            ctx.replicate_expiry(name.as_str(), at_ms);
        }
    }
}

/// How a slice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slice {
    /// All is done, or the time is up.
    Over,
    /// Writes may not flow now.
    NoWrites,
}

/// Where tasks come from.
trait Source {
    fn next(&mut self, ctx: &mut Ctx<'_>, now: Timestamp) -> Next;

    /// Takes note of waits that a task has ended. False if no more tasks may run in this slice.
    fn may_go_on(&mut self, ended: usize) -> bool;
}

/// The next piece of work of a source.
enum Next {
    Task(Task),
    /// A bounded piece of work was done. There may be more.
    Pending,
    Idle,
}

/// Something to do on keys of one database, for which the module needs what a client's write needs.
struct Task {
    db: Db,
    names: PerKey<OwnedStr>,
    work: Work,
}

enum Work {
    /// A time to live may be over.
    Expire,
    /// A lease may be over.
    Lapse(EntryId),
    Job(Job),
}

/// Keys that are waited for and have expired.
struct Expiries;

impl Source for Expiries {
    fn next(&mut self, _ctx: &mut Ctx<'_>, _now: Timestamp) -> Next {
        let due = with_manager(|manager| manager.due_expiry(shell().clock.now().wall));
        due.map_or(Next::Idle, |(db, name)| {
            Next::Task(Task { db, names: PerKey::from([OwnedStr::new(&name)]), work: Work::Expire })
        })
    }

    fn may_go_on(&mut self, _ended: usize) -> bool {
        true
    }
}

/// Leases that are due.
struct Leases;

impl Source for Leases {
    fn next(&mut self, ctx: &mut Ctx<'_>, now: Timestamp) -> Next {
        match with_manager(|manager| manager.poll_leases(now)) {
            LeasePoll::Key(db, entry, name) => {
                Next::Task(Task { db, names: PerKey::from([OwnedStr::new(&name)]), work: Work::Lapse(entry) })
            }
            LeasePoll::DbUnknown(entry, name) => {
                resolve_db(ctx, entry, &OwnedStr::new(&name));
                Next::Pending
            }
            LeasePoll::Pending => Next::Pending,
            LeasePoll::Idle => Next::Idle,
        }
    }

    fn may_go_on(&mut self, _ended: usize) -> bool {
        true
    }
}

/// Jobs that steps have left.
struct Jobs {
    /// How many waits they have ended.
    ended: usize,
}

impl Source for Jobs {
    fn next(&mut self, _ctx: &mut Ctx<'_>, _now: Timestamp) -> Next {
        let Some(job) = with_manager(|manager| manager.next_job()) else { return Next::Idle };
        let (db, names) = match &job {
            Job::ServeQueue(db, name)
            | Job::Check(_, db, name)
            | Job::EndSession(_, db, name)
            | Job::AnnounceEnds(db, name) => (*db, PerKey::from([OwnedStr::new(name)])),
            Job::MarkQueues => {
                with_manager(|manager| manager.mark_queues());
                return Next::Pending;
            }
            Job::ShortenPlaces => {
                with_manager(|manager| manager.shorten_places());
                return Next::Pending;
            }
            Job::RevokeUndelivered(_, db, names) => (*db, names.iter().map(|name| OwnedStr::new(name)).collect()),
        };
        Next::Task(Task { db, names, work: Work::Job(job) })
    }

    fn may_go_on(&mut self, ended: usize) -> bool {
        self.ended += ended;
        // Each answer costs the server more than the module sees here.
        self.ended < StepLimits::DEFAULT.answers
    }
}

/// Runs tasks until there are no more, or the slice ends.
fn run_slice(ctx: &mut Ctx<'_>, mut source: impl Source, end: Timestamp) -> Slice {
    let mut known = None;
    let mut now = shell().clock.mono();
    loop {
        let ended = match source.next(ctx, now) {
            Next::Idle => return Slice::Over,
            Next::Pending => 0,
            Next::Task(task) => {
                ctx.select_db(task.db.0);
                // Without slots, one key is as good as another.
                let reusable = known.filter(|_| !ctx.flags().contains(Flags::CLUSTER));
                let serving = reusable.unwrap_or_else(|| may_write(ctx, &task.names));
                known = Some(serving);
                match serving {
                    Serving::Yes => task.run(ctx),
                    Serving::Elsewhere => task.abandon(ctx),
                    Serving::NotNow => return Slice::NoWrites,
                }
            }
        };
        now = shell().clock.mono();
        if !source.may_go_on(ended) || now >= end {
            return Slice::Over;
        }
    }
}

/// Returns how the server would answer a client's write to these keys of the selected database now.
fn may_write(ctx: &mut Ctx<'_>, names: &[OwnedStr]) -> Serving {
    let flags = ctx.flags();
    if !flags.contains(Flags::PRIMARY) || flags.contains(Flags::LOADING) || ctx.is_paused() {
        return Serving::NotNow;
    }
    for name in names {
        let serving = ctx.serving(name.as_str());
        if serving != Serving::Yes {
            return serving;
        }
    }
    Serving::Yes
}

impl Task {
    /// Does it. How many waits were ended.
    fn run(&self, ctx: &mut Ctx<'_>) -> usize {
        match &self.work {
            Work::Expire => self.expire(ctx),
            Work::Lapse(entry) => self.lapse(ctx, *entry),
            Work::Job(job) => self.run_job(ctx, job),
        }
    }

    /// Another node serves a key now. What this node has of it ends here all the same; its waiters go there.
    fn abandon(&self, ctx: &mut Ctx<'_>) -> usize {
        match &self.work {
            Work::Expire => {
                let name = self.names[0].as_str();
                with_manager(|manager| manager.see_expiry(self.db, name.as_bytes(), None));
                redirect_waiters(self.db, name.as_bytes());
                0
            }
            Work::Lapse(entry) => {
                self.names.iter().for_each(|name| redirect_waiters(self.db, name.as_str().as_bytes()));
                self.lapse(ctx, *entry)
            }
            Work::Job(job) => self.abandon_job(job, &WaitEnd::Redirected(RedirectReason::SlotGone)),
        }
    }

    /// Opens the key to read it. That is when the server deletes what has expired, if it does so now: replicas and the
    /// AOF hear of that before the waiters are served, whose queue is on the ready list then.
    fn expire(&self, ctx: &mut Ctx<'_>) -> usize {
        let now = shell().clock.now().wall;
        let name = self.names[0].as_str();
        let at = with_key(ctx, name, Access::Read, |keys| match keys.get(0) {
            // The server hides it, and leaves it to others to delete it.
            None => Some(WallTime(now.0 + HIDDEN_US)),
            // It has another time to live, or the server's clock is behind this one.
            Some(_) => keys.expires_at(0).map(|at| gone_at(at).max(WallTime(now.0 + 1_000))),
        });
        with_manager(|manager| manager.see_expiry(self.db, name.as_bytes(), at.unwrap_or(None)));
        0
    }

    fn lapse(&self, ctx: &mut Ctx<'_>, entry: EntryId) -> usize {
        let lapsed = step::run(ctx, &[self.names[0].as_str()], Publish::All, |manager, step| {
            manager.lapse(step, KeyIndex(0), entry, ITEMS_PER_POLL);
        });
        match lapsed {
            Ok(done) => done.ended,
            Err(WrongType) => {
                // The server has not said that the lock went.
                with_manager(|manager| manager.drop_entry(self.db, entry));
                0
            }
        }
    }

    fn run_job(&self, ctx: &mut Ctx<'_>, job: &Job) -> usize {
        let lent: Vec<Str<'_>> = match job {
            // The manager opens them: one of them may be no lock any more, which must not keep the others taken.
            Job::RevokeUndelivered(..) => Vec::new(),
            _ => self.names.iter().map(OwnedStr::as_str).collect(),
        };
        let run = step::run(ctx, &lent, Publish::All, |manager, step| match job {
            Job::EndSession(connection, ..) => manager.end_session(step, KeyIndex(0), *connection, ITEMS_PER_POLL),
            Job::AnnounceEnds(..) => manager.announce_ends(step, KeyIndex(0), ITEMS_PER_POLL),
            Job::ServeQueue(..) => manager.serve_ready_queue(step, KeyIndex(0), ITEMS_PER_POLL),
            Job::Check(waiter, ..) => manager.check_waiter(step, *waiter),
            Job::MarkQueues => manager.mark_queues(),
            Job::ShortenPlaces => manager.shorten_places(),
            Job::RevokeUndelivered(waiter, ..) => manager.revoke_undelivered(step, *waiter, self.db),
        });
        match run {
            Ok(done) => done.ended,
            Err(WrongType) => self.abandon_job(job, &WaitEnd::WrongType),
        }
    }

    /// Neither grants nor revokes nor ends anything: the keys are not this node's to change. Their waits end, some of
    /// them now. How many.
    fn abandon_job(&self, job: &Job, answer: &WaitEnd) -> usize {
        let all = with_manager(|manager| {
            let mut all = Ended::default();
            match job {
                Job::RevokeUndelivered(waiter, ..) => all.messages.extend(manager.abandon(*waiter)),
                Job::EndSession(connection, db, name) => manager.abandon_session(*db, name, *connection),
                // The key's waiters wait for what lies there now.
                Job::AnnounceEnds(db, name) => {
                    manager.abandon_ends(*db, name, ITEMS_PER_POLL);
                    return all;
                }
                Job::ServeQueue(..) | Job::Check(..) | Job::MarkQueues | Job::ShortenPlaces => {}
            }
            for name in &self.names {
                let Ended { waits, messages } = manager.end_waits(self.db, name.as_str().as_bytes(), answer);
                all.waits.extend(waits);
                all.messages.extend(messages);
            }
            all
        });
        let ended = all.waits.len();
        wake_all(all);
        ended
    }
}

/// Finds the database of an entry's lock: some servers do not tell when they load it.
fn resolve_db(ctx: &mut Ctx<'_>, entry: EntryId, name: &OwnedStr) {
    let selected = ctx.db();
    let mut db = 0;
    while ctx.select_db(db) && !resolve_in(ctx, Db(db), entry, name) {
        db += 1;
    }
    ctx.select_db(selected);
    with_manager(|manager| manager.drop_db_unknown(entry));
}

/// True if the lock lies in this database, which is selected.
fn resolve_in(ctx: &mut Ctx<'_>, db: Db, entry: EntryId, name: &OwnedStr) -> bool {
    let name = name.as_str();
    let resolved = with_key(ctx, name, Access::Write, |keys| {
        let Some(Stored(lock)) = keys.get_mut(0) else { return false };
        with_manager(|manager| manager.resolve_db(db, name.as_bytes(), lock, entry, shell().clock.mono()))
    });
    resolved.unwrap_or(false)
}
