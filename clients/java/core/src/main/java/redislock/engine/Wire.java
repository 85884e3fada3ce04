package redislock.engine;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Future;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;
import redislock.spi.Transport;

/**
 * The links of one application. A client library that multiplexes has a shared link for each node, which never waits; with
 * another one each request borrows a link, until waits need a shared one to be told. Besides, links are lent to waits: each
 * waits on one of its own.
 */
final class Wire {
    /** Links beside those of waits, where each request borrows one. */
    private static final int SPARE = 2;

    /** Which node has a slot, as far as servers have said. */
    final Map<Integer, String> homes = new ConcurrentHashMap<>();

    private final Transport transport;
    private final Alarm alarm;
    private final int lentMax;
    private final ReentrantLock lock = new ReentrantLock();
    private final Map<String, Link> controls = new HashMap<>();
    /** Those that nobody uses now, the last used one at the end. */
    private final Deque<Link> idle = new ArrayDeque<>();

    private int lent;
    private int borrowed;
    /** Waits that would have a link, and requests that would borrow one. */
    private final Set<CompletableFuture<@Nullable Object>> line = new LinkedHashSet<>();

    private final Deque<Runnable> borrowers = new ArrayDeque<>();
    /** How often connections to a node have ended. */
    private final Map<String, Long> connections = new ConcurrentHashMap<>();
    /** Whether servers are nodes of a cluster, once one has said so. */
    private volatile @Nullable Boolean isCluster;
    /** Completed when the shared link and a subscription have their place beside those that are borrowed. */
    private @Nullable CompletableFuture<@Nullable Object> room;

    private volatile boolean isRoomy;
    private boolean isSweeping;
    private boolean isClosed;

    Wire(Transport transport, Alarm alarm, int lentMax) {
        this.transport = transport;
        this.alarm = alarm;
        this.lentMax = lentMax;
    }

    boolean isMultiplexed() {
        return transport.isMultiplexed();
    }

    /** Connects to where any key may be, so that the first lock finds a connection. */
    void warm() {
        if (isMultiplexed()) control(null);
        else shared(null, false, link -> link.send(new byte[][] {"PING".getBytes(java.nio.charset.StandardCharsets.UTF_8)}, Times.ANSWER, false));
    }

    /** How many links may be there beside those of waits. */
    private int spare() {
        return room == null ? SPARE : 0;
    }

    /** Makes room for the shared link of those that are told, and for a subscription. */
    CompletableFuture<@Nullable Object> room() {
        if (isMultiplexed()) return CompletableFuture.completedFuture(null);
        CompletableFuture<@Nullable Object> made;
        lock.lock();
        try {
            if (room == null) room = new CompletableFuture<>();
            made = room;
        } finally {
            lock.unlock();
        }
        settle();
        return made;
    }

    /** Where there is room now, what waited for a link goes over the shared one. */
    private void settle() {
        List<Link> many = new ArrayList<>();
        List<Runnable> those = new ArrayList<>();
        CompletableFuture<@Nullable Object> made;
        lock.lock();
        try {
            made = room;
            if (made == null || isRoomy || lent + borrowed > lentMax) return;
            while (lent + borrowed + idle.size() > lentMax) many.add(idle.removeFirst());
            isRoomy = true;
            those.addAll(borrowers);
            borrowers.clear();
        } finally {
            lock.unlock();
        }
        many.forEach(Link::close);
        those.forEach(Runnable::run);
        made.complete(null);
    }

    /** A number that changes with each connection to a node that has ended. */
    long connection(@Nullable String address) {
        return connections.getOrDefault(address == null ? "" : address, 0L);
    }

    /** True if the server there is a node of a cluster. */
    CompletableFuture<Boolean> isCluster(@Nullable String address) {
        Boolean known = isCluster;
        if (known != null) return CompletableFuture.completedFuture(known);
        return Notice.isCluster(control(address)).thenApply(mode -> {
            isCluster = mode;
            return mode;
        });
    }

    /** Sends a request with NOTIFY, over the shared link: when that ends, the server takes the process for gone. */
    CompletableFuture<Object> notified(Route route, Notice notice, byte[][] words, long millis) {
        Link link = control(route.address());
        notice.over(link);
        return route.send(link, words, millis, false);
    }

    private Link control(@Nullable String address) {
        String name = address == null ? "" : address;
        Link link;
        lock.lock();
        try {
            link = controls.get(name);
            if (link == null || !link.isUsable()) {
                // It ended, perhaps while nothing was under way.
                if (link != null) connections.merge(name, 1L, Long::sum);
                link = made(address, true);
                controls.put(name, link);
            }
        } finally {
            lock.unlock();
        }
        return link.open(transport);
    }

    /** Uses a link for requests that are answered at once. Where links are borrowed, it may have to wait for one. */
    void shared(@Nullable String address, boolean isDirect, Function<Link, CompletableFuture<?>> use) {
        if (isMultiplexed() || isRoomy && !isDirect) {
            use.apply(control(address));
            return;
        }
        Link link = null;
        lock.lock();
        try {
            if (lent + borrowed < lentMax + spare()) {
                borrowed += 1;
                link = found(address, false);
            } else if (!isRoomy) {
                borrowers.add(() -> shared(address, false, use));
                return;
            }
        } finally {
            lock.unlock();
        }
        if (link == null) {
            use.apply(control(address));
            return;
        }
        Link mine = link.open(transport);
        use.apply(mine).whenComplete((value, error) -> {
            lock.lock();
            try {
                borrowed -= 1;
            } finally {
                lock.unlock();
            }
            keep(mine);
        });
    }

