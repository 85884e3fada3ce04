package redislock.engine;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.locks.ReentrantLock;
import org.jspecify.annotations.Nullable;
import redislock.spi.ServerError;
import redislock.spi.Subscription;

/**
 * How one node tells waits to ask again: a channel, its subscription, and the waits there. A message is a hint. Without it
 * a wait asks at a third of QUEUE, and without a subscription each second.
 */
final class Notice {
    private static final byte[] HELLO = "HELLO".getBytes(UTF_8);
    private static final byte[] PING = "PING".getBytes(UTF_8);

    private final Notices all;
    private final Engine engine;
    private final @Nullable String address;
    private final ReentrantLock lock = new ReentrantLock();
    /** The waits by their owner. */
    private final Map<String, Set<Wait>> waits = new ConcurrentHashMap<>();

    /** The channel that the server has confirmed. */
    private volatile byte @Nullable [] channel;

    private @Nullable Subscription subscription;
    /** What was asked for last. To cancel it ends what is not confirmed. */
    private @Nullable CompletableFuture<Subscription> asked;
    /** Which subscription is the present one: messages and ends of former ones are none. */
    private volatile long turn;
    /** The start that is under way. */
    private @Nullable CompletableFuture<@Nullable Object> starting;
    /** It is not confirmed in time: the waits go on without it, until it is. */
    private boolean isLate;
    /** No start before this tick. */
    private long startsAt = Long.MIN_VALUE;

    private long pause = Times.PAUSE_MIN;
    /** The server refused, over the connection of this number: until the next one, or for a while. */
    private long refusedBy = -1;

    private long refusedUntil;
    /** The subscription that ended before it was known here. */
    private long lostTurn = -1;

    private int slot;
    /** The link over which the places were asked for: they end when it does. */
    private @Nullable Link link;

    private long askedAll = Long.MIN_VALUE / 2;
    private boolean isAskingAll;
    private long emptySince = Times.tick();

    Notice(Notices all, @Nullable String address) {
        this.all = all;
        this.engine = all.engine;
        this.address = address;
    }

    /** The channel to be told on; null while there is none. */
    byte @Nullable [] channel() {
        return channel;
    }

    void enter(Wait wait) {
        waits.compute(wait.owner(), (name, these) -> {
            Set<Wait> set = these == null ? ConcurrentHashMap.newKeySet(1) : these;
            set.add(wait);
            return set;
        });
    }

    void leave(Wait wait) {
        waits.computeIfPresent(wait.owner(), (name, these) -> {
            these.remove(wait);
            return these.isEmpty() ? null : these;
        });
    }

    /** True if it is worth to start a subscription now, or to wait for one. */
    boolean canStart() {
        lock.lock();
        try {
            long now = Times.tick();
            boolean isRefused = refusedBy == engine.wire.connection(address) && now < refusedUntil;
            if (starting != null && !isLate) return true;
            return !isRefused && now >= startsAt && !engine.isClosed;
        } finally {
            lock.unlock();
        }
    }

    /** Completed when there is a subscription, or none for now. {@code key}: a slot that this node serves. */
    CompletableFuture<@Nullable Object> start(int key) {
        CompletableFuture<@Nullable Object> mine;
        CompletableFuture<Subscription> former;
        long number;
        lock.lock();
        try {
            if (channel != null) return CompletableFuture.completedFuture(null);
            if (starting != null && !isLate) return starting;
            isLate = false;
            mine = new CompletableFuture<>();
            starting = mine;
            slot = key;
            // All ask when it has begun, and that says over which link.
            link = null;
            turn += 1;
            number = turn;
            former = asked;
            asked = null;
        } finally {
            lock.unlock();
        }
        if (former != null) former.cancel(false);
        CompletableFuture<Subscription> begun = engine.wire.room().thenCompose(none -> subscribe(number, key));
        begun.whenComplete((value, error) -> {
            if (error != null) failed(number, Errors.plain(error));
        });
        engine.alarm.after(Times.CONFIRM, () -> late(number));
        return mine;
    }

