package redislock.tests;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.lang.management.ManagementFactory;
import java.lang.management.OperatingSystemMXBean;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.Jedis;
import redislock.LockListener;

/**
 * Told of trouble, which fails the test unless the machine was late shortly before: on one that is too busy requests have no
 * answer in time, and are repeated over new connections. Either a plain client of the same server was late, too, or more
 * threads want to run than there are processors: then a thread with little to do is not late, and one with much is.
 */
class Calm implements LockListener, AutoCloseable {
    private static final OperatingSystemMXBean MACHINE = ManagementFactory.getOperatingSystemMXBean();
    private static final long BEAT_MILLIS = 20;
    /** A request has a second for its answer at least. Between some five threads, one of them was so late. */
    private static final long LATE_MILLIS = 200;
    /** Trouble is told so long after its cause at most: the longest time for an answer. */
    private static final long SHORTLY_MILLIS = 10_000;

    private final List<String> causeless = new CopyOnWriteArrayList<>();
    private final Jedis client;
    private final Thread witness = new Thread(this::watch, "witness");
    private volatile long beat = now();
    private volatile long lateAt = now() - SHORTLY_MILLIS;
    private volatile boolean isOver;
    private volatile boolean isClosed;
    private volatile long beats;

    Calm(Backend at) {
        client = at instanceof Server server ? server.client() : null;
        if (client != null) client.clientSetname(Server.WITNESS);
        witness.start();
    }

    private static long now() {
        return TimeUnit.NANOSECONDS.toMillis(System.nanoTime());
    }

    private void watch() {
        while (!isClosed) {
            if (client != null) client.ping();
            try {
                Thread.sleep(BEAT_MILLIS);
            } catch (InterruptedException interrupted) {
                return;
            }
            long now = now();
            if (now - beat > BEAT_MILLIS + LATE_MILLIS) lateAt = now;
            beat = now;
            beats += 1;
        }
    }

    /** How often the server was asked. */
    long beats() {
        return beats;
    }

    /** True if the machine was late shortly before. */
    boolean isLate() {
        long now = now();
        boolean isBusy = MACHINE.getSystemLoadAverage() > MACHINE.getAvailableProcessors();
        return isBusy || now - beat > BEAT_MILLIS + LATE_MILLIS || now - lateAt < SHORTLY_MILLIS;
    }

    /** True if there was trouble for which the machine is to blame. */
    boolean isOver() {
        return isOver;
    }

    @Override
    public void onTrouble(String what, Throwable why) {
        if (isLate()) isOver = true;
        else causeless.add(what + " (" + why + ")");
    }

    @Override
    public void close() throws InterruptedException {
        isClosed = true;
        witness.join();
        if (client != null) client.close();
        assertEquals(List.of(), causeless, "trouble, and the machine was not late");
    }
}
