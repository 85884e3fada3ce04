package redislock.engine;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.locks.ReentrantLock;

/** Renews all holds: a heap by the time when each is due, and one alarm. */
final class Renewer {
    private final Engine engine;
    private final ReentrantLock lock = new ReentrantLock();
    private final List<Held> heap = new ArrayList<>();
    private long wakesAt = Long.MAX_VALUE;

    Renewer(Engine engine) {
        this.engine = engine;
        engine.clock.onJump(this::look);
    }

    void add(Held hold) {
        lock.lock();
        try {
            if (hold.at >= 0) return;
            heap.add(hold);
            up(hold, heap.size() - 1);
            arm();
        } finally {
            lock.unlock();
        }
    }

    /** It is due at another time. Of one that is not renewed, nothing. */
    void move(Held hold, long due) {
        lock.lock();
        try {
            hold.due = due;
            if (hold.at < 0) return;
            up(hold, hold.at);
            down(hold, hold.at);
            arm();
        } finally {
            lock.unlock();
        }
    }

    void remove(Held hold) {
        lock.lock();
        try {
            int at = hold.at;
            if (at < 0) return;
            hold.at = -1;
            Held last = heap.remove(heap.size() - 1);
            if (last == hold) return;
            up(last, at);
            down(last, last.at);
        } finally {
            lock.unlock();
        }
    }

    List<Held> all() {
        lock.lock();
        try {
            return List.copyOf(heap);
        } finally {
            lock.unlock();
        }
    }

    private void up(Held hold, int from) {
        int at = from;
        while (at > 0) {
            int above = (at - 1) / 2;
            Held parent = heap.get(above);
            if (parent.due <= hold.due) break;
            put(parent, at);
            at = above;
        }
        put(hold, at);
    }

    private void down(Held hold, int from) {
        int at = from;
        for (; ; ) {
            int child = 2 * at + 1;
            if (child >= heap.size()) break;
            if (child + 1 < heap.size() && heap.get(child + 1).due < heap.get(child).due) child += 1;
            if (heap.get(child).due >= hold.due) break;
            put(heap.get(child), at);
            at = child;
        }
        put(hold, at);
    }

    private void put(Held hold, int at) {
        heap.set(at, hold);
        hold.at = at;
    }

    /** The alarm is not set anew for each hold: it looks too early rather than too late. */
    private void arm() {
        if (heap.isEmpty()) return;
        long now = engine.clock.now();
        long next = Math.min(heap.get(0).due, now + Times.LOOK);
        if (next >= wakesAt) return;
        wakesAt = next;
        engine.alarm.after(Math.max(1, next - now), this::look);
    }

    /** All that is due, and what will be soon, goes out together. */
    private void look() {
        List<Held> dueNow = new ArrayList<>();
        long now = engine.clock.now();
        lock.lock();
        try {
            wakesAt = Long.MAX_VALUE;
            while (!heap.isEmpty()) {
                Held first = heap.get(0);
                if (first.due > now + first.slack()) break;
                dueNow.add(first);
                // Until it says when it is due next, its end is what counts.
                first.due = Math.max(first.end(), now + 1);
                down(first, 0);
            }
            arm();
        } finally {
            lock.unlock();
        }
        Batch batch = new Batch(engine.wire);
        for (Held hold : dueNow) hold.look(now, batch);
        batch.flush();
    }
}