    private CompletableFuture<Subscription> subscribe(long number, int key) {
        return engine.wire.isCluster(address).thenCompose(isCluster -> {
            String name = all.channel(isCluster, key);
            CompletableFuture<Subscription> made =
                    all.transport.subscribe(address, name, isCluster, owner -> told(number, owner), () -> ended(number));
            asked(number, made);
            return made.thenApply(confirmed -> {
                started(number, name, confirmed);
                return confirmed;
            });
        });
    }

    private void asked(long number, CompletableFuture<Subscription> made) {
        boolean isWanted;
        lock.lock();
        try {
            isWanted = number == turn && !engine.isClosed;
            if (isWanted) asked = made;
        } finally {
            lock.unlock();
        }
        if (!isWanted) made.cancel(false);
    }

    private void late(long number) {
        CompletableFuture<@Nullable Object> done;
        lock.lock();
        try {
            done = starting;
            if (number != turn || done == null || isLate) return;
            isLate = true;
            refused();
        } finally {
            lock.unlock();
        }
        String text = "the subscription is not confirmed within " + Times.CONFIRM + " ms";
        engine.troubles.tell(Troubles.Kind.NOTICES, new TimeoutException(text));
        done.complete(null);
        askAll();
    }

    private void started(long number, String name, Subscription confirmed) {
        CompletableFuture<@Nullable Object> done;
        lock.lock();
        try {
            done = starting;
            if (lostTurn == number) throw new Unreachable("the subscription has ended", new IllegalStateException());
            if (number != turn || done == null) {
                done = null;
            } else {
                starting = null;
                isLate = false;
                subscription = confirmed;
                channel = name.getBytes(UTF_8);
                pause = Times.PAUSE_MIN;
                refusedBy = -1;
                emptySince = Times.tick();
            }
        } finally {
            lock.unlock();
        }
        if (done == null || engine.isClosed) {
            confirmed.close();
            return;
        }
        all.watch();
        done.complete(null);
        // Those that were told on a former channel.
        askAll();
    }

    private void failed(long number, Throwable error) {
        CompletableFuture<@Nullable Object> done;
        boolean isRefused;
        lock.lock();
        try {
            done = starting;
            if (number != turn || done == null) return;
            starting = null;
            isLate = false;
            turn += 1;
            isRefused = isRefusal(error);
            startsAt = Times.tick() + pause;
            pause = Math.min(2 * pause, Times.PAUSE_MAX);
            if (isRefused) refused();
        } finally {
            lock.unlock();
        }
        if (Errors.isRedirection(error)) engine.wire.homes.put(slot, Route.target(error, address));
        else if (isRefused) engine.troubles.tell(Troubles.Kind.NOTICES, error);
        else engine.troubles.failed(error instanceof ServerError ? error : new Unreachable("SUBSCRIBE: " + error.getMessage(), error));
        done.complete(null);
        // They ask as those do that nobody tells.
        askAll();
    }

    private void refused() {
        refusedBy = engine.wire.connection(address);
        refusedUntil = Times.tick() + Times.REFUSED;
    }

    private static boolean isRefusal(Throwable error) {
        if (error instanceof UnsupportedOperationException) return true;
        return error instanceof ServerError && !Errors.isPassing(error);
    }

    /** A request with NOTIFY was refused for that: the waits go on without. */
    void refuse(Throwable error) {
        lock.lock();
        try {
            refused();
        } finally {
            lock.unlock();
        }
        end();
        engine.troubles.tell(Troubles.Kind.NOTICES, error);
        askAll();
    }

    /** The subscription may be at a server that is not asked any more: the next wait starts another one. */
    void end() {
        Subscription former;
        lock.lock();
        try {
            former = subscription;
            subscription = null;
            channel = null;
            if (starting == null) turn += 1;
        } finally {
            lock.unlock();
        }
        if (former != null) former.close();
    }

