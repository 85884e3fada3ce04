/** Tests of programs that use redislock: a server in memory, and one that is started. */
module redislock.test {
    requires transitive redislock;
    requires transitive static org.jspecify;
    requires transitive static org.junit.jupiter.api;

    exports redislock.test;
}
