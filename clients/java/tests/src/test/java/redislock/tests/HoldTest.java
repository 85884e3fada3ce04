package redislock.tests;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import redislock.Hold;
import redislock.HoldToken;
import redislock.LockListener;
import redislock.LockLostException;
import redislock.LockUnavailableException;
import redislock.RedisLock;
import redislock.RedisLocks;
import redislock.test.FakeServer;

/** What a hold promises, and what is easily broken, over each client library. */
class HoldTest {
    private static final Duration SECOND = Duration.ofSeconds(1);
    /** A process that gets no processor for a while does not lose it. */
    private static final Duration LEASE = Duration.ofSeconds(6);
    private static Server server;
    private static final InMemory FAKE = new InMemory(new FakeServer());

    /** Where the locks of a library are. */
    private static Backend at(Library library) {
        return library == Library.FAKE ? FAKE : server;
    }

    @BeforeAll
    static void start() throws Exception {
        server = new Server();
    }

    @AfterAll
    static void stop() throws Exception {
        server.close();
    }

    @BeforeEach
    void await() {
        Server.await("nothing of another test", () -> server.clients() == 0 && FAKE.clients() == 0);
    }

    @AfterEach
    void forget() {
        server.ask("FLUSHALL");
        FAKE.ask("FLUSHALL");
    }

    private static boolean isFree(Library library, String key) {
        return at(library).ask("LOCK.INFO", key) == null;
    }

    @ParameterizedTest
    @EnumSource
    void a_connection_is_there_before_the_first_lock(Library library) throws Exception {
        assertEquals(0, at(library).clients());
        try (RedisLocks locks = at(library).builder(library).build()) {
            Server.await("a connection", () -> at(library).clients() == 1);
            assertTrue(Backend.answered(() -> locks.info("k")).isEmpty());
        }
    }

    @ParameterizedTest
    @EnumSource
    void locks_that_are_closed_while_they_connect_leave_no_connection(Library library) throws Exception {
        for (int round = 0; round < 50; round += 1) at(library).builder(library).build().close();
        Server.await("the end of all connections", () -> at(library).clients() == 0);
    }

    @ParameterizedTest
    @EnumSource
    void an_argument_that_is_null_is_named(Library library) throws Exception {
        String none = null;
        try (RedisLocks locks = at(library).builder(library).build();
                Hold hold = locks.exclusive("k").acquire()) {
            RedisLock lock = locks.exclusive("k");
            Map<String, Executable> all = Map.of(
                    "key", () -> locks.exclusive(none), "keys", () -> locks.all(null), "lease", () -> lock.lease(null),
                    "max", () -> lock.max(null), "note", () -> lock.note(none), "outer", () -> lock.within(null),
                    "wait", () -> lock.tryAcquire(null), "work", () -> lock.call(null), "token", () -> locks.adopt(null),
                    "command", () -> hold.guard(none));
            all.forEach((name, call) -> assertEquals(name, assertThrows(NullPointerException.class, call).getMessage()));
        }
    }

    @ParameterizedTest
    @EnumSource
    void a_lock_that_was_given_back_is_renewed_no_more(Library library) throws Exception {
        try (RedisLocks locks = at(library).builder(library).lease(LEASE).build()) {
            for (int round = 0; round < 200; round += 1) locks.exclusive("k").acquire().close();
            long before = at(library).calls("lock.extend");
            Object other = at(library).ask("LOCK.ACQUIRE", "k", "other", "PX", "60000");
            assertTrue(other instanceof Long);
            try (Hold beside = locks.exclusive("beside").acquire()) {
                Server.await("a renewal", () -> at(library).calls("lock.extend") > before);
                assertTrue(beside.isValid());
            }
            // Those of the lock beside, and none of the two hundred.
            assertTrue(at(library).calls("lock.extend") - before < 20);
        }
    }