    /** Ends also one that is not confirmed yet. */
    void close() {
        CompletableFuture<Subscription> former;
        lock.lock();
        try {
            turn += 1;
            former = asked;
            asked = null;
        } finally {
            lock.unlock();
        }
        if (former != null) former.cancel(false);
        end();
    }

    private void ended(long number) {
        lock.lock();
        try {
            lostTurn = number;
            // One that is being started fails by itself.
            if (number != turn || starting != null) return;
        } finally {
            lock.unlock();
        }
        end();
        if (!waits.isEmpty() && canStart()) start(slot);
    }

    private void told(long number, byte[] owner) {
        if (number != turn) return;
        if (owner.length == 1 && owner[0] == '*') {
            askAllAgain();
            return;
        }
        Set<Wait> these = waits.get(new String(owner, UTF_8));
        if (these != null) these.forEach(Wait::told);
    }

    /** All waits ask, a second after the last time at the earliest: anybody may have sent that message. */
    private void askAllAgain() {
        long after;
        lock.lock();
        try {
            if (isAskingAll || waits.isEmpty()) return;
            isAskingAll = true;
            after = askedAll + Times.ALL - Times.tick();
        } finally {
            lock.unlock();
        }
        engine.alarm.after(Math.max(0, after), this::askAll);
    }

    /** All waits ask, so many at a time as a server bears well. */
    private void askAll() {
        lock.lock();
        try {
            isAskingAll = false;
            askedAll = Times.tick();
        } finally {
            lock.unlock();
        }
        List<Wait> these = new ArrayList<>();
        waits.values().forEach(these::addAll);
        for (int from = 0; from < these.size(); from += Times.SLICE) {
            List<Wait> slice = these.subList(from, Math.min(from + Times.SLICE, these.size()));
            engine.alarm.after((long) from / Times.SLICE * Times.SLICE_EACH, () -> slice.forEach(Wait::told));
        }
    }

    /** A request went over this link. After a former one the places are asked for again, and the server may be another. */
    void over(Link used) {
        lock.lock();
        try {
            Link former = link;
            link = used;
            if (former == null || former == used) return;
        } finally {
            lock.unlock();
        }
        end();
        if (canStart()) start(slot);
        else askAll();
    }

    /** True while there is something to look after: links that end without a word, and a subscription that nobody needs. */
    boolean look() {
        Link used;
        lock.lock();
        try {
            if (channel == null && waits.isEmpty()) return false;
            if (!waits.isEmpty()) emptySince = Times.tick();
            used = link;
        } finally {
            lock.unlock();
        }
        if (waits.isEmpty()) {
            if (Times.tick() - emptySince > Times.QUEUE) end();
        } else if (used != null && !used.isUsable()) {
            askAll();
        } else if (used != null && !engine.wire.isMultiplexed() && used.isIdle()) {
            // Nobody reads from it between two requests.
            used.send(new byte[][] {PING}, Times.ANSWER, false).whenComplete((value, error) -> {
                if (error != null) askAll();
            });
        }
        return true;
    }

    /** The mode that a server names: in a cluster messages go by shards. */
    static CompletableFuture<Boolean> isCluster(Link link) {
        return link.send(new byte[][] {HELLO}, Times.ANSWER, false).handle((reply, error) -> {
            if (error != null && !(Errors.plain(error) instanceof ServerError)) throw new CompletionException(Errors.plain(error));
            if (!(reply instanceof List<?> fields)) return link.address != null;
            for (int at = 0; at + 1 < fields.size(); at += 2) {
                if (fields.get(at) instanceof byte[] name && new String(name, UTF_8).equals("mode")) {
                    return fields.get(at + 1) instanceof byte[] mode && new String(mode, UTF_8).equals("cluster");
                }
            }
            return false;
        });
    }
}
