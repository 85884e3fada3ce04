package redislock.tests;

import java.util.Locale;
import redislock.RedisLocks;
import redislock.test.FakeServer;

/** The server in memory. */
record InMemory(FakeServer fake) implements Backend {
    @Override
    public Object ask(String... words) {
        return fake.ask(words);
    }

    @Override
    public long calls(String command) {
        return fake.calls(command.toUpperCase(Locale.ROOT));
    }

    @Override
    public long clients() {
        return fake.connections();
    }

    @Override
    public RedisLocks.Builder builder(Library library) {
        return RedisLocks.builder(fake.transport());
    }
}
