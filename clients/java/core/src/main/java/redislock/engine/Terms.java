package redislock.engine;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * What was asked for, checked, and the requests that ask for it.
 *
 * @param kind how the keys are locked
 * @param keys the keys without the prefix
 * @param prefix what is written before each key
 * @param lease in milliseconds
 * @param max in milliseconds; {@link Times#FOR_EVER} if there is none
 * @param limit of shares
 * @param take of shares
 * @param note for people, or null
 */
record Terms(
        Kind kind, List<String> keys, String prefix, long lease, long max, long limit, long take, @Nullable String note) {
    /** How keys are locked. */
    enum Kind {
        WRITE,
        READ,
        SHARE
    }

    Terms {
        keys = List.copyOf(keys);
        if (keys.isEmpty()) throw new IllegalArgumentException("no key");
        if (keys.size() > 1 && new HashSet<>(keys).size() < keys.size()) throw new IllegalArgumentException("the same key twice");
        if (lease < Times.LEASE_MIN) throw new IllegalArgumentException("lease must be at least a second: " + lease + " ms");
        if (max <= 0) throw new IllegalArgumentException("max must be above 0: " + max + " ms");
        if (limit < 1) throw new IllegalArgumentException("limit must be at least 1: " + limit);
        if (take < 1 || take > limit) throw new IllegalArgumentException("take must be from 1 to limit: " + take);
    }

    Terms(Kind kind, List<String> keys, String prefix, long lease) {
        this(kind, keys, prefix, lease, Times.FOR_EVER, 1, 1, null);
    }

    Terms withLease(long millis) {
        return new Terms(kind, keys, prefix, millis, max, limit, take, note);
    }

    Terms withMax(long millis) {
        return new Terms(kind, keys, prefix, lease, millis, limit, take, note);
    }

    Terms withNote(String text) {
        return new Terms(kind, keys, prefix, lease, max, limit, take, text);
    }

    Terms withShares(long all, long own) {
        return new Terms(Kind.SHARE, keys, prefix, lease, max, all, own, note);
    }

    /** The lease of the first request: no longer than the hold may last, and what is taken from it for its validity. */
    long firstLease() {
        return Math.min(lease, max + margin() + Times.CLOCK_STEP);
    }

    /** What two clocks may differ by. */
    long margin() {
        return Math.max(lease / 100, 100);
    }

    byte[] wired(int at) {
        return (prefix + keys.get(at)).getBytes(UTF_8);
    }

    private List<byte[]> head(String single, String several, String owner) {
        List<byte[]> words = new ArrayList<>(16);
        if (keys.size() == 1) add(words, single);
        else add(words, several, String.valueOf(keys.size()));
        for (int at = 0; at < keys.size(); at += 1) words.add(wired(at));
        add(words, owner);
        return words;
    }

    /**
     * The request. With QUEUE it may be sent any number of times: the owner keeps its place, and counts once.
     *
     * @param block in milliseconds; 0: it is answered at once
     * @param queue in milliseconds; 0: no place
     * @param channel on which the owner is told when to ask again
     */
    byte[][] acquire(String owner, long block, long queue, byte @Nullable [] channel) {
        String single =
                switch (kind) {
                    case WRITE -> "LOCK.ACQUIRE";
                    case READ -> "LOCK.RW";
                    case SHARE -> "LOCK.SHARE";
                };
        List<byte[]> words = head(single, "LOCK.MACQUIRE", owner);
        if (kind == Kind.READ) add(words, "READ");
        if (kind == Kind.SHARE) add(words, String.valueOf(limit), "TAKE", String.valueOf(take));
        add(words, "PX", String.valueOf(firstLease()), "RETRY", String.valueOf(take));
        if (block > 0) add(words, "BLOCK", String.valueOf(block));
        if (queue > 0) add(words, "QUEUE", String.valueOf(queue));
        if (channel != null) {
            add(words, "NOTIFY");
            words.add(channel);
        }
        if (note != null) add(words, "NOTE", note);
        return words.toArray(byte[][]::new);
    }

    /** Leaves the queue, and gives back what was granted meanwhile. */
    byte[][] leave(String owner) {
        List<byte[]> words = head("LOCK.RELEASE", "LOCK.MRELEASE", owner);
        add(words, "ALL");
        return words.toArray(byte[][]::new);
    }

    /** A request about one key. */
    byte[][] about(int at, String command, String owner, String... more) {
        List<byte[]> words = new ArrayList<>(3 + more.length);
        add(words, command);
        words.add(wired(at));
        add(words, owner);
        add(words, more);
        return words.toArray(byte[][]::new);
    }

    private static void add(List<byte[]> words, String... more) {
        for (String word : more) words.add(word.getBytes(UTF_8));
    }

    @Override
    public String toString() {
        return "lock \"" + String.join("\", \"", keys) + "\"";
    }
}
