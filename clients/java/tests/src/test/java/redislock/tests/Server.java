package redislock.tests;

import static java.nio.charset.StandardCharsets.UTF_8;

import io.lettuce.core.RedisURI;
import java.net.URI;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Optional;
import java.util.function.BooleanSupplier;
import java.util.stream.Stream;
import redis.clients.jedis.Jedis;
import redislock.RedisLocks;
import redislock.jedis.JedisTransport;
import redislock.lettuce.LettuceTransport;
import redislock.test.LockServer;

/** A server with the module, and what tests ask it. */
final class Server implements Backend, AutoCloseable {
    static final Duration PATIENCE = Duration.ofSeconds(120);
    /** That of the repository. */
    static final String ROOT = Optional.ofNullable(System.getenv("REDIS_LOCK_ROOT")).orElse("../../..");

    /** The name of a client that does not count. */
    static final String WITNESS = "witness";

    private final LockServer server;

    /** {@code more}: settings beside the usual ones, as on its command line. */
    Server(String... more) {
        this(of(Stream.concat(Stream.of("--appendonly", "yes"), Stream.of(more)).toArray(String[]::new)));
    }

    private Server(LockServer server) {
        this.server = server;
        start();
    }

    /** One that runs another program. */
    static Server by(String program, String... more) {
        return new Server(of(more).program(program));
    }

    /** A server that is not started yet, with the module of the build. */
    static LockServer of(String... more) {
        String module = Optional.ofNullable(System.getenv("REDIS_LOCK_MODULE")).orElse(ROOT + "/target/release/libredis_lock.so");
        return LockServer.withModule(Path.of(module), more);
    }

    @Override
    public RedisLocks.Builder builder(Library library) {
        return builder(library, url());
    }

    /** By this URL, which may name a user. */
    static RedisLocks.Builder builder(Library library, String url) {
        return RedisLocks.builder(
                library == Library.JEDIS ? JedisTransport.of(URI.create(url)) : LettuceTransport.of(RedisURI.create(url)));
    }

    /** Starts it, again on the same port: it has forgotten nothing. */
    void start() {
        server.start();
    }

    void stop() {
        server.stop();
    }

    String url() {
        return server.url();
    }

    int port() {
        return server.port();
    }

    Jedis client() {
        return new Jedis("127.0.0.1", server.port(), 10_000);
    }

    /** The reply to a command. */
    @Override
    public Object ask(String... words) {
        try (Jedis jedis = client()) {
            return ask(jedis, words);
        }
    }

    static Object ask(Jedis jedis, String... words) {
        return jedis.sendCommand(() -> words[0].getBytes(UTF_8), Stream.of(words).skip(1).toArray(String[]::new));
    }

    /** How often a command ran. */
    @Override
    public long calls(String command) {
        try (Jedis jedis = client()) {
            return number(jedis, "commandstats", "cmdstat_" + command + ":calls=");
        }
    }

    @Override
    public long clients() {
        try (Jedis jedis = client()) {
            return jedis.clientList().lines().filter(line -> !line.contains(" name=" + WITNESS + " ")).count() - 1;
        }
    }

    /** The same as text. */
    String text(String... words) {
        Object reply = ask(words);
        return reply instanceof byte[] raw ? new String(raw, UTF_8) : String.valueOf(reply);
    }

    /** A number of INFO lock. */
    long number(String name) {
        try (Jedis jedis = client()) {
            return number(jedis, "lock", name + ":");
        }
    }

    /** A number of a section of INFO, by what is before it; 0 if it is not there. */
    static long number(Jedis jedis, String section, String head) {
        return jedis.info(section).lines().filter(line -> line.startsWith(head)).findFirst()
                .map(line -> Long.parseLong(line.substring(head.length()).split(",")[0])).orElse(0L);
    }

    static void await(String what, BooleanSupplier isSo) {
        long end = System.nanoTime() + PATIENCE.toNanos();
        while (!isSo.getAsBoolean()) {
            if (System.nanoTime() > end) throw new AssertionError("in vain waited for " + what);
            try {
                Thread.sleep(5);
            } catch (InterruptedException interrupted) {
                throw new AssertionError(interrupted);
            }
        }
    }

    @Override
    public void close() {
        server.close();
    }
}
