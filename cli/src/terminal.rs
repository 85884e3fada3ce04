//! The terminal: which process group reads its keys and gets its signals.

use crate::group::Group;
use crate::sys;
use rustix::process::Pid;
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use std::fs::File;

pub(crate) struct Terminal {
    /// The controlling terminal, if there is one.
    file: Option<File>,
    own: Option<Pid>,
    /// Whether the command is to have it: it reads from it and writes to it.
    is_wanted: bool,
}

impl Terminal {
    /// That of this process.
    pub(crate) fn find() -> Terminal {
        let own = sys::own_group();
        let is_wanted = tcgetpgrp(std::io::stdin()).is_ok() && tcgetpgrp(std::io::stdout()).is_ok();
        Terminal { file: File::open("/dev/tty").ok(), own, is_wanted }
    }

    /// Whether there is one at all.
    pub(crate) fn exists(&self) -> bool {
        self.file.is_some()
    }

    /// Whether it is this process's turn at it.
    pub(crate) fn is_ours(&self) -> bool {
        self.own.is_some_and(|own| self.is_with(own))
    }

    /// Lets the command have it, if it wants it and it is ours to give.
    pub(crate) fn give_if_wanted(&self, to: Group) {
        if self.is_wanted {
            self.give(to);
        }
    }

    /// Lets the command have it, if it is ours to give.
    pub(crate) fn give(&self, to: Group) {
        if self.is_ours() {
            self.set(to.0);
        }
    }

    /// Takes it back, if the command has it.
    pub(crate) fn take_back(&self, from: Group) {
        if let Some(own) = self.own
            && self.is_with(from.0)
        {
            self.set(own);
        }
    }

    /// Whether it is this group's turn at it.
    pub(crate) fn is_with(&self, group: Pid) -> bool {
        self.file.as_ref().is_some_and(|file| tcgetpgrp(file) == Ok(group))
    }

    fn set(&self, group: Pid) {
        if let Some(file) = &self.file {
            // The terminal may be gone by now.
            tcsetpgrp(file, group).ok();
        }
    }
}