    @ParameterizedTest
    @EnumSource
    void no_code_of_the_application_runs_on_a_thread_of_the_client_library(Library library) throws Exception {
        List<String> threads = new CopyOnWriteArrayList<>();
        LockListener listener = new LockListener() {
            @Override
            public void onAcquired(String key, Duration waited) {
                threads.add(Thread.currentThread().getName());
            }

            @Override
            public void onLost(String key, Hold.Loss why) {
                threads.add(Thread.currentThread().getName());
            }
        };
        try (RedisLocks locks = at(library).builder(library).lease(LEASE).listener(listener).build()) {
            Hold hold = locks.exclusive("k").acquireAsync().get(300, TimeUnit.SECONDS);
            CompletableFuture<Void> waits = locks.exclusive("k").acquireAsync().thenAccept(next -> {
                threads.add(Thread.currentThread().getName());
                next.releaseAsync().thenRun(() -> threads.add(Thread.currentThread().getName()));
            });
            hold.checkAsync().thenRun(() -> threads.add(Thread.currentThread().getName())).get(300, TimeUnit.SECONDS);
            CompletableFuture<Void> lost = hold.lost().thenRun(() -> threads.add(Thread.currentThread().getName()));
            at(library).ask("DEL", "k");
            waits.get(300, TimeUnit.SECONDS);
            lost.get(300, TimeUnit.SECONDS);
            assertThrows(LockLostException.class, hold::close);
            Server.await("all callbacks", () -> threads.size() >= 7);
        }
        String mine = Thread.currentThread().getName();
        for (String name : threads) {
            assertTrue(name.isEmpty() || name.startsWith("redislock-callback") || name.equals(mine), name);
        }
        assertTrue(threads.stream().noneMatch(name -> name.contains("lettuce") || name.contains("redislock-jedis")));
    }

    @ParameterizedTest
    @EnumSource
    void a_thread_that_would_wait_for_itself_is_refused_at_once(Library library) throws Exception {
        try (RedisLocks locks = at(library).builder(library).build()) {
            RedisLock lock = locks.exclusive("k");
            Hold hold = lock.acquire();
            assertThrows(IllegalStateException.class, lock::acquire);
            assertThrows(IllegalStateException.class, locks.read("k")::acquireUninterruptibly);
            assertThrows(IllegalStateException.class, () -> locks.all(List.of("j", "k")).tryAcquire(SECOND));
            assertThrows(IllegalStateException.class, locks.asLock("k")::lock);
            assertEquals(Optional.empty(), Backend.answered(() -> lock.tryAcquire(Duration.ZERO)));
            assertEquals(0, at(library).waiting("k"));

            // Another thread waits, and has it next. Then this one waits for that.
            CompletableFuture<Hold> next = CompletableFuture.supplyAsync(lock::acquireUninterruptibly);
            Server.await("a waiter", () -> at(library).waiting("k") == 1);
            hold.close();
            Hold other = next.get(300, TimeUnit.SECONDS);
            assertEquals(Optional.empty(), Backend.answered(() -> lock.tryAcquire(Duration.ofMillis(50))));
            other.close();
            // A future belongs to no thread.
            Hold free = lock.acquireAsync().get(300, TimeUnit.SECONDS);
            assertEquals(Optional.empty(), Backend.answered(() -> lock.tryAcquire(Duration.ofMillis(50))));
            free.close();
            // Nor is a lost lock held.
            Hold lost = lock.acquire();
            at(library).ask("DEL", "k");
            assertFalse(Backend.answered(lost::check));
            lock.acquire().close();
            // Shares are counted by the server.
            try (Hold one = locks.semaphore("s", 2, 1).acquire();
                    Hold two = locks.semaphore("s", 2, 1).acquire()) {
                assertTrue(Backend.answered(one::check) && Backend.answered(two::check));
            }
        }
    }

    @ParameterizedTest
    @EnumSource
    void a_future_that_is_cancelled_leaves_the_queue(Library library) throws Exception {
        try (RedisLocks locks = at(library).builder(library).build()) {
            at(library).ask("LOCK.ACQUIRE", "k", "other", "PX", "60000");
            CompletableFuture<Hold> asked = locks.exclusive("k").acquireAsync();
            CompletableFuture<Hold> late = locks.exclusive("k").acquireAsync().orTimeout(300, TimeUnit.MILLISECONDS);
            CompletableFuture<Hold> ended = locks.exclusive("k").acquireAsync();
            CompletableFuture<Hold> stays = locks.exclusive("k").acquireAsync();
            Server.await("waiters", () -> at(library).waiting("k") >= 3);
            asked.cancel(true);
            assertThrows(ExecutionException.class, () -> late.get(300, TimeUnit.SECONDS));
            ended.completeExceptionally(new IllegalStateException("no longer wanted"));
            // A stage that depends on it is no wait.
            stays.thenApply(Hold::fence).cancel(true);
            Server.await("one waiter", () -> at(library).waiting("k") == 1);
            at(library).ask("LOCK.RELEASE", "k", "other");
            stays.get(300, TimeUnit.SECONDS).close();
            Server.await("nobody", () -> isFree(library, "k"));
        }
    }

