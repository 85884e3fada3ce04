package redislock.tests;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.json.JSONObject;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import redis.clients.jedis.Jedis;
import redislock.Hold;
import redislock.RedisLocks;

/** What a lock takes, which is no more than clients/costs.json says. */
class CostsTest {
    private static final int ROUNDS = 5;
    /** Longer than what validity is shorter than the lease, which is no reason to extend a grant. */
    private static final long WAIT_MILLIS = 400;
    /**
     * After two such rounds an idle connection may be dead, or the end of BLOCK near: on a busy machine one may ask once more.
     */
    private static final long LONG_MILLIS = 1_000;

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void a_lock_costs_what_costs_json_says(Library library) throws Exception {
        JSONObject costs = new JSONObject(Files.readString(Path.of(Server.ROOT, "clients/costs.json"))).getJSONObject("java");
        for (String name : costs.keySet()) {
            int blocking = name.equals("notified") ? 0 : 8;
            // Of its own: requests and connections are counted.
            try (Server server = new Server();
                    Jedis other = server.client();
                    RedisLocks locks = server.builder(library).maxBlockingConnections(blocking).build()) {
                play(locks, other, name);
                long more = 0;
                long requests = requests(other);
                long connections = connections(other);
                for (int round = 0; round < ROUNDS; round += 1) more += play(locks, other, name);
                JSONObject allowed = costs.getJSONObject(name);
                long took = requests(other) - requests - (name.equals("free") ? 0 : 2 * ROUNDS);
                long opened = connections(other) - connections;
                String text = name + ": " + took + " requests and " + opened + " connections in " + ROUNDS + " rounds; late: " + more;
                assertTrue(took <= ROUNDS * allowed.getLong("requests") + 2 * more, text);
                assertTrue(opened <= allowed.getLong("connections") + more, text);
            }
        }
    }

    /** How often the machine was too busy. */
    private static long play(RedisLocks locks, Jedis other, String name) throws Exception {
        long began = System.nanoTime();
        if (name.equals("free")) {
            locks.exclusive("k").acquire().close();
        } else {
            Server.ask(other, "LOCK.ACQUIRE", "k", "another", "PX", "600000");
            CompletableFuture<Hold> wait = locks.exclusive("k").acquireAsync();
            Server.await("a place", () -> Backend.value((List<?>) Server.ask(other, "LOCK.INFO", "k"), "waiting").equals(1L));
            Thread.sleep(WAIT_MILLIS);
            Server.ask(other, "LOCK.RELEASE", "k", "another");
            wait.get(300, TimeUnit.SECONDS).close();
        }
        return TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began) / LONG_MILLIS;
    }

    private static long requests(Jedis other) {
        return number(other.info("commandstats"), "cmdstat_lock\\.(?:acquire|extend|release):calls=(\\d+)");
    }

    private static long connections(Jedis other) {
        return number(other.info("stats"), "total_connections_received:(\\d+)");
    }

    /** The sum of all such numbers. */
    private static long number(String info, String pattern) {
        return Pattern.compile(pattern).matcher(info).results().mapToLong(found -> Long.parseLong(found.group(1))).sum();
    }
}
