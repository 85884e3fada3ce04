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
}
