package redislock.engine;

import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;

/** What threads hold by {@link ThreadLock}, and how often. It belongs to the locks of an application, and not to a view. */
final class ThreadHolds {
    /** Whose count it is. Readers and writers of a key share one. */
    record Key(List<String> keys, boolean isShares, Thread thread) {}

    /** Of one thread, which alone uses it. */
    static final class Count {
        Held hold;
        int writes;
        int reads;

        Count(Held hold) {
            this.hold = hold;
        }
    }

    final ConcurrentMap<Key, Count> counts = new ConcurrentHashMap<>();
    /** What each thread has by a call that waited, so that it never waits for itself. */
    private final ConcurrentMap<Key, Held> held = new ConcurrentHashMap<>();

    /** The present thread has it now, until it is given back or lost. Shares may be taken several times. */
    void has(Held hold) {
        Terms terms = hold.terms;
        if (terms.kind() == Terms.Kind.SHARE) return;
        Thread thread = Thread.currentThread();
        for (String key : terms.keys()) {
            Key mine = new Key(List.of(key), false, thread);
            held.put(mine, hold);
            hold.whenOver(() -> held.remove(mine, hold));
        }
    }

    /**
     * Refuses a wait of the present thread for what it holds itself.
     *
     * @throws IllegalStateException if it has one of the keys
     */
    void checkFree(Terms terms) {
        if (terms.kind() == Terms.Kind.SHARE) return;
        for (String key : terms.keys()) {
            Held hold = held.get(new Key(List.of(key), false, Thread.currentThread()));
            if (hold == null || !hold.isValid()) continue;
            throw new IllegalStateException(terms + ": this thread holds it, and would wait for itself; asLock() is re-entrant");
        }
    }
}
