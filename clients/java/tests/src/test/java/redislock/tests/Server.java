package redislock.tests;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.IOException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.stream.Stream;
import redis.clients.jedis.Jedis;

/** A server with the module: on a free port, in a folder of its own, and ended at the end. */
final class Server implements AutoCloseable {
    static final Duration PATIENCE = Duration.ofSeconds(30);

    private final int port;
    private final Path folder;
    private final String[] more;
    private Process process;

    /** {@code more}: settings beside the usual ones, as on its command line. */
    Server(String... more) throws IOException {
        this.more = more;
        try (ServerSocket free = new ServerSocket(0)) {
            port = free.getLocalPort();
        }
        folder = Files.createTempDirectory("redislock");
        start();
    }

    private static String setting(String name, String otherwise) {
        return Optional.ofNullable(System.getenv(name)).orElse(otherwise);
    }

    /** Starts it, again on the same port: it has forgotten nothing. */
    void start() throws IOException {
        String root = setting("REDIS_LOCK_ROOT", "../..");
        String module = setting("REDIS_LOCK_MODULE", root + "/target/release/libredis_lock.so");
        List<String> command = new ArrayList<>(List.of(
                setting("REDIS_LOCK_SERVER", "redis-server"), "--port", String.valueOf(port), "--save", "", "--appendonly", "yes", "--dir",
                folder.toString(), "--loadmodule", Path.of(module).toAbsolutePath().toString()));
        command.addAll(List.of(more));
        ProcessBuilder builder = new ProcessBuilder(command);
        builder.redirectErrorStream(true).redirectOutput(folder.resolve("log").toFile());
        process = builder.start();
        await("the server", () -> {
            try (Jedis jedis = client()) {
                return "PONG".equals(jedis.ping());
            } catch (RuntimeException early) {
                if (!process.isAlive()) throw new IllegalStateException("the server ended: " + folder.resolve("log"));
                return false;
            }
        });
    }

    void stop() {
        process.destroyForcibly();
        try {
            if (!process.waitFor(10, TimeUnit.SECONDS)) throw new IllegalStateException("the server does not end");
        } catch (InterruptedException interrupted) {
            throw new IllegalStateException(interrupted);
        }
    }

    String url() {
        return "redis://127.0.0.1:" + port;
    }

    Jedis client() {
        return new Jedis("127.0.0.1", port, 10_000);
    }

    /** The reply to a command. */
    Object ask(String... words) {
        try (Jedis jedis = client()) {
            return jedis.sendCommand(
                    () -> words[0].getBytes(UTF_8), Stream.of(words).skip(1).toArray(String[]::new));
        }
    }

    /** How often a command ran. */
    long calls(String command) {
        try (Jedis jedis = client()) {
            for (String line : jedis.info("commandstats").split("\r\n")) {
                String head = "cmdstat_" + command + ":calls=";
                if (line.startsWith(head)) return Long.parseLong(line.substring(head.length(), line.indexOf(',')));
            }
            return 0;
        }
    }

    long clients() {
        try (Jedis jedis = client()) {
            return jedis.clientList().lines().count() - 1;
        }
    }

    /** The same as text. */
    String text(String... words) {
        Object reply = ask(words);
        return reply instanceof byte[] raw ? new String(raw, UTF_8) : String.valueOf(reply);
    }

    /** A number of INFO lock. */
    long number(String name) {
        return text("INFO", "lock").lines().filter(line -> line.startsWith(name + ":")).findFirst()
                .map(line -> Long.parseLong(line.substring(name.length() + 1))).orElse(0L);
    }

    /** How many connections have a subscription. */
    long subscribers() {
        return text("CLIENT", "LIST", "TYPE", "pubsub").lines().filter(line -> line.contains(" sub=1 ")).count();
    }

    /** The one channel that somebody has subscribed to. */
    String channel() {
        List<?> channels = (List<?>) ask("PUBSUB", "CHANNELS");
        return new String((byte[]) channels.get(0), UTF_8);
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
    public void close() throws IOException {
        stop();
        try (Stream<Path> files = Files.walk(folder)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) Files.delete(file);
        }
    }
}
