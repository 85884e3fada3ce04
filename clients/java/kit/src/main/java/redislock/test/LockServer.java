package redislock.test;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.BindException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/**
 * A server with the module, for a class of tests: on a free port, in a folder of its own, and ended with the tests.
 *
 * <pre>{@code
 * @RegisterExtension
 * static final LockServer SERVER = LockServer.withModule(Path.of("libredis_lock.so"));
 * }</pre>
 *
 * <p>The program is {@code redis-server}, or what the environment variable {@code REDIS_LOCK_SERVER} or {@link #program} says.
 */
public final class LockServer implements BeforeAllCallback, AfterAllCallback, AutoCloseable {
    private static final int START_MS = 30_000;
    private static final int CONNECT_MS = 2_000;
    private static final long PAUSE_NANOS = 5_000_000;
    /** Below those that a system gives to connections, which any process may get at any time. */
    private static final int FIRST_PORT = 11_000;

    private static final int PORTS = 8_000;
    private static final int TRIES = 10;
    private static final AtomicInteger NEXT = new AtomicInteger(ThreadLocalRandom.current().nextInt(PORTS));

    private final Path module;
    private final List<String> settings;
    private String program = Optional.ofNullable(System.getenv("REDIS_LOCK_SERVER")).orElse("redis-server");
    private int port;
    private @Nullable Path folder;
    private @Nullable Process process;

    private LockServer(Path module, List<String> settings) {
        this.module = module;
        this.settings = settings;
    }

    /**
     * Returns a server that is not started yet.
     *
     * @param module the file of the module
     * @param settings more words for the server's command line, as {@code "--appendonly", "yes"}
     * @return the server, which an extension or {@link #start} starts
     */
    public static LockServer withModule(Path module, String... settings) {
        return new LockServer(Objects.requireNonNull(module, "module"), List.of(settings));
    }

    /**
     * Returns a server whose module the environment variable {@code REDIS_LOCK_MODULE} names.
     *
     * @param settings more words for the server's command line
     * @return the server, which an extension or {@link #start} starts
     * @throws IllegalStateException if the variable is not set
     */
    public static LockServer fromEnvironment(String... settings) {
        String file = System.getenv("REDIS_LOCK_MODULE");
        if (file == null) throw new IllegalStateException("REDIS_LOCK_MODULE must name the file of the module");
        return withModule(Path.of(file), settings);
    }

    /**
     * Sets which program the next start runs.
     *
     * @param name as {@code valkey-server}, or its file
     * @return this server
     */
    public LockServer program(String name) {
        program = Objects.requireNonNull(name, "name");
        return this;
    }

    @Override
    public void beforeAll(ExtensionContext context) {
        start();
    }

    @Override
    public void afterAll(ExtensionContext context) {
        close();
    }

    /**
     * Starts it, also again after {@link #stop}: on the same port and with the same files.
     *
     * @throws IllegalStateException if it ends at once, with what it said, or does not answer within 30 s
     */
    public void start() {
        boolean isFirst = folder == null;
        try {
            if (folder == null) folder = Files.createTempDirectory("redislock");
            for (int tries = 1; ; tries += 1) {
                if (isFirst) port = freePort();
                launch();
                if (isUp()) return;
                String said = log();
                stop();
                // Another process was faster.
                if (tries < TRIES && said.contains("in use")) continue;
                close();
                throw new IllegalStateException("the server does not start:\n" + said);
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private void launch() throws IOException {
        Path files = Objects.requireNonNull(folder);
        List<String> command = new ArrayList<>(List.of(
                program, "--port", String.valueOf(port), "--bind", "127.0.0.1", "--save", "", "--dir", files.toString(),
                "--loadmodule", module.toAbsolutePath().toString()));
        command.addAll(settings);
        process = new ProcessBuilder(command).redirectErrorStream(true).redirectOutput(files.resolve("log").toFile()).start();
    }

    /** True if it answers; false if it ended or does not answer for long. */
    private boolean isUp() {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(START_MS);
        while (!answers()) {
            Process running = process;
            if (running == null || !running.isAlive() || System.nanoTime() > end) return false;
            // It returns at once on a thread that is interrupted, and keeps that.
            LockSupport.parkNanos(PAUSE_NANOS);
        }
        return true;
    }

    /**
     * Returns a port for one more program of a test. Each one once: what still calls a former server does not reach the next.
     *
     * @return free now, and below those that the system gives to connections
     * @throws IOException if none is
     */
    public static int freePort() throws IOException {
        for (int tries = 0; tries < PORTS; tries += 1) {
            int number = FIRST_PORT + Math.floorMod(NEXT.getAndIncrement(), PORTS);
            try (ServerSocket free = new ServerSocket()) {
                free.bind(new InetSocketAddress(InetAddress.getLoopbackAddress(), number));
                return number;
            } catch (BindException taken) {
                // The next one may be free.
            }
        }
        throw new IOException("no port is free");
    }

    private boolean answers() {
        try (Socket socket = new Socket()) {
            socket.connect(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), CONNECT_MS);
            socket.setSoTimeout(CONNECT_MS);
            socket.getOutputStream().write("PING\r\n".getBytes(UTF_8));
            return socket.getInputStream().read() == '+';
        } catch (IOException early) {
            return false;
        }
    }

    /**
     * Returns what the server has said.
     *
     * @return its log since the last start
     */
    public String log() {
        try {
            return folder == null ? "" : Files.readString(folder.resolve("log"));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /**
     * Returns the port on 127.0.0.1.
     *
     * @return 0 before the first start
     */
    public int port() {
        return port;
    }

    /**
     * Returns where it is, for a client library.
     *
     * @return as {@code redis://127.0.0.1:6379}
     */
    public String url() {
        return "redis://127.0.0.1:" + port;
    }

    /** Kills it, as a machine that loses its power. {@link #start} starts it again. */
    public void stop() {
        Process running = process;
        process = null;
        if (running == null) return;
        running.destroyForcibly();
        running.onExit().orTimeout(START_MS, TimeUnit.MILLISECONDS).join();
    }

    /** Ends it, and removes its files. */
    @Override
    public void close() {
        stop();
        Path files = folder;
        folder = null;
        if (files == null) return;
        try (Stream<Path> all = Files.walk(files)) {
            for (Path file : all.sorted(Comparator.reverseOrder()).toList()) Files.delete(file);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
