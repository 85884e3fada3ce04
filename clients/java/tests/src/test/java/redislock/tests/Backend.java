package redislock.tests;

import redislock.RedisLocks;

/** What has the locks: a server, or one in memory. */
interface Backend {
    /** The reply to a command of another client. */
    Object ask(String... words);

    /** How often a command was called, as {@code lock.extend}. */
    long calls(String command);

    /** How many connections there are. */
    long clients();

    RedisLocks.Builder builder(Library library);
}
