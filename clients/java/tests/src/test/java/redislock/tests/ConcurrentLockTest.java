package redislock.tests;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReadWriteLock;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import redislock.DeadlockException;
import redislock.LockLostException;
import redislock.RedisLocks;
import redislock.test.FakeServer;

/** The contract of {@code java.util.concurrent.locks}, point by point. */
class ConcurrentLockTest {
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

    @AfterEach
    void forget() {
        server.ask("FLUSHALL");
        FAKE.ask("FLUSHALL");
    }

    private static <T> T elsewhere(Callable<T> work) throws Exception {
        FutureTask<T> task = new FutureTask<>(work);
        new Thread(task).start();
        return task.get(300, TimeUnit.SECONDS);
    }

    /** By another thread, which gives it back. */
    private static boolean isFree(Lock lock) throws Exception {
        return elsewhere(() -> Backend.answered(() -> {
            boolean isTaken = lock.tryLock();
            if (isTaken) lock.unlock();
            return isTaken;
        }));
    }

    @ParameterizedTest
    @EnumSource
    void a_thread_enters_again_by_any_view_and_leaves_as_often(Library library) throws Exception {
        try (RedisLocks locks = at(library).builder(library).build()) {
            Lock lock = locks.asLock("k");
            lock.lock();
            locks.asLock("k").lock();
            assertTrue(locks.exclusive("k").asLock().tryLock());
            assertTrue(lock.tryLock(1, TimeUnit.SECONDS));
            for (int count = 0; count < 3; count += 1) lock.unlock();
            assertFalse(isFree(lock));
            assertEquals(1, Backend.answered(() -> locks.info("k")).orElseThrow().holding());
            lock.unlock();
            assertTrue(isFree(lock));
        }
    }

    @ParameterizedTest
    @EnumSource
    void a_thread_that_has_it_not_cannot_unlock(Library library) throws Exception {
        try (RedisLocks locks = at(library).builder(library).build()) {
            Lock lock = locks.asLock("k");
            assertThrows(IllegalMonitorStateException.class, lock::unlock);
            lock.lock();
            elsewhere(() -> assertThrows(IllegalMonitorStateException.class, lock::unlock));
            assertTrue(at(library).ask("LOCK.INFO", "k") != null);
            lock.unlock();
            assertThrows(UnsupportedOperationException.class, lock::newCondition);
        }
    }

    @ParameterizedTest
    @EnumSource
    void a_timed_try_waits_and_gives_up(Library library) throws Exception {
        try (RedisLocks locks = at(library).builder(library).build()) {
            Lock lock = locks.asLock("k");
            lock.lock();
            long began = System.nanoTime();
            assertFalse(elsewhere(() -> Backend.answered(() -> lock.tryLock(300, TimeUnit.MILLISECONDS))));
            assertTrue(System.nanoTime() - began >= 300_000_000);
            CompletableFuture<Boolean> other = CompletableFuture.supplyAsync(() -> {
                try {
                    return lock.tryLock(60, TimeUnit.SECONDS);
                } catch (InterruptedException interrupted) {
                    return false;
                }
            });
            Server.await("a waiter", () -> at(library).waiting("k") == 1);
            lock.unlock();
            assertTrue(other.get(300, TimeUnit.SECONDS));
        }
    }

    @ParameterizedTest
    @EnumSource
    void an_interrupt_ends_lock_interruptibly_and_not_lock(Library library) throws Exception {
        try (RedisLocks locks = at(library).builder(library).build()) {
            Lock lock = locks.asLock("k");
            Thread.currentThread().interrupt();
            assertThrows(InterruptedException.class, lock::lockInterruptibly);
            assertFalse(Thread.interrupted());
            Thread.currentThread().interrupt();
            assertThrows(InterruptedException.class, () -> lock.tryLock(1, TimeUnit.SECONDS));
            Thread.currentThread().interrupt();
            assertTrue(Backend.answered(() -> lock.tryLock()), "a try ignores it");
            assertTrue(Thread.interrupted(), "and keeps it");

            CompletableFuture<Boolean> stays = new CompletableFuture<>();
            Thread waits = new Thread(() -> {
                lock.lock();
                stays.complete(Thread.interrupted());
                lock.unlock();
            });
            waits.start();
            Server.await("a waiter", () -> at(library).waiting("k") == 1);
            waits.interrupt();
            lock.unlock();
            assertTrue(stays.get(300, TimeUnit.SECONDS));
            waits.join();
        }
    }

    @ParameterizedTest
    @EnumSource
    void readers_share_and_none_becomes_a_writer(Library library) throws Exception {
        try (RedisLocks locks = at(library).builder(library).build()) {
            ReadWriteLock both = locks.asReadWriteLock("k");
            both.readLock().lock();
            assertTrue(isFree(both.readLock()));
            assertFalse(isFree(both.writeLock()));
            assertFalse(Backend.answered(() -> both.writeLock().tryLock()));
            assertFalse(Backend.answered(() -> both.writeLock().tryLock(1, TimeUnit.MILLISECONDS)));
            assertThrows(DeadlockException.class, both.writeLock()::lock);
            both.readLock().unlock();
            both.writeLock().lock();
            both.writeLock().unlock();
        }
    }

    @ParameterizedTest
    @EnumSource
    void a_writer_that_reads_stays_a_reader(Library library) throws Exception {
        try (RedisLocks locks = at(library).builder(library).build()) {
            ReadWriteLock both = locks.asReadWriteLock("k");
            both.writeLock().lock();
            both.readLock().lock();
            assertFalse(isFree(both.readLock()));
            both.writeLock().unlock();
            assertEquals("read", Backend.answered(() -> locks.info("k")).orElseThrow().mode());
            assertTrue(isFree(both.readLock()));
            both.readLock().unlock();
            Server.await("nobody", () -> at(library).ask("LOCK.INFO", "k") == null);
        }
    }

    @ParameterizedTest
    @EnumSource
    void a_lost_lock_is_not_entered_again(Library library) throws Exception {
        try (RedisLocks locks = at(library).builder(library).lease(java.time.Duration.ofSeconds(6)).build()) {
            Lock lock = locks.asLock("k");
            lock.lock();
            lock.lock();
            at(library).ask("DEL", "k");
            Server.await("the loss to be known", () -> {
                try {
                    lock.lock();
                    lock.unlock();
                    return false;
                } catch (LockLostException lost) {
                    return true;
                }
            });
            assertThrows(LockLostException.class, lock::tryLock);
            assertThrows(LockLostException.class, lock::unlock);
            assertThrows(LockLostException.class, lock::unlock);
            // Nothing is left of it.
            lock.lock();
            lock.unlock();
        }
    }
}