    @ParameterizedTest
    @EnumSource
    void an_interrupt_leaves_the_queue_and_is_answered(Library library) throws Exception {
        try (RedisLocks locks = at(library).builder(library).build()) {
            at(library).ask("LOCK.ACQUIRE", "k", "other", "PX", "60000");
            CompletableFuture<Throwable> end = new CompletableFuture<>();
            Thread thread = new Thread(() -> {
                try {
                    locks.exclusive("k").acquire();
                } catch (Throwable error) {
                    end.complete(error);
                }
            });
            thread.start();
            Server.await("a waiter", () -> at(library).waiting("k") == 1);
            thread.interrupt();
            assertTrue(end.get(300, TimeUnit.SECONDS) instanceof InterruptedException);
            Server.await("no waiter", () -> at(library).waiting("k") == 0);
        }
    }

    @ParameterizedTest
    @EnumSource
    void a_detached_hold_is_adopted_and_the_givers_copy_is_void(Library library) throws Exception {
        try (RedisLocks giver = at(library).builder(library).build();
                RedisLocks taker = at(library).builder(library).build()) {
            Hold hold = giver.exclusive("k").acquire();
            HoldToken token = hold.detach();
            assertFalse(hold.isValid());
            Hold adopted = taker.adopt(token).orElseThrow();
            assertTrue(adopted.fence() > token.fence());
            hold.close();
            assertTrue(Backend.answered(adopted::check));
            assertEquals(Optional.empty(), taker.adopt(token));
            adopted.close();
            Server.await("nobody", () -> isFree(library, "k"));
        }
    }

    @ParameterizedTest
    @EnumSource
    void of_a_detach_beside_a_close_exactly_one_counts(Library library) throws Exception {
        oneCounts(library, Hold::detach);
    }

    @ParameterizedTest
    @EnumSource
    void of_a_later_release_beside_a_close_exactly_one_counts(Library library) throws Exception {
        oneCounts(library, hold -> hold.releaseAfter(Duration.ofMinutes(5)));
    }

    /** {@code keeps}: leaves the lock to the server, or throws since it was given back. */
    private static void oneCounts(Library library, Consumer<Hold> keeps) throws Exception {
        ExecutorService other = Executors.newSingleThreadExecutor();
        try (RedisLocks locks = at(library).builder(library).lease(Duration.ofMinutes(5)).build()) {
            for (int round = 0; round < 300; round += 1) {
                String key = "k" + round;
                Hold hold = locks.exclusive(key).acquire();
                AtomicInteger there = new AtomicInteger();
                Future<Boolean> isKept = other.submit(() -> {
                    meet(there);
                    try {
                        keeps.accept(hold);
                    } catch (IllegalStateException closed) {
                        return false;
                    } catch (LockUnavailableException late) {
                        // The machine is busy. It counts all the same.
                    }
                    return true;
                });
                meet(there);
                hold.close();
                if (isKept.get(300, TimeUnit.SECONDS)) assertFalse(isFree(library, key), "released in round " + round);
                else Server.await("the release", () -> isFree(library, key));
            }
        } finally {
            other.shutdown();
        }
    }

    /** Waits for the other thread, and goes on in the same moment. */
    private static void meet(AtomicInteger there) {
        there.incrementAndGet();
        while (there.get() < 2) Thread.onSpinWait();
    }

    @ParameterizedTest
    @EnumSource
    void a_maximum_ends_the_lock_and_a_new_one_prolongs_it(Library library) throws Exception {
        try (RedisLocks locks = at(library).builder(library).lease(LEASE).build()) {
            Hold hold = locks.exclusive("k").max(Duration.ofMinutes(1)).acquire();
            assertTrue(hold.renewMax(SECOND.multipliedBy(4)));
            assertEquals(Hold.Loss.MAX, hold.lost().get(300, TimeUnit.SECONDS));
            assertEquals(Hold.Loss.MAX, assertThrows(LockLostException.class, hold::close).loss());
            Server.await("the end of the lease", () -> isFree(library, "k"));
            assertFalse(hold.renewMax(SECOND));
        }
    }

