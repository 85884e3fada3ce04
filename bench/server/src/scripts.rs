//! What people lock with where there is no module: scripts, and the library of a function.

use crate::server::Bench;

/// Deletes a lock that is a string, if it is the owner's.
pub const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

/// The same as a function.
const LIBRARY: &str = "#!lua name=bench
    redis.register_function('compare_and_delete', function(keys, args)
        if redis.call('get', keys[1]) == args[1] then return redis.call('del', keys[1]) else return 0 end
    end)";

/// The shape of Redisson's lock, a hash of counts: null when taken, else for how long the lock is still held.
/// Lock; owner, lease.
pub const TAKE: &str = "
    if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[1]) == 1 then
        redis.call('hincrby', KEYS[1], ARGV[1], 1)
        redis.call('pexpire', KEYS[1], ARGV[2])
        return nil
    end
    return redis.call('pttl', KEYS[1])";

/// 1 when the last count was released and all subscribers were informed. The latch remembers the answer for a client
/// that has not got it and asks again. Lock, channel, latch; owner, lease, how long the latch lasts.
const GIVE: &str = "
    local answered = redis.call('get', KEYS[3])
    if answered then
        return tonumber(answered)
    end
    if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
        return nil
    end
    local answer = 0
    if redis.call('hincrby', KEYS[1], ARGV[1], -1) > 0 then
        redis.call('pexpire', KEYS[1], ARGV[2])
    else
        redis.call('del', KEYS[1])
        redis.call('publish', KEYS[2], '0')
        answer = 1
    end
    redis.call('set', KEYS[3], answer, 'px', ARGV[3])
    return answer";

/// The same without a latch, as Redisson had it before. Lock, channel; owner, lease.
pub const GIVE_AND_TELL: &str = "
    if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
        return nil
    end
    if redis.call('hincrby', KEYS[1], ARGV[1], -1) > 0 then
        redis.call('pexpire', KEYS[1], ARGV[2])
        return 0
    end
    redis.call('del', KEYS[1])
    redis.call('publish', KEYS[2], '0')
    return 1";

/// The shape of its read lock: beside the hash each count of a reader has a key that lasts as long as its lease.
/// Lock, prefix of the reader's keys; reader, lease.
const TAKE_READ: &str = "
    local mode = redis.call('hget', KEYS[1], 'mode')
    if mode and mode ~= 'read' then
        return redis.call('pttl', KEYS[1])
    end
    if not mode then
        redis.call('hset', KEYS[1], 'mode', 'read')
    end
    local count = redis.call('hincrby', KEYS[1], ARGV[1], 1)
    local key = KEYS[2] .. ':' .. count
    redis.call('set', key, 1)
    redis.call('pexpire', key, ARGV[2])
    redis.call('pexpire', KEYS[1], math.max(redis.call('pttl', KEYS[1]), ARGV[2]))
    return nil";

/// Reads how long the leases of all other readers last, so that the lock lasts as long: 0 while there are others. Lock,
/// channel, prefix of the reader's keys, prefix of all readers' keys, latch; reader, how long the latch lasts.
const GIVE_READ: &str = "
    local answered = redis.call('get', KEYS[5])
    if answered then
        return tonumber(answered)
    end
    if not redis.call('hget', KEYS[1], 'mode') or redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
        return nil
    end
    local count = redis.call('hincrby', KEYS[1], ARGV[1], -1)
    if count == 0 then
        redis.call('hdel', KEYS[1], ARGV[1])
    end
    redis.call('del', KEYS[3] .. ':' .. (count + 1))
    local longest = 0
    if redis.call('hlen', KEYS[1]) > 1 then
        for _, reader in ipairs(redis.call('hkeys', KEYS[1])) do
            local counts = tonumber(redis.call('hget', KEYS[1], reader))
            for nth = counts or 0, 1, -1 do
                longest = math.max(longest, redis.call('pttl', KEYS[4] .. ':' .. reader .. ':' .. nth))
            end
        end
    end
    local answer = 0
    if longest > 0 then
        redis.call('pexpire', KEYS[1], longest)
    else
        redis.call('del', KEYS[1])
        redis.call('publish', KEYS[2], '0')
        answer = 1
    end
    redis.call('set', KEYS[5], answer, 'px', ARGV[2])
    return answer";

/// Semaphores in the shape of npm's redis-semaphore: a sorted set of holders by the time of their request. It goes by
/// the clocks of its clients. 1 when taken, else null. Set; holder, limit, now, lease.
pub const TAKE_PERMIT: &str = "
    local now, lease = tonumber(ARGV[3]), tonumber(ARGV[4])
    redis.call('zremrangebyscore', KEYS[1], '-inf', now - lease)
    if redis.call('zcard', KEYS[1]) >= tonumber(ARGV[2]) then
        return nil
    end
    redis.call('zadd', KEYS[1], now, ARGV[1])
    redis.call('pexpire', KEYS[1], lease)
    return 1";

/// Loads all of them; what sequences call them, and their hashes.
pub fn load(server: &mut Bench) -> Vec<(String, String)> {
    server.conn.get::<String>(&["FUNCTION", "LOAD", "REPLACE", LIBRARY]);
    let scripts = [
        ("compare_and_delete", COMPARE_AND_DELETE),
        ("take", TAKE),
        ("give", GIVE),
        ("take_read", TAKE_READ),
        ("give_read", GIVE_READ),
        ("take_permit", TAKE_PERMIT),
    ];
    scripts.map(|(name, script)| (name.to_owned(), server.conn.get(&["SCRIPT", "LOAD", script]))).into()
}
