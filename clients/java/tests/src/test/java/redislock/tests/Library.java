package redislock.tests;

/** A client library, or none and a server in memory. */
enum Library {
    LETTUCE,
    JEDIS,
    FAKE
}