    @ParameterizedTest
    @EnumSource
    void a_lock_is_kept_for_a_while_after_its_release(Library library) throws Exception {
        try (RedisLocks locks = at(library).builder(library).build()) {
            Hold hold = locks.exclusive("k").acquire();
            long began = System.nanoTime();
            hold.releaseAfter(SECOND);
            hold.close();
            assertFalse(hold.isValid());
            assertTrue(!isFree(library, "k") || System.nanoTime() - began >= SECOND.toNanos());
            Server.await("the end of the rest", () -> isFree(library, "k"));
        }
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void a_server_that_is_away_gives_no_empty_answer_and_locks_nobody_out(Library library) throws Exception {
        try (Server own = new Server();
                RedisLocks locks = own.builder(library).build()) {
            Hold hold = locks.exclusive("held").lease(SECOND).acquire();
            CompletableFuture<Hold> waits = locks.exclusive("wanted").acquireAsync();
            waits.get(300, TimeUnit.SECONDS).close();
            own.stop();
            assertThrows(LockUnavailableException.class, () -> locks.exclusive("k").tryAcquire(Duration.ZERO));
            assertThrows(LockUnavailableException.class, () -> locks.exclusive("k").tryAcquire(Duration.ofMillis(600)));
            CompletableFuture<Hold> later = locks.exclusive("later").acquireAsync();
            assertEquals(Hold.Loss.LEASE_OVER, hold.lost().get(300, TimeUnit.SECONDS));
            own.start();
            // Soon, and not after a back-off of half a minute.
            Hold back = later.get(20, TimeUnit.SECONDS);
            assertTrue(back.isValid());
            back.close();
            // What was given up meanwhile was not kept for later.
            assertNull(own.ask("LOCK.INFO", "k"));
            assertThrows(LockLostException.class, hold::close);
        }
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void close_is_over_soon_while_the_server_is_away_and_goes_on_until_it_is_back(Library library) throws Exception {
        try (Server own = new Server();
                RedisLocks locks = own.builder(library).lease(Duration.ofMinutes(5)).build()) {
            Hold hold = locks.exclusive("k").acquire();
            own.stop();
            Thread.currentThread().interrupt();
            hold.close();
            assertTrue(Thread.interrupted(), "the thread stays interrupted");
            own.start();
            // The server has it still, and would for minutes.
            Server.await("the release", () -> own.ask("LOCK.INFO", "k") == null);
        }
    }

    @ParameterizedTest
    @EnumSource
    void closed_locks_end_their_waits_and_tell_their_holds(Library library) throws Exception {
        long before = at(library).clients();
        RedisLocks locks = at(library).builder(library).build();
        Hold hold = locks.exclusive("k").acquire();
        CompletableFuture<Hold.Loss> lost = hold.lost();
        CompletableFuture<Hold> waits = locks.exclusive("k").acquireAsync();
        Server.await("a waiter", () -> at(library).waiting("k") == 1);
        locks.close();
        assertEquals(Hold.Loss.CLOSED, lost.get(300, TimeUnit.SECONDS));
        ExecutionException end = assertThrows(ExecutionException.class, () -> waits.get(300, TimeUnit.SECONDS));
        assertTrue(end.getCause() instanceof LockUnavailableException);
        Server.await("the end of the connections", () -> at(library).clients() <= before);
        assertFalse(isFree(library, "k"), "it ends with its lease");
    }

    @ParameterizedTest
    @EnumSource
    void many_waits_take_no_more_connections_than_may_block(Library library) throws Exception {
        try (Calm calm = new Calm(at(library));
                RedisLocks locks = at(library).builder(library).maxBlockingConnections(4).listener(calm).build()) {
            List<CompletableFuture<Void>> all = new java.util.ArrayList<>();
            for (int wait = 0; wait < 100; wait += 1) {
                all.add(locks.exclusive("k" + wait % 5).acquireAsync().thenAccept(Hold::close));
            }
            CompletableFuture<Void> last = CompletableFuture.allOf(all.toArray(CompletableFuture<?>[]::new));
            Server.await("all to be served", () -> {
                // An answer that is late is asked for again over a new connection, untold.
                assertTrue(at(library).clients() <= 6 || calm.isLate() || calm.isOver());
                return last.isDone();
            });
            last.join();
        }
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void a_wrong_server_and_a_wrong_key_are_said(Library library) throws Exception {
        at(library).ask("SET", "text", "v");
        try (RedisLocks locks = at(library).builder(library).build()) {
            LockUnavailableException wrong =
                    assertThrows(LockUnavailableException.class, () -> locks.exclusive("text").acquire());
            assertEquals(Optional.of("WRONGTYPE"), wrong.code());
            try (Hold hold = locks.exclusive("k").acquire()) {
                hold.guard("SET", "data", 7);
                assertEquals(1L, hold.guard("EXISTS", "data"));
                assertThrows(LockUnavailableException.class, () -> hold.guard("INCRBY", "text", "x"));
                assertEquals("write", locks.info("k").orElseThrow().mode());
            }
        }
    }
}
