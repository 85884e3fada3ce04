//! Saving and loading locks: RDB, AOF rewrite, DUMP and RESTORE, MEMORY USAGE and digests.

use super::replication;
use super::shell::{shell, with_manager};
use lock_core::codec::{self, DecodeError};
use lock_core::manager::LockManager;
use lock_core::model::fence::Fence;
use lock_core::model::key::Db;
use lock_core::model::lock::Lock;
use lock_core::model::record::Origin;
use lock_core::model::session::UnlinkedLock;
use lock_core::model::state::State;
use server_api::context::{self, Flags};
use server_api::event::LoadedFrom;
use server_api::record::Record;
use server_api::value::{Destination, DigestPart, Value};
use std::ffi::CStr;

/// A lock as the value of a key.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Stored(pub Lock);

impl Value for Stored {
    const NAME: &'static CStr = c"redislock";
    // The codec's own version byte tells forms apart; this one only changes if the codec is no longer one string.
    const ENCODING: i32 = 1;

    fn load(saved: &[u8], place: Option<Destination<'_>>) -> Result<Stored, String> {
        let saved = codec::decode(saved).map_err(|error| match error {
            DecodeError::Newer(version) => format!("saved by a later version of this module (form {version})"),
            DecodeError::Broken => "damaged payload".to_owned(),
        })?;
        let mut lock = LockManager::load(&saved, origin(), shell().clock.now())
            .map_err(|_| "its fence lies more than a year ahead of the clock".to_owned())?;
        // The server may yet throw it away: its key has expired, or what follows it is damaged. So the core learns of
        // it when it lies under its key: see server_events.rs.
        shell().lock_arrived.set(true);
        // But for a data set that is loaded beside the one that is served: its keys cannot be opened before all of it
        // takes the old one's place, and nothing tells of each then.
        if let Some(Destination { db, name }) = place {
            with_manager(|manager| manager.index_incoming(db.map(Db), name, &mut lock));
        }
        Ok(Stored(lock))
    }

    fn save(&self) -> Vec<u8> {
        // What a closed connection has left of a hold is all that there is of it, also where its end is yet to come.
        let now = shell().clock.now();
        with_manager(|manager| codec::encode_until(&self.0, now, |hold| manager.sessions().end_of(hold)))
    }

    fn rewrite(&self, each: &mut dyn FnMut(Record<'_>)) {
        let now = shell().clock.now();
        for (owner, hold) in self.0.holds.iter() {
            let end = with_manager(|manager| manager.sessions().end_of(hold));
            replication::with_record(owner, State::until(hold, end, now), hold.note(), &mut *each);
        }
    }

    fn bytes(&self, name_len: usize) -> usize {
        self.0.bytes(name_len)
    }

    fn free_effort(&self) -> usize {
        // Never 0, which a lock that was just released has left: to the servers that means "always in the background".
        self.0.holds.len().max(1)
    }

    /// Times are left out: a replica's clocks are its own.
    fn digest(&self, each: &mut DigestPart<'_>) {
        for (owner, hold) in self.0.holds.iter() {
            let note = hold.note().map_or(&[][..], |note| &note.0);
            each(
                &[owner.as_bytes(), note],
                &[i64::from(hold.reads()), i64::from(hold.writes()), hold.fence().get() as i64],
            );
        }
    }

    fn unlinked(&self, db: u32, name: &[u8]) {
        if self.0.is_free() {
            // The step that has freed it knows.
            return;
        }
        shell().on_unlinked(Db(db), name, UnlinkedLock::of(&self.0));
    }

    fn save_aside() -> Option<u64> {
        with_manager(|manager| manager.last_fence()).map(Fence::get)
    }

    fn load_aside(saved: u64) -> Result<(), String> {
        match (saved, Fence::new(saved)) {
            // Saved by a node that had given none.
            (0, _) => Ok(()),
            (_, Some(fence)) => {
                with_manager(|manager| manager.observe_fence(fence));
                Ok(())
            }
            (_, None) => Err("the fence clock is out of range".to_owned()),
        }
    }
}

/// Where a value that is being loaded comes from. Outside of loading it is RESTORE: from a client on a primary, from
/// the primary on a replica.
fn origin() -> Origin {
    match shell().loading.get() {
        Some(LoadedFrom::Disk) => Origin::Disk,
        Some(LoadedFrom::Primary) => Origin::Peer,
        None if context::flags().contains(Flags::PRIMARY) => Origin::Client,
        None => Origin::Peer,
    }
}
