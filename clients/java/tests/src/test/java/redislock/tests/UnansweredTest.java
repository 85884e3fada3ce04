package redislock.tests;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.lettuce.core.RedisURI;
import java.net.URI;
import java.time.Duration;
import java.util.AbstractList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.LockSupport;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redislock.Hold;
import redislock.LockListener;
import redislock.LockLostException;
import redislock.LockUnavailableException;
import redislock.RedisLock;
import redislock.RedisLocks;
import redislock.jedis.JedisTransport;
import redislock.lettuce.LettuceTransport;
import redislock.spi.Connection;
import redislock.spi.Transport;
import redislock.test.FakeServer;
import redislock.test.LockServer;

/** What an application is told where no answer comes, or none is waited for any more. */
@Execution(ExecutionMode.CONCURRENT)
class UnansweredTest {
    private static final Duration LEASE = Duration.ofMinutes(5);
    /** How long {@code close()} waits at most, and what a machine needs besides. */
    private static final long SOON_NANOS = TimeUnit.MILLISECONDS.toNanos(2_000 + 500);

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void the_close_of_a_lost_lock_throws_soon_and_goes_on_in_the_background(Library library) throws Exception {
        List<String> told = new CopyOnWriteArrayList<>();
        try (Server server = new Server();
                LateWire wire = new LateWire(server.port(), 0);
                Calm calm = new Calm(server) {
                    @Override
                    public void onLost(String key, Hold.Loss why) {
                        told.add(key + " " + why);
                    }

                    @Override
                    public void onReleased(String key, Duration held) {
                        told.add(key + " released");
                    }
                };
                RedisLocks locks = Server.builder(library, wire.url()).lease(LEASE).listener(calm).build()) {
            Hold hold = locks.all(List.of("a", "b", "c")).acquire();
            server.ask("DEL", "a");
            assertFalse(Backend.answered(hold::check));
            wire.silent(true);
            long began = System.nanoTime();
            Thread.currentThread().interrupt();
            LockLostException lost = assertThrows(LockLostException.class, hold::close);
            long took = System.nanoTime() - began;
            assertTrue(Thread.interrupted(), "the thread stays interrupted");
            assertTrue(took < SOON_NANOS || calm.isLate(), "after " + took + " ns");
            assertEquals(Hold.Loss.TAKEN_AWAY, lost.loss());
            assertThrows(LockLostException.class, hold::close);
            ExecutionException later =
                    assertThrows(ExecutionException.class, () -> hold.releaseAsync().get(300, TimeUnit.SECONDS));
            assertEquals(LockLostException.class, later.getCause().getClass());
            wire.silent(false);
            // Those of its keys that were not lost would be held for minutes.
            Server.await("the release", () -> server.ask("DBSIZE").equals(0L));
            Server.await("the loss to be told", () -> !told.isEmpty());
            assertEquals(List.of("a TAKEN_AWAY"), told, "once, and not that it was given back");
        }
    }

