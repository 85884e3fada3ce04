//! Takes the lock, on a thread of its own, and watches over it for the keeper.

use crate::args::Run;
use crate::backend::{Backend, client};
use crate::notices::{Notice, NoticeSender};
use crate::timer::Timer;
use redis_lock_client::{Cancel, Error, Guard, Moment, Owner};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long to ask for the holder.
const ASK_LIMIT: Duration = Duration::from_secs(1);

/// Takes the lock. Tells of errors that a wait goes on after, and where the lock is kept.
pub(crate) fn acquire(
    run: &Run,
    owner: &Owner,
    cancel: &Cancel,
    notices: &NoticeSender,
    backend: &OnceLock<Backend>,
) -> Result<Option<Guard>, Error> {
    let asked = client(&run.servers)?.timeout(request_limit(run));
    let lock = backend.get_or_init(|| asked).key(run.key.as_bytes());
    let mut lock = lock.lease(run.lease).take(run.take).owner(owner).cancelled_by(cancel);
    if run.shared {
        lock = lock.shared();
    }
    if let Some(limit) = run.limit {
        lock = lock.limit(limit);
    }
    if let Some(session) = run.session {
        lock = lock.session(session);
    }
    if let Some(note) = &run.note {
        lock = lock.note(note);
    }
    let notices = notices.clone();
    let lock = lock.on_trouble(move |error| notices.send(Notice::Trouble(error.clone())));
    let deadline = run.wait.map(|wait| Moment::now() + wait);
    loop {
        let guard = match deadline {
            None => Some(lock.lock()?),
            Some(deadline) => lock.try_lock_for(deadline.left())?,
        };
        let Some(guard) = guard else { return Ok(None) };
        // At the end it is too late to hear that the server does not keep it so long.
        if let Some(time) = run.at_least.filter(|time| *time > run.lease)
            && !guard.try_lease(time)?
        {
            continue;
        }
        // A renewal that fails is no end of the wait.
        if lasts(run, &guard) || (matches!(guard.renew(), Ok(true)) && lasts(run, &guard)) {
            return Ok(Some(guard));
        }
        // Held for too short to begin: back to the queue. If the server does not hear that, it is asked in vain.
        drop(guard.release());
    }
}

/// What to say of a wait: for whom, if that may be asked. None if nobody else holds the lock, or no answer comes.
pub(crate) fn waiting(run: &Run, owner: &Owner) -> Option<String> {
    match client(&run.servers).ok()?.timeout(ASK_LIMIT).holders(run.key.as_bytes()) {
        Err(Error::Server(error)) if error.code() == Some("NOPERM") => Some("waiting".to_owned()),
        Err(_) => None,
        Ok(holders) => {
            let (holder, note) = holders.into_iter().find(|(holder, _)| holder != owner.as_str())?;
            let note = note.map(|note| format!(" ({note})")).unwrap_or_default();
            Some(format!("waiting, held by {holder}{note}"))
        }
    }
}

/// Whether it lasts long enough to begin: until it is renewed, and the command could be ended.
fn lasts(run: &Run, guard: &Guard) -> bool {
    guard.valid_until().left() >= run.kill_after + run.lasts() / 3
}

/// How long a request may take, such as that of the release. It is sent twice if need be.
pub(crate) fn request_limit(run: &Run) -> Duration {
    (run.lasts() / 3).clamp(Duration::from_secs(1), Duration::from_secs(5))
}

/// Sets the timer that the parent sees by each end of the hold, until it is lost or released.
pub(crate) fn watch(run: &Run, guard: &Guard, hold: Arc<Timer>, notices: NoticeSender) -> io::Result<()> {
    let (kill_after, no_kill) = (run.kill_after, run.no_kill);
    let set = move |end: Moment| {
        if no_kill {
            hold.set(Some(end), Duration::ZERO);
        } else {
            hold.set(Some(before(end, kill_after)), kill_after);
        }
    };
    let (loss, mut end) = (guard.loss(), guard.valid_until());
    set(end);
    let thread = std::thread::Builder::new().name("redis-lock-watch".to_owned());
    thread.spawn(move || {
        while let Some(next) = loss.next_end(end) {
            end = next;
            set(end);
            notices.send(Notice::Changed);
        }
        notices.send(Notice::Changed);
    })?;
    Ok(())
}

/// So long before a moment.
pub(crate) fn before(end: Moment, time: Duration) -> Moment {
    Moment::from_boot(end.since_boot().saturating_sub(time))
}
