//! What a change sends out: records to replicas and the AOF, signals to watching clients, events to subscribers.

use super::context::Ctx;
use super::record::Record;
use super::string::Str;
use redis_module::raw;
use std::ffi::CStr;

impl Ctx<'_> {
    /// True if nothing may be replicated now, because of CLIENT PAUSE or a failover. To replicate all the same aborts
    /// the server.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        // SAFETY: the function takes no argument.
        unsafe { api!(RedisModule_AvoidReplicaTraffic()) != 0 }
    }

    /// True if the server has replicas, or a backlog for replicas that may come back. Costs some ten microseconds.
    #[must_use]
    pub fn has_replicas(&self) -> bool {
        // SAFETY: the context lives for this call (rule 2). The module owns what the server returns, reads
        // it, and frees it once at the end.
        unsafe {
            let said = api!(RedisModule_GetServerInfo(self.as_ptr(), c"replication".as_ptr()));
            let number = |field: &CStr| {
                let mut err = 0;
                let number = api!(RedisModule_ServerInfoGetFieldUnsigned(said, field.as_ptr(), &raw mut err));
                // Without that field in INFO, there may be replicas.
                if err == 0 { number } else { 1 }
            };
            let some = number(c"connected_slaves") > 0 || number(c"repl_backlog_active") > 0;
            api!(RedisModule_FreeServerInfo(self.as_ptr(), said));
            some
        }
    }

    /// Counts a change for the save points, and replicates as little as it can: for a server without replicas and AOF.
    pub fn mark_dirty(&mut self, record: &CStr) {
        // SAFETY: the context lives for this call (rule 2), and is that of a command where the arguments of one
        // are replicated. The format says that no argument follows.
        unsafe {
            if self.is_command() {
                api!(RedisModule_ReplicateVerbatim(self.as_ptr()));
            } else {
                api!(RedisModule_Replicate(self.as_ptr(), record.as_ptr(), c"".as_ptr()));
            }
        }
    }

    /// Sends a record of the selected database to replicas and the AOF.
    pub fn replicate(&mut self, key: Str<'_>, record: Record<'_>) {
        let Record { command, name, word, text } = record;
        let (ctx, command, key) = (self.as_ptr(), command.as_ptr(), key.as_ptr());
        let (word, word_len) = (word.as_ptr(), word.len());
        // The server counts one more user of a string of its own, and makes a copy of any other bytes.
        let lent = self.argument(name).map(Str::as_ptr);
        let (name, name_len) = (name.as_ptr(), name.len());
        // SAFETY: the context lives for this call (rule 2), and so do the key's name and the command's arguments. The
        // formats describe what follows: each `s` a string, each `b` bytes and their length, which the server copies.
        unsafe {
            match (lent, text.map(|text| (text.as_ptr(), text.len()))) {
                (Some(name), None) => {
                    api!(RedisModule_Replicate(ctx, command, c"ssb".as_ptr(), key, name, word, word_len))
                }
                (Some(name), Some((text, len))) => {
                    api!(RedisModule_Replicate(ctx, command, c"ssbb".as_ptr(), key, name, word, word_len, text, len))
                }
                (None, None) => {
                    let format = c"sbb".as_ptr();
                    api!(RedisModule_Replicate(ctx, command, format, key, name, name_len, word, word_len))
                }
                (None, Some((text, len))) => {
                    let format = c"sbbb".as_ptr();
                    api!(RedisModule_Replicate(ctx, command, format, key, name, name_len, word, word_len, text, len))
                }
            }
        };
    }

    /// Sends a record of a single word: `command key word`.
    pub fn replicate_word(&mut self, command: &CStr, key: Str<'_>, word: &[u8]) {
        let (format, len) = (c"sb".as_ptr(), word.len());
        // SAFETY: the context lives for this call (rule 2), and so does the key's name. The format describes a string,
        // and bytes with their length, which the server copies.
        unsafe {
            api!(RedisModule_Replicate(self.as_ptr(), command.as_ptr(), format, key.as_ptr(), word.as_ptr(), len))
        };
    }

    /// Sends to replicas and the AOF when a key's time to live ends, in milliseconds of the wall clock.
    pub fn replicate_expiry(&mut self, key: Str<'_>, at_ms: i64) {
        // SAFETY: the context lives for this call (rule 2), and so does the key's name. The format describes a string
        // and a number.
        unsafe {
            api!(RedisModule_Replicate(self.as_ptr(), c"PEXPIREAT".as_ptr(), c"sl".as_ptr(), key.as_ptr(), at_ms))
        };
    }

    /// Sends to replicas and the AOF that a key is gone.
    pub fn replicate_unlink(&mut self, key: Str<'_>) {
        // SAFETY: the context lives for this call (rule 2), and so does the key's name. The format describes a string.
        unsafe { api!(RedisModule_Replicate(self.as_ptr(), c"UNLINK".as_ptr(), c"s".as_ptr(), key.as_ptr())) };
    }

    /// Tells clients that watch or track a key that it changed.
    pub fn signal_modified(&mut self, key: Str<'_>) {
        // SAFETY: the context lives for this call (rule 2), and so does the key's name.
        unsafe { api!(RedisModule_SignalModifiedKey(self.as_ptr(), key.as_ptr())) };
    }

    /// Sends a keyspace event of the module class (`d`).
    pub fn notify(&mut self, event: &CStr, key: Str<'_>) {
        // SAFETY: the context lives for this call (rule 2), and so do the event and the key's name.
        unsafe {
            api!(RedisModule_NotifyKeyspaceEvent(
                self.as_ptr(),
                raw::REDISMODULE_NOTIFY_MODULE,
                event.as_ptr(),
                key.as_ptr()
            ))
        };
    }
}
