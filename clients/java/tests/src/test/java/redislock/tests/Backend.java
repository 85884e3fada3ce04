package redislock.tests;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.locks.LockSupport;
import net.javacrumbs.shedlock.support.LockException;
import redislock.LockUnavailableException;
import redislock.RedisLocks;

/** What has the locks: a server, or one in memory. */
interface Backend {
    int TRIES = 10;

    /** The reply to a command of another client. */
    Object ask(String... words);

    /** How often a command was called, as {@code lock.extend}. */
    long calls(String command);

    /** How many connections there are, without those of a {@link Calm}. */
    long clients();

    RedisLocks.Builder builder(Library library);

    /** How many wait for a key. */
    default long waiting(String key) {
        return ask("LOCK.INFO", key) instanceof List<?> info ? (Long) value(info, "waiting") : 0;
    }

    /**
     * What a call returns once it has its answer. On a busy machine one may be later than a call waits; then the server
     * may have granted what nobody wants, and has it back soon.
     */
    static <T> T answered(Callable<T> call) throws Exception {
        for (int tries = 1; ; tries += 1) {
            try {
                return call.call();
            } catch (RuntimeException error) {
                Throwable why = error instanceof LockException ? error.getCause() : error;
                if (!(why instanceof LockUnavailableException late) || late.code().isPresent() || tries == TRIES) throw error;
                LockSupport.parkNanos(1_000_000_000);
            }
        }
    }

    /** A field of a reply of LOCK.INFO. */
    static Object value(List<?> fields, String name) {
        for (int at = 0; at < fields.size(); at += 2) {
            if (name.equals(new String((byte[]) fields.get(at), UTF_8))) return fields.get(at + 1);
        }
        throw new AssertionError(name);
    }
}
