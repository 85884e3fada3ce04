package redislock.spi;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.util.concurrent.locks.ReentrantLock;
import org.jspecify.annotations.Nullable;

/** {@link System#nanoTime}, and what {@code /proc/uptime} is ahead of it where there is one: that counts a suspend. */
final class SystemClock implements Clock {
    static final SystemClock ONE = new SystemClock("/proc/uptime");
    private static final long NANOS = 1_000_000;

    private final long start = System.nanoTime();
    private final ReentrantLock reading = new ReentrantLock();
    private final byte[] text = new byte[64];
    private @Nullable RandomAccessFile file;
    /** How far the file's clock was ahead at the start, and at most since. */
    private final long first;

    private volatile long ahead;

    SystemClock(String path) {
        long apart = 0;
        try {
            file = new RandomAccessFile(path, "r");
            apart = uptime() - own();
        } catch (IOException none) {
            file = null;
        }
        first = apart;
        ahead = apart;
    }

    private long own() {
        return (System.nanoTime() - start) / NANOS;
    }

    /** Milliseconds since the machine started, in steps of ten. */
    private long uptime() throws IOException {
        RandomAccessFile open = file;
        if (open == null) throw new IOException("closed");
        open.seek(0);
        int length = open.read(text);
        long value = 0;
        for (int at = 0; at < length && text[at] != ' '; at += 1) {
            if (text[at] != '.') value = 10 * value + text[at] - '0';
        }
        return 10 * value;
    }

    @Override
    public long now() {
        // A thread that finds another one reading takes what that one read before.
        if (file != null && reading.tryLock()) {
            try {
                ahead = Math.max(ahead, uptime() - own());
            } catch (IOException gone) {
                file = null;
            } finally {
                reading.unlock();
            }
        }
        return own() + ahead - first;
    }
}
