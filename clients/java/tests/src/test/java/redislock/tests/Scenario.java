package redislock.tests;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import redislock.Hold;
import redislock.LockLostException;
import redislock.RedisLock;
import redislock.RedisLocks;

/** What locks go through wherever their server is. The test asks that server about {@link #PREFIX} and the key. */
enum Scenario {
    TAKEN {
        @Override
        void play(Backend server, RedisLocks locks, String key) throws Exception {
            Hold hold = locks.exclusive(key).acquire();
            assertTrue(Backend.answered(hold::check));
            assertEquals(hold.fence(), Backend.value(info(server, key), "fence"));
            assertTrue(Backend.answered(() -> locks.exclusive(key).tryAcquire(Duration.ZERO)).isEmpty());
            hold.close();
            Server.await("nobody", () -> info(server, key) == null);
            try (Hold next = locks.exclusive(key).acquire()) {
                assertTrue(next.fence() > hold.fence());
            }
        }
    },
    WAITED {
        @Override
        void play(Backend server, RedisLocks locks, String key) throws Exception {
            take(server, key);
            CompletableFuture<Hold> first = locks.exclusive(key).acquireAsync();
            waiting(server, key, 1);
            CompletableFuture<Hold> second = locks.exclusive(key).acquireAsync();
            waiting(server, key, 2);
            server.ask("LOCK.RELEASE", PREFIX + key, "another");
            Hold hold = first.get(300, TimeUnit.SECONDS);
            assertFalse(second.isDone());
            hold.close();
            assertTrue(second.get(300, TimeUnit.SECONDS).fence() > hold.fence());
            second.join().close();
        }
    },
    CANCELLED {
        @Override
        void play(Backend server, RedisLocks locks, String key) throws Exception {
            take(server, key);
            CompletableFuture<Hold> asked = locks.exclusive(key).acquireAsync();
            CompletableFuture<Throwable> told = new CompletableFuture<>();
            Thread waits = new Thread(() -> told.complete(assertThrows(Exception.class, locks.exclusive(key)::acquire)));
            waits.start();
            waiting(server, key, 2);
            asked.cancel(true);
            waits.interrupt();
            assertThrows(CancellationException.class, () -> asked.get(300, TimeUnit.SECONDS));
            assertEquals(InterruptedException.class, told.get(300, TimeUnit.SECONDS).getClass());
            waiting(server, key, 0);
            server.ask("LOCK.RELEASE", PREFIX + key, "another");
            assertNull(info(server, key), "nobody has it");
        }
    },
    LOST {
        @Override
        void play(Backend server, RedisLocks locks, String key) throws Exception {
            Hold.Loss why = Hold.Loss.LEASE_OVER;
            // On a busy machine no renewal may be answered: then it is played again.
            for (int tries = 0; tries < 5 && why == Hold.Loss.LEASE_OVER; tries += 1) {
                Hold hold = locks.exclusive(key).lease(Duration.ofSeconds(15)).acquire();
                server.ask("LOCK.BREAK", PREFIX + key);
                why = hold.lost().get(300, TimeUnit.SECONDS);
                assertFalse(hold.isValid());
                assertThrows(LockLostException.class, hold::close);
            }
            assertEquals(Hold.Loss.TAKEN_AWAY, why);
        }
    },
    RENEWED {
        @Override
        void play(Backend server, RedisLocks locks, String key) throws Exception {
            Hold hold = locks.exclusive(key).lease(Duration.ofSeconds(15)).acquire();
            long[] last = {Long.MAX_VALUE};
            Server.await("the renewal, a third of the lease later", () -> {
                List<?> holder = (List<?>) ((List<?>) Backend.value(info(server, key), "holders")).get(0);
                long before = last[0];
                last[0] = (Long) Backend.value(holder, "ttl_ms");
                return last[0] > before;
            });
            assertTrue(hold.isValid());
            hold.close();
        }
    },
    /** All connections of the server are, so nothing else may use it. */
    CUT {
        @Override
        void play(Backend server, RedisLocks locks, String key) throws Exception {
            Hold hold = locks.exclusive(key).acquire();
            RedisLock wanted = locks.exclusive(key);
            List<CompletableFuture<Void>> waits =
                    List.of(wanted.acquireAsync().thenAccept(Hold::close), wanted.acquireAsync().thenAccept(Hold::close));
            waiting(server, key, 2);
            for (String type : List.of("normal", "pubsub")) server.ask("CLIENT", "KILL", "TYPE", type);
            hold.close();
            for (CompletableFuture<Void> wait : waits) wait.get(300, TimeUnit.SECONDS);
            Server.await("nobody", () -> info(server, key) == null);
        }
    };

    /** Before each key: some servers let this application have no other ones. */
    static final String PREFIX = "app:";

    abstract void play(Backend server, RedisLocks locks, String key) throws Exception;

    private static List<?> info(Backend server, String key) {
        return (List<?>) server.ask("LOCK.INFO", PREFIX + key);
    }

    private static void take(Backend server, String key) {
        assertTrue(server.ask("LOCK.ACQUIRE", PREFIX + key, "another", "PX", "600000") instanceof Long);
    }

    private static void waiting(Backend server, String key, long count) {
        Server.await("waiters", () -> server.waiting(PREFIX + key) == count);
    }
}
