package redislock.tests;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import redislock.Hold;
import redislock.LockInfo;
import redislock.LockListener;
import redislock.RedisLocks;

/** Renewals that the server reads late: after the request that sets the end of the lock. */
@Execution(ExecutionMode.CONCURRENT)
class LateRenewalTest {
    private static final Duration LEASE = Duration.ofSeconds(9);
    private static final Duration LATER = Duration.ofMinutes(10);

    /** Trouble is what these tests make. */
    private static final LockListener SILENT = new LockListener() {
        @Override
        public void onTrouble(String what, Throwable why) {}
    };

    private interface Play {
        void on(Server server, LateWire wire, RedisLocks locks) throws Exception;
    }

    private static void play(Library library, Duration lease, Play play) throws Exception {
        try (Server server = new Server();
                LateWire wire = new LateWire(server.port(), 0);
                RedisLocks locks = Server.builder(library, wire.url()).lease(lease).listener(SILENT).build()) {
            play.on(server, wire, locks);
        }
    }

    /** A renewal stays in the wire, and was given up: another one was answered. */
    private static void keepRenewal(Server server, LateWire wire) {
        long before = server.calls("lock.extend");
        wire.keep("LOCK.EXTEND");
        Server.await("a renewal in vain", () -> wire.hasKept() && server.calls("lock.extend") > before);
    }

    private static void readLate(Server server, LateWire wire, long count) {
        long before = server.calls("lock.extend");
        wire.letThrough();
        Server.await("the late renewals", () -> server.calls("lock.extend") >= before + count);
    }

    private static void assertEndsLater(RedisLocks locks, String key) {
        LockInfo.Holder holder = locks.info(key).orElseThrow().holders().get(0);
        assertTrue(holder.lease().compareTo(LATER.dividedBy(2)) > 0, holder::toString);
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void a_renewal_that_is_read_late_does_not_change_when_locks_end(Library library) throws Exception {
        List<String> keys = List.of("a", "b");
        play(library, LEASE, (server, wire, locks) -> {
            Hold hold = locks.all(keys).acquire();
            keepRenewal(server, wire);
            hold.releaseAfter(LATER);
            readLate(server, wire, keys.size());
            for (String key : keys) assertEndsLater(locks, key);
        });
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void an_end_whose_answer_is_lost_is_no_loss(Library library) throws Exception {
        play(library, LEASE, (server, wire, locks) -> {
            Hold hold = locks.exclusive("k").acquire();
            keepRenewal(server, wire);
            wire.loseOnce(String.valueOf(hold.fence() + 1));
            hold.releaseAfter(LATER);
            assertTrue(wire.hasLost());
            readLate(server, wire, 1);
            assertEndsLater(locks, "k");
        });
    }

    private static Duration left(RedisLocks locks) {
        return locks.info("k").orElseThrow().holders().get(0).lease();
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void the_first_request_for_the_end_is_read_late(Library library) throws Exception {
        play(library, LEASE, (server, wire, locks) -> {
            Hold hold = locks.exclusive("k").acquire();
            wire.keep("LOCK.EXTEND");
            hold.releaseAfter(LATER);
            Duration before = left(locks);
            readLate(server, wire, 1);
            assertTrue(left(locks).compareTo(before) <= 0);
        });
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void a_late_request_for_the_end_leaves_the_next_hold_of_its_owner_alone(Library library) throws Exception {
        play(library, LATER, (server, wire, locks) -> {
            Hold outer = locks.exclusive("outer").acquire();
            Hold hold = locks.exclusive("k").within(outer).acquire();
            wire.keep("LOCK.EXTEND");
            hold.releaseAfter(LATER.dividedBy(2));
            Hold next = locks.exclusive("k").within(outer).acquire();
            assertTrue(next.fence() > hold.fence());
            readLate(server, wire, 1);
            assertEndsLater(locks, "k");
        });
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void an_end_is_set_though_the_fence_cannot_be_raised_yet(Library library) throws Exception {
        play(library, LEASE, (server, wire, locks) -> {
            Hold hold = locks.exclusive("k").acquire();
            keepRenewal(server, wire);
            // After the year 2200.
            wire.swap("MINFENCE\r\n$16\r\n1", "MINFENCE\r\n$16\r\n8");
            hold.releaseAfter(LATER);
            assertEndsLater(locks, "k");
        });
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void the_fence_stays_where_no_renewal_is_late(Library library) throws Exception {
        try (Server server = new Server();
                RedisLocks locks = server.builder(library).build()) {
            Hold hold = locks.exclusive("k").acquire();
            hold.releaseAfter(LATER);
            assertEndsLater(locks, "k");
            assertEquals(hold.fence(), locks.info("k").orElseThrow().fence());
        }
    }

    @ParameterizedTest
    @EnumSource(mode = EnumSource.Mode.EXCLUDE, names = "FAKE")
    void a_lock_is_given_back_at_its_maximum_where_a_renewal_may_be_late(Library library) throws Exception {
        play(library, LEASE, (server, wire, locks) -> {
            Hold hold = locks.exclusive("k").acquire();
            CompletableFuture<Hold.Loss> lost = hold.lost();
            keepRenewal(server, wire);
            // False on a machine that is late: then it is over already.
            hold.renewMax(Duration.ofSeconds(1));
            readLate(server, wire, 1);
            assertEquals(Hold.Loss.MAX, lost.get(300, TimeUnit.SECONDS));
            Server.await("the release", () -> server.calls("lock.release") > 0);
            assertNull(server.ask("LOCK.INFO", "k"));
        });
    }
}