    /** Sends a request over a shared link. */
    CompletableFuture<Object> exchange(Route route, byte[][] words, long millis, boolean isDirect) {
        CompletableFuture<Object> result = new CompletableFuture<>();
        long end = Times.tick() + millis;
        shared(route.address(), isDirect, link -> {
            long left = end - Times.tick();
            CompletableFuture<Object> reply = route.send(link, words, Math.max(1, left), isDirect);
            Errors.pass(reply, result);
            return reply;
        });
        // It may still wait for a link.
        if (!result.isDone() && !isMultiplexed()) {
            Unreachable none = new Unreachable("no connection was free", new IllegalStateException());
            Future<?> late = alarm.after(millis, () -> result.completeExceptionally(none));
            result.whenComplete((value, error) -> late.cancel(false));
        }
        return result;
    }

    /** A link of these, else a new one. */
    private Link found(@Nullable String address, boolean isFresh) {
        for (Iterator<Link> last = idle.descendingIterator(); last.hasNext(); ) {
            Link link = last.next();
            if (!link.isUsable()) {
                last.remove();
            } else if (Objects.equals(link.address, address) && (!isFresh || link.isFresh())) {
                last.remove();
                return link;
            }
        }
        sweepLater();
        return made(address, false);
    }

    /** A new one. After the end it is closed: nothing is sent over it. */
    private Link made(@Nullable String address, boolean isShared) {
        Link link = new Link(alarm, address, isShared);
        if (isClosed) link.close();
        return link;
    }

    /** A link for one wait, which gives it back; null when enough are lent. {@code isFresh}: only one that was used just now. */
    @Nullable Link lend(@Nullable String address, boolean isFresh) {
        Link link;
        lock.lock();
        try {
            if (isClosed || lent >= lentMax) return null;
            if (!isMultiplexed() && lent + borrowed >= lentMax + spare()) return null;
            link = found(address, isFresh);
            if (isFresh && !link.wasOpen()) return null;
            lent += 1;
        } finally {
            lock.unlock();
        }
        return link.open(transport);
    }

    void giveBack(Link link) {
        lock.lock();
        try {
            lent -= 1;
        } finally {
            lock.unlock();
        }
        keep(link);
    }

    /** Keeps a link for the next one, and calls that. */
    private void keep(Link link) {
        Runnable next = null;
        CompletableFuture<@Nullable Object> turn = null;
        lock.lock();
        try {
            boolean isOneTooMany = room != null && lent + borrowed + idle.size() >= lentMax;
            if (link.isUsable() && link.isIdle() && !isClosed && !isOneTooMany) idle.addLast(link);
            else link.retire();
            if (lent + borrowed < lentMax + spare()) next = borrowers.poll();
            if (lent < lentMax && !line.isEmpty()) {
                turn = line.iterator().next();
                line.remove(turn);
            }
        } finally {
            lock.unlock();
        }
        settle();
        if (next != null) next.run();
        if (turn != null) turn.complete(null);
    }

    /** Completed when a link can be lent, or the time is over, whichever is first. */
    CompletableFuture<@Nullable Object> turn(long millis) {
        CompletableFuture<@Nullable Object> turn = new CompletableFuture<>();
        lock.lock();
        try {
            line.add(turn);
        } finally {
            lock.unlock();
        }
        alarm.after(millis, () -> {
            lock.lock();
            try {
                line.remove(turn);
            } finally {
                lock.unlock();
            }
            turn.complete(null);
        });
        return turn;
    }

    /** One link there failed, or leads to a server that is no primary any more: so may those that nobody watches. */
    void forget(@Nullable String address) {
        List<Link> there = new ArrayList<>();
        connections.merge(address == null ? "" : address, 1L, Long::sum);
        lock.lock();
        try {
            idle.removeIf(link -> link.wasOpen() && Objects.equals(link.address, address) && there.add(link));
        } finally {
            lock.unlock();
        }
        there.forEach(Link::close);
    }

    private void sweepLater() {
        if (isSweeping || isClosed) return;
        isSweeping = true;
        alarm.after(Times.SWEEP, this::sweep);
    }

    /** Closes what was not used for a while. The shared links stay: a renewal never needs a new one. */
    private void sweep() {
        long now = Times.tick();
        List<Link> old = new ArrayList<>();
        lock.lock();
        try {
            isSweeping = false;
            int resting = 0;
            for (Iterator<Link> last = idle.descendingIterator(); last.hasNext(); ) {
                Link link = last.next();
                boolean isResting = link.usedAt < now - Times.RECENT;
                if (isResting) resting += 1;
                if (link.isUsable() && link.usedAt >= now - Times.IDLE && resting <= Times.IDLE_MAX) continue;
                last.remove();
                old.add(link);
            }
            if (!idle.isEmpty() || lent > 0 || borrowed > 0) sweepLater();
        } finally {
            lock.unlock();
        }
        old.forEach(Link::close);
    }

    void close() {
        List<Link> all = new ArrayList<>();
        lock.lock();
        try {
            isClosed = true;
            all.addAll(idle);
            all.addAll(controls.values());
            idle.clear();
            controls.clear();
        } finally {
            lock.unlock();
        }
        all.forEach(Link::close);
    }
}
