//! What only the C library has: signals, and descriptors that another process handed over. The only unsafe code.
#![expect(unsafe_code, reason = "signal sets and raw descriptors have no safe interface")]

use rustix::process::{Pid, Signal};
use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

/// Those that the parent reads. All but the last two reach the command. Before there is one they end the wait, but for
/// CONT, TSTP and WINCH. TTOU is there because to take the terminal back without having it must not stop the parent.
pub(crate) const SIGNALS: [Signal; 11] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::CONT,
    Signal::TSTP,
    Signal::WINCH,
    Signal::CHILD,
    Signal::TTOU,
];

/// Signals that are read like a file instead of doing what they usually do.
pub(crate) struct Signals(File);

impl Signals {
    /// Takes those of the parent: see `of`.
    pub(crate) fn take() -> io::Result<Signals> {
        Signals::of(&SIGNALS)
    }

    /// Takes these signals, but for those that the process was started to ignore (nohup): so they stay ignored, here
    /// and in the command. To be called before there are threads, which inherit it.
    pub(crate) fn of(signals: &[Signal]) -> io::Result<Signals> {
        let taken: Vec<Signal> = signals.iter().copied().filter(|signal| !is_ignored(*signal)).collect();
        let set = set_of(&taken);
        block(&set, libc::SIG_BLOCK);
        // SAFETY: the set is initialized; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, so nobody else owns it.
        Ok(Signals(unsafe { File::from_raw_fd(fd) }))
    }

    /// The next one that came.
    pub(crate) fn next(&mut self) -> Option<Signal> {
        let mut record = [0; size_of::<libc::signalfd_siginfo>()];
        let length = self.0.read(&mut record).ok()?;
        // Its first field is the number.
        let number = record[..length].first_chunk::<4>()?;
        Signal::from_named_raw(i32::from_ne_bytes(*number))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Lets ps show this process as the program, however it was started.
pub(crate) fn name() {
    // SAFETY: the text ends with a zero byte.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"redis-lock".as_ptr()) };
}

/// Undoes what the parent did to its signals, which those that it starts inherit.
pub(crate) fn give_back() {
    block(&set_of(&SIGNALS), libc::SIG_UNBLOCK);
}

/// Lets the children of this process be waited for, also if it was started to leave that to the system.
pub(crate) fn wait_for_children() {
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// The process group of this process; None if its leader is outside of the container.
pub(crate) fn own_group() -> Option<Pid> {
    // SAFETY: it only returns a number. rustix would panic where that is 0.
    Pid::from_raw(unsafe { libc::getpgrp() })
}

/// Ignores every signal that can be ignored, from now on and in all threads.
pub(crate) fn ignore_all() {
    for signal in 1..=64 {
        // SAFETY: no handler is installed. What cannot be ignored is refused, and stays as it is.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Stops this process as the terminal would, unless there is no shell to continue it; with all of its group, if it is
/// not stopping already. Does this first, when the stop is on its way. Returns when it was continued.
pub(crate) fn stop(with_group: bool, first: impl FnOnce()) {
    let stop = set_of(&[Signal::TSTP]);
    // A process that ignores it does not stop.
    if !is_ignored(Signal::TSTP) {
        let sent = if with_group {
            rustix::process::kill_current_process_group(Signal::TSTP)
        } else {
            rustix::process::kill_process(rustix::process::getpid(), Signal::TSTP)
        };
        // It is one's own, so that nothing speaks against it.
        debug_assert_eq!(sent, Ok(()));
    }
    first();
    block(&stop, libc::SIG_UNBLOCK);
    block(&stop, libc::SIG_BLOCK);
}

/// Closes all descriptors but the standard ones: what the program that started this one had left open.
pub(crate) fn close_inherited() {
    // SAFETY: called before anything was opened here, so nothing in this process owns one of them.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}

/// A descriptor that the program which started this one left open for it.
pub(crate) fn inherited(fd: RawFd) -> OwnedFd {
    // SAFETY: it was opened for this process, and nothing else here has it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn is_ignored(signal: Signal) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action this only writes the present one.
    let known = unsafe { libc::sigaction(signal.as_raw(), ptr::null(), action.as_mut_ptr()) } == 0;
    // SAFETY: written above, and zeroed before.
    known && unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN
}

fn set_of(signals: &[Signal]) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is there to be written to, and each number is one of a signal.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), signal.as_raw());
        }
        set.assume_init()
    }
}

fn block(set: &libc::sigset_t, how: libc::c_int) {
    // SAFETY: the set is initialized; the former mask is not asked for.
    unsafe { libc::pthread_sigmask(how, set, ptr::null_mut()) };
}