    @Test
    void a_lock_ends_after_a_while_though_its_server_was_away_when_it_was_told_so() throws Exception {
        try (FakeServer fake = new FakeServer();
                RedisLocks locks = RedisLocks.builder(fake.transport()).lease(LEASE).build()) {
            Hold hold = locks.exclusive("k").acquire();
            fake.down(true);
            assertThrows(LockUnavailableException.class, () -> hold.releaseAfter(Duration.ofSeconds(1)));
            fake.down(false);
            Server.await("its end", () -> fake.ask("LOCK.INFO", "k") == null);
        }
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void a_lock_that_ended_as_it_should_before_it_was_asked_again_was_not_lost(Library library) throws Exception {
        try (Server server = new Server();
                LateWire wire = new LateWire(server.port(), 0);
                RedisLocks locks = Server.builder(library, wire.url()).lease(LEASE).build()) {
            Hold hold = locks.exclusive("k").acquire();
            wire.silent(true);
            CompletableFuture<?> ended = hold.releaseAfterAsync(Duration.ofMillis(100));
            Server.await("its end", () -> server.ask("LOCK.INFO", "k") == null);
            wire.silent(false);
            // On a machine that is late both requests may have no answer.
            Object error = ended.handle((none, why) -> why).get(300, TimeUnit.SECONDS);
            assertTrue(error == null || error instanceof LockUnavailableException, () -> "" + error);
        }
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void a_take_over_that_was_cancelled_keeps_no_lock(Library library) throws Exception {
        BlockingQueue<Runnable> told = new LinkedBlockingQueue<>();
        try (Server server = new Server();
                RedisLocks locks = server.builder(library).lease(LEASE).executor(told::add).build()) {
            CompletableFuture<?> adopted = locks.adoptAsync(locks.exclusive("k").acquire().detach());
            Runnable answer = told.poll(300, TimeUnit.SECONDS);
            assertTrue(adopted.cancel(false));
            answer.run();
            Server.await("the release", () -> server.ask("LOCK.INFO", "k") == null);
        }
    }

    @ParameterizedTest
    @EnumSource
    void locks_that_are_closed_answer_all_and_ask_nobody(Library library) throws Exception {
        try (Server server = library == Library.FAKE ? null : new Server();
                FakeServer fake = new FakeServer()) {
            Backend at = server == null ? new InMemory(fake) : server;
            RedisLocks locks = at.builder(library).build();
            RedisLock wanted = locks.exclusive("wanted");
            Hold hold = locks.exclusive("k").acquire();
            locks.close();
            for (CompletableFuture<?> each : List.of(wanted.acquireAsync(), wanted.tryAcquireAsync(Duration.ZERO), locks.infoAsync("k"))) {
                ExecutionException end = assertThrows(ExecutionException.class, () -> each.get(300, TimeUnit.SECONDS));
                assertEquals(LockUnavailableException.class, end.getCause().getClass());
            }
            assertThrows(LockUnavailableException.class, wanted::acquireUninterruptibly);
            assertThrows(LockUnavailableException.class, () -> locks.info("k"));
            assertFalse(hold.checkAsync().get(300, TimeUnit.SECONDS));
            assertEquals(Hold.Loss.CLOSED, assertThrows(LockLostException.class, hold::close).loss());
            Server.await("the end of all connections", () -> at.clients() == 0);
            assertNotNull(at.ask("LOCK.INFO", "k"), "it ends with its lease");
        }
    }

    @Test
    void locks_that_are_closed_give_back_what_the_server_has_not_confirmed() throws Exception {
        boolean isGivenBack = false;
        // On a machine that is late the second for it may not do: then it is played again.
        for (int tries = 0; tries < 10 && !isGivenBack; tries += 1) {
            try (FakeServer fake = new FakeServer()) {
                RedisLocks locks = RedisLocks.builder(fake.transport()).lease(LEASE).build();
                Hold released = locks.exclusive("released").acquire();
                Hold ending = locks.exclusive("ending").acquire();
                fake.down(true);
                released.close();
                assertThrows(LockUnavailableException.class, () -> ending.releaseAfter(Duration.ofMillis(1)));
                fake.down(false);
                locks.close();
                fake.advance(Duration.ofSeconds(1));
                isGivenBack = fake.ask("LOCK.INFO", "released") == null && fake.ask("LOCK.INFO", "ending") == null;
            }
        }
        assertTrue(isGivenBack);
    }

    @Test
    void locks_may_be_closed_by_the_thread_that_completes_a_release() throws Exception {
        try (Server server = new Server();
                LateWire wire = new LateWire(server.port(), 0)) {
            RedisLocks locks = Server.builder(Library.LETTUCE, wire.url()).executor(Runnable::run).build();
            Hold hold = locks.exclusive("k").acquire();
            wire.keep("LOCK.RELEASE");
            CompletableFuture<Void> closed = hold.releaseAsync().thenRun(locks::close);
            wire.letThrough();
            closed.get(300, TimeUnit.SECONDS);
        }
    }

    @Test
    void locks_that_are_closed_wait_a_while_for_a_release_that_is_under_way() throws Exception {
        boolean isConfirmed = false;
        for (int tries = 0; tries < 10 && !isConfirmed; tries += 1) {
            try (Server server = new Server();
                    LateWire wire = new LateWire(server.port(), 0)) {
                RedisLocks locks = Server.builder(Library.LETTUCE, wire.url()).lease(LEASE).build();
                Hold other = locks.exclusive("other").acquire();
                Hold hold = locks.exclusive("k").acquire();
                wire.keep("LOCK.RELEASE");
                CompletableFuture<Void> release = hold.releaseAsync();
                Server.await("the release", wire::hasKept);
                CompletableFuture<Void> closed = CompletableFuture.runAsync(locks::close);
                Server.await("the end of the locks", () -> !other.isValid());
                wire.letThrough();
                closed.get(300, TimeUnit.SECONDS);
                isConfirmed = release.handle((none, error) -> error == null).get(300, TimeUnit.SECONDS);
            }
        }
        assertTrue(isConfirmed);
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void locks_that_are_closed_as_a_wait_ends_stop_no_thread(Library library) throws Exception {
        CompletableFuture<RedisLocks> closes = new CompletableFuture<>();
        LockListener listener = new LockListener() {
            @Override
            public void onRefused(String key, Duration waited) {
                // While it pauses before it leaves the queue again: its thread gives that 250 ms.
                LockSupport.parkNanos(50_000_000);
                Thread.currentThread().interrupt();
                closes.join().close();
            }
        };
        try (Server server = new Server();
                RedisLocks locks = server.builder(library).listener(listener).build()) {
            closes.complete(locks);
            server.ask("LOCK.ACQUIRE", "k", "another", "PX", "600000");
            CompletableFuture<Object> end = new CompletableFuture<>();
            new Thread(() -> {
                try {
                    end.complete(locks.exclusive("k").tryAcquire(Duration.ofSeconds(1)));
                } catch (Exception told) {
                    end.complete(told);
                }
            }).start();
            Server.await("a waiter", () -> server.waiting("k") == 1 || end.isDone());
            server.stop();
            end.get(Server.PATIENCE.toSeconds(), TimeUnit.SECONDS);
        }
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void a_subscription_that_is_never_confirmed_ends_with_the_next_one_and_with_its_locks(Library library) throws Exception {
        CompletableFuture<Throwable> late = new CompletableFuture<>();
        LockListener listener = new LockListener() {
            @Override
            public void onTrouble(String what, Throwable why) {
                if (why instanceof TimeoutException) late.complete(why);
            }
        };
        // All threads of the locks belong to it, as those of virtual ones do not.
        ThreadGroup group = new ThreadGroup("silent");
        try (Server server = new Server();
                LateWire wire = new LateWire(server.port(), 0)) {
            wire.lose("subscribe");
            server.ask("LOCK.ACQUIRE", "k", "another", "PX", "600000");
            // Lettuce itself would give it up after a minute.
            String url = wire.url() + "/0?timeout=600s";
            CompletableFuture<RedisLocks> made = new CompletableFuture<>();
            new Thread(group, () -> made.complete(
                            Server.builder(library, url).maxBlockingConnections(0).listener(listener).build()))
                    .start();
            try (RedisLocks locks = made.get(300, TimeUnit.SECONDS)) {
                locks.exclusive("k").acquireAsync();
                late.get(300, TimeUnit.SECONDS);
                Set<String> first = channels(server);
                assertEquals(1, first.size());
                // Over a new connection the wait asks to be told again.
                server.ask("CLIENT", "KILL", "TYPE", "normal");
                Server.await("another one alone", () -> {
                    Set<String> now = channels(server);
                    return now.size() == 1 && !now.equals(first);
                });
            }
            Server.await("the end of all threads", () -> threads(group).stream().noneMatch(name -> name.startsWith("redislock")));
            Server.await("the end of all connections", () -> server.clients() == 0);
        }
    }

    private static Set<String> channels(Server server) {
        List<?> names = (List<?>) server.ask("PUBSUB", "CHANNELS", "lock:notify:*");
        return names.stream().map(name -> new String((byte[]) name, UTF_8)).collect(Collectors.toSet());
    }

    private static List<String> threads(ThreadGroup group) {
        Thread[] all = new Thread[1_000];
        return Arrays.stream(all, 0, group.enumerate(all)).map(Thread::getName).toList();
    }

    @ParameterizedTest
    @EnumSource
    void neither_a_listener_nor_an_executor_that_throws_stops_anything(Library library) throws Exception {
        LockListener listener = new LockListener() {
            @Override
            public void onAcquired(String key, Duration waited) {
                throw new AssertionError("acquired");
            }

            @Override
            public void onReleased(String key, Duration held) {
                throw new AssertionError("released");
            }

            @Override
            public void onLost(String key, Hold.Loss why) {
                throw new AssertionError("lost");
            }
        };
        try (Server server = library == Library.FAKE ? null : new Server();
                FakeServer fake = new FakeServer()) {
            Backend at = server == null ? new InMemory(fake) : server;
            Executor none = work -> {
                throw new OutOfMemoryError("no thread");
            };
            for (Executor executor : List.of(Runnable::run, none)) {
                try (RedisLocks locks = at.builder(library).lease(LEASE).executor(executor).listener(listener).build()) {
                    locks.exclusive("k").acquireAsync().get(Server.PATIENCE.toSeconds(), TimeUnit.SECONDS).close();
                    Server.await("the release", () -> at.ask("LOCK.INFO", "k") == null);
                    Hold hold = locks.exclusive("k").acquire();
                    at.ask("DEL", "k");
                    assertFalse(Backend.answered(hold::check));
                }
            }
        }
    }

    /** What a request has instead of words. */
    private static List<byte[][]> broken() {
        return new AbstractList<>() {
            @Override
            public byte[][] get(int at) {
                throw new AssertionError("no words");
            }

            @Override
            public int size() {
                return 1;
            }
        };
    }

    @Test
    void an_error_ends_a_connection_of_jedis_and_is_said() throws Exception {
        try (Server server = new Server();
                JedisTransport transport = JedisTransport.of(URI.create(server.url()))) {
            for (boolean isDirect : List.of(true, false)) {
                Connection connection = transport.connect(null).get(300, TimeUnit.SECONDS);
                CompletableFuture<Object> reply = connection.send(broken(), 60_000, isDirect).get(0);
                ExecutionException end = assertThrows(ExecutionException.class, () -> reply.get(300, TimeUnit.SECONDS));
                assertEquals("no words", end.getCause().getMessage());
                // What is left on the wire answers nobody else.
                assertFalse(connection.isOpen());
            }
            CompletableFuture<Boolean> ended = new CompletableFuture<>();
            transport.subscribe(null, "c", false, message -> {
                throw new AssertionError("no message");
            }, () -> ended.complete(true)).get(300, TimeUnit.SECONDS);
            server.ask("PUBLISH", "c", "message");
            assertTrue(ended.get(300, TimeUnit.SECONDS));
            Server.await("the end of all connections", () -> server.clients() == 0);
        }
    }

    @Test
    void an_error_of_a_transport_of_an_application_is_said() throws Exception {
        Connection fails = new Connection() {
            @Override
            public List<CompletableFuture<Object>> send(List<byte[][]> requests, long millis, boolean isDirect) {
                throw new AssertionError("not sent");
            }

            @Override
            public boolean isOpen() {
                return true;
            }

            @Override
            public void close() {}
        };
        Transport transport = new Transport() {
            @Override
            public CompletableFuture<Connection> connect(String address) {
                return CompletableFuture.completedFuture(fails);
            }

            @Override
            public boolean isMultiplexed() {
                return false;
            }

            @Override
            public void close() {}
        };
        try (RedisLocks locks = RedisLocks.builder(transport).build()) {
            assertEquals("not sent", cause(() -> locks.exclusive("k").tryAcquire(Duration.ZERO)));
        }
    }

    /** What is behind an exception of the locks. */
    private static String cause(Executable work) {
        Throwable why = assertThrows(LockUnavailableException.class, work);
        while (why.getCause() != null) why = why.getCause();
        return why.getMessage();
    }

    @Test
    void what_the_credentials_of_an_application_throw_is_said() throws Exception {
        DefaultJedisClientConfig config = DefaultJedisClientConfig.builder().credentialsProvider(() -> {
            throw new AssertionError("no credentials");
        }).build();
        try (Server server = new Server();
                RedisLocks locks = RedisLocks.builder(
                        JedisTransport.of(config, new HostAndPort("127.0.0.1", server.port()))).build()) {
            assertEquals("no credentials", cause(() -> locks.exclusive("k").tryAcquire(Duration.ZERO)));
            RedisURI uri = RedisURI.create(server.url());
            uri.setCredentialsProvider(() -> {
                throw new AssertionError("no credentials");
            });
            try (RedisLocks others = RedisLocks.builder(LettuceTransport.of(uri)).build()) {
                assertEquals("no credentials", cause(() -> others.exclusive("k").tryAcquire(Duration.ZERO)));
            }
        }
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void trouble_is_logged_by_no_thread_of_the_client_library(Library library) throws Exception {
        List<String> threads = new CopyOnWriteArrayList<>();
        int nobody = LockServer.freePort();
        Handler handler = new Handler() {
            @Override
            public void publish(LogRecord record) {
                boolean isOurs = Arrays.toString(record.getParameters()).contains(":" + nobody);
                if (isOurs) threads.add(Thread.currentThread().getName());
            }

            @Override
            public void flush() {}

            @Override
            public void close() {}
        };
        Logger log = Logger.getLogger("redislock");
        log.addHandler(handler);
        try (RedisLocks locks = Server.builder(library, "redis://127.0.0.1:" + nobody).build()) {
            assertThrows(LockUnavailableException.class, () -> locks.exclusive("k").tryAcquire(Duration.ZERO));
            Server.await("trouble", () -> !threads.isEmpty());
        } finally {
            log.removeHandler(handler);
        }
        for (String name : threads) assertTrue(name.isEmpty() || name.startsWith("redislock-callback"), name);
    }
}
