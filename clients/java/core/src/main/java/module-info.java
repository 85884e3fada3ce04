/** Locks in Redis and Valkey with the module redis-lock. */
module redislock {
    requires transitive static org.jspecify;

    exports redislock;
    exports redislock.spi;
}
