//! LOCK.CHECK and LOCK.GUARD: whether an owner holds a lock now, and commands that run only if it does.

mod check;
mod effects;
mod guarded;
mod held_back;
mod replies;
mod rights;
mod slots;
