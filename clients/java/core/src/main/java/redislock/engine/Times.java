package redislock.engine;

import java.time.Duration;
import java.util.concurrent.ThreadLocalRandom;

/** All times of the engine, in milliseconds. */
final class Times {
    /** The shortest lease: below it a busy process loses its locks. */
    static final long LEASE_MIN = 1_000;

    static final long LEASE = 30_000;
    /** A request waits in the server for at most this long, and asks again: no proxy cuts so short a silence. */
    static final long BLOCK = 3_000;
    /** The server keeps the place in the queue for this long between two requests. */
    static final long QUEUE = 10_000;
    /** The same of a wait that the server tells when to ask. It asks by itself at a third of it. */
    static final long QUEUE_TOLD = 30_000;
    /** A subscription is confirmed within this time, or the waits go on without it. */
    static final long CONFIRM = 2_000;
    /** One that the server refused is tried again after this time, or on the next connection. */
    static final long REFUSED = 60_000;
    /** The link of waits that are told is looked at this often: their places end two seconds after it. */
    static final long WATCH = 500;
    /** All waits of a node ask together no more often than this. */
    static final long ALL = 1_000;
    /** So many of them at a time, one such part after the other. */
    static final int SLICE = 500;

    static final long SLICE_EACH = 50;
    /** A wait that has no connection to wait on asks this often. */
    static final long POLL = 1_000;
    /** The time for an answer, where neither the lease nor the end of a wait sets another. */
    static final long ANSWER = 3_000;
    /** The time for an answer when a wait is over or given up. */
    static final long LEAVE = 1_000;
    /** So long the caller waits for the end of what it gave up. The rest goes on in the background. */
    static final long CANCEL = 250;
    /** So long a thread waits for its release. */
    static final long CLOSE = 2_000;

    static final long PAUSE_MIN = 100;
    static final long PAUSE_MAX = 1_000;
    /** The holds are looked at this often at least, since timers stand still while the machine is suspended. */
    static final long LOOK = 1_000;
    /** A connection without a use is kept for the next one for this long. */
    static final long IDLE = 30_000;
    /** So many connections are kept that were not used within the last {@link #RECENT}. */
    static final int IDLE_MAX = 8;

    static final long RECENT = 1_000;
    /** Connections are looked through this often. */
    static final long SWEEP = 5_000;
    /** A connection that was heard of so recently is well. An older one may have died without a word. */
    static final long FRESH = 2_000;
    /** The clock may be so much behind. */
    static final long CLOCK_STEP = 10;

    static final long FOR_EVER = Long.MAX_VALUE / 4;

    private Times() {}

    /** Milliseconds of a clock for waiting. It may stand still while the machine is suspended. */
    static long tick() {
        return System.nanoTime() / 1_000_000;
    }

    /** The time for the answer to a renewal, and as much for a new connection. Of a short lease a far server needs more. */
    static long ofRenewal(long lease) {
        return Math.max(lease / 6, Math.min(lease / 3, 5_000));
    }

    static long jittered(long millis) {
        return millis * 3 / 4 + ThreadLocalRandom.current().nextLong(millis / 4 + 1);
    }

    /** Whole milliseconds, rounded up. */
    static long millis(Duration duration) {
        if (duration.compareTo(Duration.ofMillis(FOR_EVER)) >= 0) return FOR_EVER;
        long millis = duration.toMillis();
        return duration.compareTo(Duration.ofMillis(millis)) > 0 ? millis + 1 : millis;
    }
}
