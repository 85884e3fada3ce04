package redislock.tests;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import redislock.RedisLocks;
import redislock.spi.Threads;

/** On virtual threads, by a second JDK if this one has none: {@code REDIS_LOCK_JDK}, or the newest of /usr/lib/jvm. */
class VirtualThreadsTest {
    private static final int FIRST = 21;

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void virtual_threads_wait_and_renew_as_others_do(Library library) throws Exception {
        Path jdk = jdk().orElse(null);
        Assumptions.assumeTrue(jdk != null, "there is no JDK of Java " + FIRST + " or newer");
        String libraries = System.getProperty("surefire.test.class.path", System.getProperty("java.class.path"));
        Process process = new ProcessBuilder(
                        jdk.resolve("bin/java").toString(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", libraries,
                        VirtualThreadsTest.class.getName(), library.name())
                .redirectErrorStream(true)
                .start();
        String said = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        assertEquals(0, process.waitFor(), said);
    }

    /** The newest one that has virtual threads. */
    private static Optional<Path> jdk() throws Exception {
        String named = System.getenv("REDIS_LOCK_JDK");
        if (named != null) return Optional.of(Path.of(named));
        Path all = Path.of("/usr/lib/jvm");
        if (Runtime.version().feature() >= FIRST) return Optional.of(Path.of(System.getProperty("java.home")));
        if (!Files.isDirectory(all)) return Optional.empty();
        try (Stream<Path> homes = Files.list(all)) {
            return homes.filter(home -> versionOf(home) >= FIRST).max((one, other) -> versionOf(one) - versionOf(other));
        }
    }

    private static int versionOf(Path home) {
        try (Stream<String> lines = Files.lines(home.resolve("release"))) {
            return lines.filter(line -> line.startsWith("JAVA_VERSION="))
                    .map(line -> Integer.parseInt(line.split("[\".]")[1]))
                    .findFirst()
                    .orElse(0);
        } catch (java.io.IOException | java.io.UncheckedIOException none) {
            return 0;
        }
    }

    /** What the second JDK runs. */
    public static void main(String[] words) throws Exception {
        Library library = Library.valueOf(words[0]);
        ExecutorService threads = Threads.each("never used");
        boolean isVirtual = threads.submit(() -> (Boolean) Thread.class.getMethod("isVirtual").invoke(Thread.currentThread())).get();
        assertTrue(isVirtual);
        try (Server server = new Server();
                RedisLocks locks = server.builder(library).keyPrefix(Scenario.PREFIX).build();
                RedisLocks told = server.builder(library).keyPrefix(Scenario.PREFIX).maxBlockingConnections(0).build()) {
            List<Future<?>> all = new ArrayList<>();
            List<Scenario> calm = Arrays.stream(Scenario.values()).filter(one -> one != Scenario.CUT).toList();
            for (Scenario scenario : calm) {
                all.add(threads.submit(() -> play(scenario, server, locks, "blocking")));
                all.add(threads.submit(() -> play(scenario, server, told, "told")));
            }
            for (Future<?> each : all) each.get(500, TimeUnit.SECONDS);
            threads.submit(() -> play(Scenario.CUT, server, locks, "blocking")).get(500, TimeUnit.SECONDS);
            threads.submit(() -> play(Scenario.CUT, server, told, "told")).get(500, TimeUnit.SECONDS);
        }
        try (Server server = new Server()) {
            NotifyTest.a_thousand_threads_take_no_more_than_two_connections_beside_those_that_block(server, library);
        }
        System.exit(0);
    }

    private static Void play(Scenario scenario, Server server, RedisLocks locks, String way) throws Exception {
        scenario.play(server, locks, scenario + " " + way);
        return null;
    }
}
