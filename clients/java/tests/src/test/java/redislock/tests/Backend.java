package redislock.tests;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.List;
import redislock.RedisLocks;

/** What has the locks: a server, or one in memory. */
interface Backend {
    /** The reply to a command of another client. */
    Object ask(String... words);

    /** How often a command was called, as {@code lock.extend}. */
    long calls(String command);

    /** How many connections there are. */
    long clients();

    RedisLocks.Builder builder(Library library);

    /** How many wait for a key. */
    default long waiting(String key) {
        return ask("LOCK.INFO", key) instanceof List<?> info ? (Long) value(info, "waiting") : 0;
    }

    /** A field of a reply of LOCK.INFO. */
    static Object value(List<?> fields, String name) {
        for (int at = 0; at < fields.size(); at += 2) {
            if (name.equals(new String((byte[]) fields.get(at), UTF_8))) return fields.get(at + 1);
        }
        throw new AssertionError(name);
    }
}
