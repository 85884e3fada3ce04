package redislock.tests;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import redislock.Leadership;
import redislock.LockListener;
import redislock.RedisLocks;
import redislock.Term;
import redislock.test.FakeServer;

/** What {@link RedisLocks#lead} promises. */
class LeaderTest {
    private static final Duration LEASE = Duration.ofMinutes(5);
    private static Server server;
    private static final InMemory FAKE = new InMemory(new FakeServer());

    @BeforeAll
    static void start() {
        server = new Server();
    }

    @AfterAll
    static void stop() {
        server.close();
    }

    @AfterEach
    void forget() {
        server.ask("FLUSHALL");
        FAKE.ask("FLUSHALL");
    }

    private static Backend at(Library library) {
        return library == Library.FAKE ? FAKE : server;
    }

    private static <T> T next(BlockingQueue<T> all) throws Exception {
        T one = all.poll(300, TimeUnit.SECONDS);
        if (one == null) throw new AssertionError("in vain waited");
        return one;
    }

    /** In a thread of its own, as it may wait. */
    private static CompletableFuture<Void> closed(AutoCloseable what) {
        return CompletableFuture.runAsync(() -> {
            try {
                what.close();
            } catch (Exception failure) {
                throw new AssertionError(failure);
            }
        });
    }

    /** Works until its thread is interrupted, and says so. */
    private static void work(Term term, BlockingQueue<Term> begun, BlockingQueue<Term> interrupted) {
        begun.add(term);
        while (!Thread.currentThread().isInterrupted()) LockSupport.parkNanos(1_000_000);
        interrupted.add(term);
    }

    @ParameterizedTest
    @EnumSource
    void a_leader_steps_down_and_another_one_follows(Library library) throws Exception {
        try (RedisLocks first = at(library).builder(library).build();
                RedisLocks second = at(library).builder(library).build()) {
            CompletableFuture<Long> one = new CompletableFuture<>();
            CompletableFuture<Long> two = new CompletableFuture<>();
            Leadership leader = first.lead("k", term -> {
                one.complete(term.number());
                while (term.isLeader() && !Thread.currentThread().isInterrupted()) LockSupport.parkNanos(1_000_000);
            });
            long term = one.get(300, TimeUnit.SECONDS);
            assertTrue(leader.isLeader());
            Leadership next = second.lead("k", later -> two.complete(later.number()));
            leader.close();
            assertFalse(leader.isLeader());
            assertTrue(two.get(300, TimeUnit.SECONDS) > term);
            next.close();
        }
    }

    @ParameterizedTest
    @EnumSource
    void a_leader_has_the_lease_of_its_locks_and_leads_again_after_a_loss(Library library) throws Exception {
        BlockingQueue<Term> begun = new LinkedBlockingQueue<>();
        BlockingQueue<Term> interrupted = new LinkedBlockingQueue<>();
        try (RedisLocks locks = at(library).builder(library).lease(LEASE).build();
                Leadership leader = locks.lead("k", term -> work(term, begun, interrupted))) {
            Term first = next(begun);
            Object holder = ((List<?>) Backend.value((List<?>) at(library).ask("LOCK.INFO", "k"), "holders")).get(0);
            long left = (Long) Backend.value((List<?>) holder, "ttl_ms");
            assertTrue(left > LEASE.toMillis() / 2 && left <= LEASE.toMillis(), "the lease of the builder: " + left);
            at(library).ask("DEL", "k");
            assertFalse(Backend.answered(first.hold()::check));
            assertEquals(first, next(interrupted));
            assertFalse(first.isLeader());
            Term second = next(begun);
            assertTrue(second.number() > first.number());
            assertTrue(second.isLeader() && leader.isLeader());
        }
    }

    /** Throws also what the compiler would have caught, as other languages do. */
    @SuppressWarnings("unchecked")
    private static <X extends Throwable> void raise(Throwable failure) throws X {
        throw (X) failure;
    }

