//! What tests let owners do in a world, in one line each.

use crate::words::Answer;
pub use crate::world::LONG;
use crate::world::{Least, Op, World, acquire, release};
use lock_core::model::hold::Mode;
use lock_core::model::request::{Acquire, Amount, Wait};
use lock_core::model::time::Millis;

/// A request for the core by itself, without any option.
pub fn plain(mode: Mode, wait: Wait) -> Acquire {
    Acquire { mode, lease: Millis(LONG), wait, retry: None, queue: None, share: None, terms: None }
}

impl World {
    /// An owner asks to hold these keys, and waits if it must. What the model, and so the core, answers.
    pub fn ask(&mut self, owner: u8, mode: Mode, keys: &[u8]) -> Answer {
        self.ask_for(owner, mode, keys, (LONG, Wait::Forever, None))
    }

    pub fn ask_for(
        &mut self,
        owner: u8,
        mode: Mode,
        keys: &[u8],
        (lease, wait, retry): (u64, Wait, Option<u32>),
    ) -> Answer {
        self.is_told(&acquire(owner, mode, keys).lease(lease).wait(wait).retry(retry))
    }

    pub fn holds(&mut self, owner: u8, mode: Mode, keys: &[u8]) {
        let answer = self.ask(owner, mode, keys);
        assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
    }

    pub fn waits(&mut self, owner: u8, mode: Mode, keys: &[u8]) {
        assert_eq!(self.ask(owner, mode, keys), Answer::Queued);
    }

    pub fn release(&mut self, owner: u8, keys: &[u8]) {
        self.then(&release(owner, keys, Amount::All));
    }

    pub fn pass(&mut self, ms: u64) {
        self.then(&Op::Pass { us: ms * 1000 });
    }

    pub fn then(&mut self, op: &Op) {
        self.step(op);
        self.check();
    }

    /// The holders of a key, and its waiters.
    pub fn at(&self, key: u8) -> (Vec<u8>, Vec<u8>) {
        let holders = self.naive.rows.iter().filter(|row| (row.db, row.key) == (0, key)).map(|row| row.owner);
        let mut holders: Vec<u8> = holders.collect();
        holders.sort_unstable();
        (holders, self.naive.queue(0, key).into_iter().map(|waiter| waiter.ask.owner).collect())
    }

    /// An owner asks for a place, or asks again.
    pub fn polls(&mut self, owner: u8, mode: Mode, keys: &[u8], queue: u64) -> Answer {
        self.is_told(&acquire(owner, mode, keys).queue(Some(queue)))
    }

    pub fn offered(&self, key: u8) -> Vec<u8> {
        self.naive.rows.iter().filter(|row| row.key == key && row.offered).map(|row| row.owner).collect()
    }

    /// How many reads an owner has.
    pub fn reads(&self, owner: u8, key: u8) -> u32 {
        self.naive.rows.iter().filter(|row| (row.key, row.owner) == (key, owner)).map(|row| row.reads).sum()
    }

    /// What a request is answered.
    pub fn is_told(&mut self, op: &Op) -> Answer {
        self.then(op);
        self.last.clone().expect("was answered")
    }

    pub fn is_told_at_least(&mut self, fence: Least, op: Op) -> Answer {
        self.is_told(&Op::AtLeast { fence, of: Box::new(op) })
    }

    /// The fence of a hold.
    pub fn fence(&self, key: u8, owner: u8) -> u64 {
        self.naive.rows.iter().find(|row| (row.db, row.key, row.owner) == (0, key, owner)).expect("holds").fence
    }

    /// A transaction or a script with these commands. What the last of them was answered.
    pub fn runs(&mut self, commands: &[Op]) -> Answer {
        self.then(&Op::Unit { commands: commands.to_vec() });
        self.last.clone().expect("was answered")
    }
}
