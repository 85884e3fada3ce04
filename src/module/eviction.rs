//! A warning in the log of the server if it may evict locks: their holders would not know, and others would get them.

use server_api::info::server_field;
use server_api::log::log_warning;

/// Warns if the policy that is in force may evict a key without a TTL, as locks are.
pub fn warn_if_locks_may_go() {
    if let Some(policy) = server_field(c"memory", c"maxmemory_policy").filter(|policy| policy.starts_with("allkeys-")) {
        log_warning(&format!(
            "maxmemory-policy is {policy}: at maxmemory the server drops locks while they are held; set noeviction"
        ));
    }
}
