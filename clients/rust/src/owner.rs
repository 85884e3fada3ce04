//! Who holds a lock, as the server knows it, and which keys an owner has in use here. Sends nothing.

use crate::error::Error;
use crate::sync::{Caller, Watched};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A name that nobody else has: `host:pid:` and 128 random bits.
///
/// Each acquisition makes one for itself. A program that has to know the name beforehand, such as to find its wait in
/// `LOCK.INFO`, makes an owner and gives it to the lock ([`Lock::owner`](crate::Lock::owner)). Several locks under one
/// owner are for one thread of control: the server then sees when it waits for itself.
#[derive(Clone)]
pub struct Owner(Arc<Named>);

struct Named {
    name: String,
    /// The keys that it holds, waits for or has not left yet. True for those that are being released.
    in_use: Watched<HashMap<Vec<u8>, bool>>,
}

impl Owner {
    /// An owner with a name that no other has.
    ///
    /// # Panics
    ///
    /// If the system has no random bytes to give.
    #[expect(clippy::new_without_default, reason = "each one is another")]
    pub fn new() -> Owner {
        Owner::with_prefix("")
    }

    /// The same with a text of one's own before it, for people who read `LOCK.INFO`.
    ///
    /// # Panics
    ///
    /// If the system has no random bytes to give.
    pub fn with_prefix(prefix: &str) -> Owner {
        let system = rustix::system::uname();
        let host = system.nodename().to_string_lossy();
        let name = format!("{prefix}{host}:{}:{}", std::process::id(), random_hex());
        Owner(Arc::new(Named { name, in_use: Watched::default() }))
    }

    /// One that another process has named.
    pub(crate) fn named(name: &str) -> Owner {
        Owner(Arc::new(Named { name: name.to_owned(), in_use: Watched::default() }))
    }

    /// The name, as the server has it.
    pub fn as_str(&self) -> &str {
        &self.0.name
    }

    /// Takes keys into use, all or none. Whoever asked twice for one under one name would have it once, and give it
    /// back under the feet of the other. One that is being released is waited for, so long at most.
    pub(crate) async fn claim(&self, caller: Caller, keys: &[Vec<u8>], patience: Duration) -> Result<Claim, Error> {
        let is_released = |in_use: &mut HashMap<Vec<u8>, bool>| {
            (!keys.iter().any(|key| in_use.get(key) == Some(&true))).then_some(())
        };
        let _: Option<()> = self.0.in_use.wait(caller, Some(patience), is_released).await;
        let mut in_use = self.0.in_use.lock();
        for (number, key) in keys.iter().enumerate() {
            if in_use.contains_key(key) || keys[..number].contains(key) {
                let key = key.escape_ascii();
                return Err(Error::Refused(format!("key \"{key}\" is in use by this owner already")));
            }
        }
        in_use.extend(keys.iter().map(|key| (key.clone(), false)));
        Ok(Claim(Arc::new(Claimed { owner: self.clone(), keys: keys.to_vec(), kept: AtomicBool::new(false) })))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Owner").field(&self.as_str()).finish()
    }
}

/// 128 random bits.
pub(crate) fn random_hex() -> String {
    let mut bytes = [0; 16];
    // So few bytes come whole, or not at all.
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    assert_eq!(got, Ok(bytes.len()), "the system has no random bytes");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Keys that an owner has in use until this and all its clones are dropped.
#[derive(Clone)]
pub(crate) struct Claim(Arc<Claimed>);

struct Claimed {
    owner: Owner,
    keys: Vec<Vec<u8>>,
    kept: AtomicBool,
}

impl Claim {
    /// A claim to nothing. Where it was given away, it tells whether it came back.
    pub(crate) fn of_nothing(owner: &Owner) -> Claim {
        Claim(Arc::new(Claimed { owner: owner.clone(), keys: Vec::new(), kept: AtomicBool::new(false) }))
    }

    /// Whether all clones of it are gone, and none was kept.
    pub(crate) fn came_back(&self) -> bool {
        Arc::strong_count(&self.0) == 1 && !self.0.kept.load(Ordering::Relaxed)
    }

    /// The keys are being released: whoever asks for them under this name waits for that.
    pub(crate) fn release(&self) {
        let mut in_use = self.0.owner.0.in_use.lock();
        for key in &self.0.keys {
            in_use.insert(key.clone(), true);
        }
    }

    /// Never gives the keys back: nobody knows what the server still has under this owner.
    pub(crate) fn keep(self) {
        self.0.kept.store(true, Ordering::Relaxed);
        let mut in_use = self.0.owner.0.in_use.lock();
        for key in &self.0.keys {
            in_use.insert(key.clone(), false);
        }
        self.0.owner.0.in_use.notify();
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if !*self.kept.get_mut() {
            let mut in_use = self.owner.0.in_use.lock();
            for key in &self.keys {
                in_use.remove(key);
            }
            self.owner.0.in_use.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::here;
    use std::collections::HashSet;

    #[test]
    fn no_two_owners_have_one_name() {
        let names: HashSet<String> = (0..1000).map(|_| Owner::new().to_string()).collect();
        assert_eq!(names.len(), 1000);
        let owner = Owner::with_prefix("deploy-");
        assert!(owner.as_str().starts_with("deploy-"));
        assert!(owner.as_str().contains(&format!(":{}:", std::process::id())));
        assert_eq!(owner.as_str().rsplit(':').next().map(str::len), Some(32));
    }

    fn claim(owner: &Owner, keys: &[Vec<u8>], patience: Duration) -> Result<Claim, Error> {
        here(owner.claim(Caller::Thread, keys, patience))
    }

    #[test]
    fn a_key_is_in_use_once_until_its_claim_ends() {
        let keys = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>();
        let owner = Owner::new();
        let first = claim(&owner, &keys(&["a", "b"]), Duration::ZERO).ok();
        assert!(first.is_some());
        // Refused whole: c is free afterwards.
        assert!(matches!(claim(&owner, &keys(&["c", "b"]), Duration::ZERO), Err(Error::Refused(_))));
        assert!(matches!(claim(&owner, &keys(&["c", "c"]), Duration::ZERO), Err(Error::Refused(_))));
        assert!(claim(&owner, &keys(&["c"]), Duration::ZERO).is_ok());
        first.iter().for_each(Claim::release);
        assert!(claim(&owner, &keys(&["b"]), Duration::from_millis(1)).is_err());
        let again = std::thread::scope(|scope| {
            let again = scope.spawn(|| claim(&owner, &keys(&["b"]), Duration::MAX).is_ok());
            drop(first);
            again.join().expect("no panic")
        });
        assert!(again, "what is being released is waited for");
        let again = claim(&owner, &keys(&["b"]), Duration::ZERO);
        again.expect("free").keep();
        assert!(claim(&owner, &keys(&["b"]), Duration::ZERO).is_err());
        assert!(claim(&Owner::new(), &keys(&["b"]), Duration::ZERO).is_ok());
    }
}