    @ParameterizedTest
    @EnumSource
    void whatever_the_work_throws_ends_its_term_alone_and_is_told(Library library) throws Exception {
        Set<Throwable> failures = Set.of(
                new IllegalStateException("one"), new AssertionError("two"), new StackOverflowError("three"),
                new OutOfMemoryError("four"), new IOException("five"));
        Queue<Throwable> left = new ConcurrentLinkedQueue<>(failures);
        BlockingQueue<Throwable> troubles = new LinkedBlockingQueue<>();
        BlockingQueue<Term> begun = new LinkedBlockingQueue<>();
        LockListener listener = new LockListener() {
            @Override
            public void onTrouble(String what, Throwable why) {
                // On a busy machine there is other trouble.
                if (failures.contains(why)) troubles.add(why);
            }
        };
        try (RedisLocks locks = at(library).builder(library).lease(LEASE).listener(listener).build();
                Leadership leader = locks.lead("k", term -> {
                    begun.add(term);
                    if (!left.isEmpty()) LeaderTest.<RuntimeException>raise(left.remove());
                    while (term.isLeader() && !Thread.currentThread().isInterrupted()) LockSupport.parkNanos(1_000_000);
                })) {
            Set<Throwable> told = new HashSet<>();
            long last = 0;
            for (int count = 0; count < failures.size(); count += 1) {
                Term term = next(begun);
                assertTrue(term.number() > last, "it was given back");
                last = term.number();
                told.add(next(troubles));
            }
            assertEquals(failures, told);
            assertTrue(next(begun).number() > last && leader.isLeader());
            assertNotNull(at(library).ask("LOCK.INFO", "k"));
            assertTrue(troubles.isEmpty());
        }
    }

    @ParameterizedTest
    @EnumSource
    void a_loss_that_is_told_late_interrupts_no_later_term(Library library) throws Exception {
        Queue<Runnable> told = new ConcurrentLinkedQueue<>();
        BlockingQueue<Term> begun = new LinkedBlockingQueue<>();
        BlockingQueue<Term> interrupted = new LinkedBlockingQueue<>();
        CountDownLatch ends = new CountDownLatch(1);
        try (RedisLocks locks = at(library).builder(library).lease(LEASE).executor(told::add).build();
                Leadership leader = locks.lead("k", term -> {
                    if (ends.getCount() == 0) {
                        work(term, begun, interrupted);
                        return;
                    }
                    begun.add(term);
                    Server.await("the end of the first term", () -> !term.isLeader());
                    ends.countDown();
                })) {
            Term first = next(begun);
            at(library).ask("DEL", "k");
            assertFalse(Backend.answered(first.hold()::check));
            Term second = next(begun);
            while (!told.isEmpty()) told.remove().run();
            assertNull(interrupted.poll(200, TimeUnit.MILLISECONDS), "it leads still");
            assertTrue(second.isLeader() && leader.isLeader());
        }
    }

    @ParameterizedTest
    @EnumSource
    void close_waits_for_the_work_as_long_as_it_takes(Library library) throws Exception {
        CountDownLatch begun = new CountDownLatch(1);
        CountDownLatch asked = new CountDownLatch(1);
        CountDownLatch ends = new CountDownLatch(1);
        try (RedisLocks locks = at(library).builder(library).lease(LEASE).build()) {
            Leadership leader = locks.lead("k", term -> {
                begun.countDown();
                try {
                    new CountDownLatch(1).await();
                } catch (InterruptedException interrupted) {
                    asked.countDown();
                }
                Server.await("the test", () -> ends.getCount() == 0);
            });
            assertTrue(begun.await(300, TimeUnit.SECONDS));
            CompletableFuture<Void> over = closed(leader);
            assertTrue(asked.await(300, TimeUnit.SECONDS));
            assertFalse(over.isDone());
            assertTrue(at(library).ask("LOCK.INFO", "k") != null && leader.isLeader(), "as long as it works");
            ends.countDown();
            over.get(300, TimeUnit.SECONDS);
            Server.await("the lock to be given back", () -> at(library).ask("LOCK.INFO", "k") == null);
        }
    }

    @ParameterizedTest
    @EnumSource
    void locks_that_are_closed_end_their_leaders(Library library) throws Exception {
        BlockingQueue<Term> begun = new LinkedBlockingQueue<>();
        BlockingQueue<Term> interrupted = new LinkedBlockingQueue<>();
        BlockingQueue<String> troubles = new LinkedBlockingQueue<>();
        LockListener listener = new LockListener() {
            @Override
            public void onTrouble(String what, Throwable why) {
                troubles.add(String.valueOf(why.getMessage()));
            }
        };
        RedisLocks locks = at(library).builder(library).listener(listener).build();
        Leadership leads = locks.lead("k", term -> work(term, begun, interrupted));
        next(begun);
        Leadership waits = locks.lead("k", term -> work(term, begun, interrupted));
        Server.await("a waiter", () -> at(library).waiting("k") == 1);
        at(library).ask("SET", "text", "v");
        Leadership refused = locks.lead("text", term -> work(term, begun, interrupted));
        // It is asked for again, and that is told.
        while (!next(troubles).startsWith("WRONGTYPE")) continue;
        locks.close();
        next(interrupted);
        for (Leadership each : List.of(leads, waits, refused)) closed(each).get(Server.PATIENCE.toSeconds(), TimeUnit.SECONDS);
        assertTrue(begun.isEmpty());
    }
}
