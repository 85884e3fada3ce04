package redislock.engine;

import java.util.EnumSet;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;
import redislock.DeadlockException;
import redislock.LockUnavailableException;

/** One acquisition: from the first request until the lock is held, or everything about it is given up. */
final class Wait {
    /** The pause before a request that is repeated once, also when its time is over. */
    private static final long AT_ONCE = -1;

    private enum Seen {
        NOTHING,
        FENCE,
        SILENCE
    }

    /** The lock; null when others had it until the wait was over; or what an application is told. */
    final CompletableFuture<@Nullable Held> result = new CompletableFuture<>();
    /** Completed when the end of the wait need hold up nobody any more. */
    final CompletableFuture<@Nullable Object> gone = new CompletableFuture<>();

    private final Engine engine;
    private final Route route;
    private final Terms terms;
    private final Owner owner;
    private final long wait;
    private final long began = Times.tick();
    private final long end;
    private final AtomicBoolean isOver = new AtomicBoolean();
    /** True while the thread that asked waits anyhow. */
    private boolean isDirect;
    /** The link on which the request waits. Nobody shares it. */
    private final AtomicReference<@Nullable Link> lending = new AtomicReference<>();
    /** There was none that could be opened: asked again each {@link Times#POLL}. */
    private boolean isPolling;
    /** The request under way, and its link if that is lent. */
    private volatile @Nullable CompletableFuture<Object> pending;

    /** True if a request was not answered. */
    private volatile boolean isDoubtful;
    /** True if the server may have a place or a hold of the owner. */
    private volatile boolean isKnown;

    private int redirections;
    private long pause = Times.PAUSE_MIN;
    private long asked;
    private long block;
    /** Where the server tells this wait to ask again, and whether the last request said so. */
    private @Nullable Notice notice;

    private boolean isTold;
    /** True if a message came since the last request was made, and if that one was made for a message. */
    private volatile boolean isHinted;

    private boolean isByHint;
    /** Requests for a message that were answered null, one after the other. */
    private int hollow;
    /** What a message ends, if it comes now. */
    private volatile @Nullable CompletableFuture<@Nullable Object> nap;
    /** True if the only try had no answer, and was repeated. */
    private boolean isRepeated;

    /** {@code wait}: for at most so many milliseconds; 0 tries once. */
    Wait(Engine engine, Terms terms, Owner owner, long wait, boolean isDirect) {
        this.engine = engine;
        this.route = new Route(engine.wire, terms.wired(0));
        this.terms = terms;
        this.owner = owner;
        this.wait = wait;
        this.end = wait >= Times.FOR_EVER ? Long.MAX_VALUE : began + wait;
        this.isDirect = isDirect;
    }

    Wait start() {
        owner.enter(terms.keys());
        engine.waits.add(this);
        if (engine.isClosed) refuse(closed());
        else loop();
        return this;
    }

    private static LockUnavailableException closed() {
        return new LockUnavailableException("these locks are closed", null, null);
    }

    /** Gives up, because the caller does. Nothing if it is over already. */
    void abandon() {
        refuse(new LockUnavailableException("given up", null, null));
    }

    void close() {
        refuse(closed());
    }

    String owner() {
        return owner.name;
    }

    /** The server, or what watches its messages, says that it is worthwhile to ask. */
    void told() {
        isHinted = true;
        CompletableFuture<@Nullable Object> sleeping = nap;
        if (sleeping != null) sleeping.complete(null);
    }

    private long left() {
        return end - Times.tick();
    }

    /** Asks again and again, on whichever thread the last answer came. */
    private void loop() {
        while (!isOver.get()) {
            CompletableFuture<?> turn = turn();
            if (turn.isDone()) continue;
            // From here on other threads go on, which must not be blocked.
            isDirect = false;
            turn.whenComplete((none, error) -> loop());
            return;
        }
        part();
    }

    private CompletableFuture<?> turn() {
        return clean(left()).thenCompose(none -> ask(left())).handle(this::after).thenCompose(next -> next);
    }

    /** What comes after an answer: the end, or a pause. */
    private CompletableFuture<@Nullable Object> after(@Nullable Held hold, @Nullable Throwable error) {
        if (hold != null) {
            grant(hold);
            return CompletableFuture.completedFuture(null);
        }
        long idle;
        if (isOver.get()) return CompletableFuture.completedFuture(null);
        Throwable failure = error == null ? null : Errors.plain(error);
        if (failure == null) {
            CompletableFuture<@Nullable Object> turn = afterNull(left());
            if (turn != null) {
                if (left() <= 0) refuse(null);
                return turn;
            }
            return CompletableFuture.completedFuture(null);
        }
        if (isWithout(failure)) return CompletableFuture.completedFuture(null);
        if (engine.hasOldClients && Errors.code(failure).equals("WRONGTYPE")) {
            if (left() > 0) return engine.alarm.pause(Math.min(Times.jittered(Times.POLL), left()));
            refuse(null);
            return CompletableFuture.completedFuture(null);
        }
        engine.troubles.failed(failure);
        idle = pauseAfter(failure);
        if (idle == Times.FOR_EVER || left() <= 0 && idle != AT_ONCE) {
            refuse(failure);
            return CompletableFuture.completedFuture(null);
        }
        return engine.alarm.pause(Math.min(idle, left()));
    }

    /** True if the request is to be made at once in another way: without NOTIFY, or with a shorter QUEUE. */
    private boolean isWithout(Throwable failure) {
        long longest = Errors.longestQueue(failure);
        if (longest > 0 && longest < engine.queueMax) {
            engine.queueMax = longest;
            return true;
        }
        Notice there = notice;
        if (!isTold || there == null) return false;
        String code = Errors.code(failure);
        if (code.equals("NOTIFYSLOT") && redirections < Route.REDIRECTIONS_MAX) {
            redirections += 1;
            there.end();
            return true;
        }
        if (Errors.isOfNotify(failure)) {
            there.refuse(failure);
            return true;
        }
        // Another server is the primary now, and publishes there.
        if (code.equals("READONLY") || code.equals("MASTERDOWN")) there.end();
        return false;
    }

    /** Until a message comes, or it is time to ask again. */
    private CompletableFuture<@Nullable Object> nap(long left) {
        hollow = isByHint ? hollow + 1 : 0;
        // After messages that were in vain it hurries less: anybody may have sent them.
        long least = hollow < 2 ? 0 : Math.min(Times.PAUSE_MIN << Math.min(hollow - 2, 10), Times.PAUSE_MAX);
        if (least > 0) return engine.alarm.pause(Math.min(least, left)).thenCompose(none -> sleep(left()));
        return sleep(left);
    }

    private CompletableFuture<@Nullable Object> sleep(long left) {
        CompletableFuture<@Nullable Object> sleeping = new CompletableFuture<>();
        nap = sleeping;
        if (isHinted || isOver.get()) sleeping.complete(null);
        long longest = Math.min(Times.jittered(queue(true) / 3), left);
        return engine.alarm.until(longest, sleeping).thenApply(none -> {
            nap = null;
            return null;
        });
    }

    private long queue(boolean toBeTold) {
        return Math.min(toBeTold ? Times.QUEUE_TOLD : Times.QUEUE, engine.queueMax);
    }

    /** The pause after null, or a turn of a link. */
    private @Nullable CompletableFuture<@Nullable Object> afterNull(long left) {
        if (left <= 0 || wait == 0) {
            refuse(null);
            return null;
        }
        // Null before the time is up: something between here and the queue does not let requests wait.
        if (block > 0) {
            long rest = Math.min(block - (Times.tick() - asked), left);
            if (rest <= 0) return left() > 0 ? null : CompletableFuture.completedFuture(null);
            return engine.alarm.pause(rest);
        }
        if (isPolling) {
            isPolling = false;
            return engine.alarm.pause(Math.min(Times.jittered(Times.POLL), left));
        }
        // The first request asked on the link of all, and waited for nothing. From now on one of its own waits.
        if (lending.get() == null) lending.set(engine.wire.lend(route.address(), false));
        if (lending.get() != null) return null;
        if (isTold) {
            engine.troubles.over(Troubles.OF_NOTICES);
            return nap(left);
        }
        Notice there = engine.notices.at(route.address());
        if (there.channel() == null && there.canStart()) return engine.alarm.until(left, there.start(route.slot()));
        return engine.wire.turn(Math.min(Times.jittered(Times.POLL), left)).thenApply(none -> {
            if (!isOver.get() && lending.get() == null) lending.set(engine.wire.lend(route.address(), false));
            return null;
        });
    }

    /** How long to pause before the next request; {@link Times#FOR_EVER} if asking again does not help. */
    private long pauseAfter(Throwable error) {
        if (!Errors.isPassing(error)) return Times.FOR_EVER;
        // Perhaps the connection of the only try was dead: once more, over a new one.
        if (error instanceof Unreachable && wait == 0 && !isRepeated) {
            isRepeated = true;
            return AT_ONCE;
        }
        if (Errors.isRedirection(error) && redirections < Route.REDIRECTIONS_MAX) {
            redirections += 1;
            return AT_ONCE;
        }
        long idle = pause + java.util.concurrent.ThreadLocalRandom.current().nextLong(pause / 4 + 1);
        pause = Math.min(2 * pause, Times.PAUSE_MAX);
        return idle;
    }

    /** Waits for what this owner gives back of these keys, and gives back what it may have left. */
    private CompletableFuture<@Nullable Object> clean(long left) {
        List<CompletableFuture<Boolean>> leaving = owner.leaving(terms.keys());
        CompletableFuture<@Nullable Object> before = CompletableFuture.completedFuture(null);
        if (!leaving.isEmpty()) {
            CompletableFuture<Boolean> all = CompletableFuture.allOf(leaving.toArray(CompletableFuture<?>[]::new))
                    .handle((none, error) -> true);
            before = engine.alarm.until(Math.max(left, Times.LEAVE), all).thenApply(isDone -> {
                if (isDone == null) throw new Unreachable("the server has not confirmed the last release", new IllegalStateException());
                return null;
            });
        }
        return before.thenCompose(none -> {
            if (!owner.isDoubtful(terms.keys())) return CompletableFuture.completedFuture(null);
            // A former wait or hold of this owner ended without an answer: its remains must not be taken for the new hold.
            return route.ask(terms.leave(owner.name), Times.ANSWER).thenApply(answer -> {
                owner.isClean(terms.keys());
                return null;
            });
        });
    }

    /** One request. Null: not yet. */
    private CompletableFuture<@Nullable Held> ask(long left) {
        if (isOver.get()) return CompletableFuture.completedFuture(null);
        String address = route.address();
        Link link = lending.get();
        if (link != null && (!link.isUsable() || !java.util.Objects.equals(link.address, address))) {
            giveBack();
            link = null;
        }
        if (link == null && left > 0 && wait > 0 && !isKnown) {
            // With a connection that is there already one request does both: it asks, and waits.
            link = engine.wire.lend(address, engine.wire.isMultiplexed());
            lending.set(link);
        }
        // BLOCK 0 would wait without a limit.
        block = link == null ? 0 : Math.min(Times.BLOCK, Math.max(1, left));
        long limit = block + Math.min(Math.max(left - block, Times.LEAVE), Times.ANSWER);
        byte[] channel = link == null && wait > 0 && left > 0 && !route.isAsking() ? channelAt(address) : null;
        isTold = channel != null;
        isByHint = isHinted;
        isHinted = false;
        byte[][] words = terms.acquire(owner.name, block, wait > 0 ? queue(isTold) : 0, channel);
        asked = Times.tick();
        long sent = engine.clock.now();
        boolean wasKnown = isKnown;
        // Whoever gives up from here on sees that there is a request, and reads what comes of it.
        CompletableFuture<Object> reply = new CompletableFuture<>();
        pending = reply;
        isKnown = true;
        if (isOver.get()) {
            pending = null;
            reply.completeExceptionally(new Unreachable("not sent", new IllegalStateException()));
            return CompletableFuture.completedFuture(null);
        }
        CompletableFuture<Object> sending;
        if (link != null) sending = route.send(link, words, limit, isDirect);
        else if (channel != null) sending = engine.wire.notified(route, engine.notices.at(address), words, limit);
        else sending = engine.wire.exchange(route, words, limit, isDirect);
        Errors.pass(sending, reply);
        Link used = link;
        return reply.handle((value, error) -> {
                    pending = null;
                    if (error == null) {
                        isKnown = wait > 0 || isDoubtful || value != null;
                        return value;
                    }
                    Throwable plain = Errors.plain(error);
                    if (plain instanceof Unreachable) failed(used, wasKnown);
                    else isKnown = wait > 0 || isDoubtful;
                    throw plain instanceof RuntimeException known ? known : new Unreachable(terms.toString(), plain);
                })
                .thenCompose(value -> value == null ? CompletableFuture.completedFuture(null) : confirm(value, sent));
    }

    /** The channel on which that node tells this wait; null while it does not. The wait is known there before it asks. */
    private byte @Nullable [] channelAt(@Nullable String address) {
        Notice there = engine.notices.at(address);
        byte[] channel = there.channel();
        if (channel == null || there == notice) return channel;
        if (notice != null) notice.leave(this);
        notice = there;
        there.enter(this);
        return channel;
    }

    /** No answer. What never had a connection was not sent. */
    private void failed(@Nullable Link used, boolean wasKnown) {
        if (used != null && !used.wasOpen()) {
            isKnown = wasKnown;
            // Perhaps a wait cannot have a link: the next request goes over the link of all.
            isPolling = true;
        } else {
            isDoubtful = true;
        }
        if (used != null) giveBack();
    }

    /** The hold of a grant. */
    private CompletableFuture<@Nullable Held> confirm(Object reply, long sent) {
        long[] fences = reply instanceof List<?> all
                ? all.stream().mapToLong(each -> (Long) each).toArray()
                : new long[] {(Long) reply};
        Held hold = new Held(engine, route, owner, terms, fences, sent);
        // The moment of the grant is not known: after a wait that was long a renewal may be due.
        if (engine.clock.now() < hold.due) return CompletableFuture.completedFuture(hold);
        return hold.extend(Times.ANSWER, null).thenApply(why -> why == null ? hold : null);
    }

    /** The renewer has it before anybody else. */
    private void grant(Held hold) {
        engine.renewer.add(hold);
        if (isOver.getAndSet(true)) {
            // It was given up meanwhile. What left the queue may have come to the server before this grant.
            hold.stop();
            engine.owe(again(() -> undo(hold), 1, Times.PAUSE_MIN, Times.tick() + terms.lease()));
            return;
        }
        engine.waits.remove(this);
        giveBack();
        engine.troubles.over(Troubles.OF_ASKING);
        engine.tellAcquired(terms, began);
        gone.complete(null);
        if (engine.isClosed) hold.lose(redislock.Hold.Loss.CLOSED);
        result.complete(hold);
    }

    /** Gives back a grant that nobody wants any more, and no later hold of this owner. True if the server has confirmed it. */
    private CompletableFuture<Boolean> undo(Held hold) {
        CompletableFuture<Boolean> all = CompletableFuture.completedFuture(true);
        for (int at = 0; at < hold.fences.length; at += 1) {
            String fence = String.valueOf(hold.fences[at]);
            byte[][] words = terms.about(at, "LOCK.RELEASE", owner.name, "ALL", "FENCE", fence);
            all = all.thenCombine(Engine.isAnswered(route.request(words, Times.ANSWER, false)), Boolean::logicalAnd);
        }
        return all;
    }

    /** Ends without the lock. Null: others have it. */
    private void refuse(@Nullable Throwable why) {
        if (isOver.getAndSet(true)) return;
        told();
        engine.tellRefused(terms, began);
        CompletableFuture<Boolean> left;
        if (isKnown) {
            left = leave();
            owner.leaveWith(terms.keys(), left);
            engine.owe(left);
        } else {
            left = CompletableFuture.completedFuture(true);
            owner.leave(terms.keys(), true);
            giveBack();
        }
        left.whenComplete((none, error) -> engine.waits.remove(this));
        engine.alarm.until(Times.CANCEL, left).whenComplete((none, error) -> {
            gone.complete(null);
            if (why == null) result.complete(null);
            else result.completeExceptionally(Errors.told(terms.toString(), why));
        });
        if (engine.isClosed && !result.isDone()) {
            gone.complete(null);
            result.completeExceptionally(why == null ? closed() : Errors.told(terms.toString(), why));
        }
    }

    private void part() {
        if (notice != null) notice.leave(this);
        if (pending == null) giveBack();
    }

    private void giveBack() {
        Link link = lending.getAndSet(null);
        if (link != null) engine.wire.giveBack(link);
    }

    /** Gives up the place, and what was granted meanwhile. True once the server has confirmed that. */
    private CompletableFuture<Boolean> leave() {
        long limit = Times.tick() + terms.lease() + Times.QUEUE_TOLD;
        CompletableFuture<Seen> seen = readOn();
        CompletableFuture<Boolean> first = release();
        return seen.thenCombine(first, (what, isReleased) -> {
                    if (what == Seen.SILENCE || isDoubtful) {
                        // The server may read the request after this release: after one that is answered, one more undoes it.
                        return 2;
                    }
                    return isReleased && what == Seen.NOTHING ? 0 : 1;
                })
                .thenCompose(count -> again(this::release, count, Times.PAUSE_MIN, limit));
    }

    private CompletableFuture<Boolean> release() {
        return Engine.isAnswered(route.request(terms.leave(owner.name), Times.ANSWER, false));
    }

    /** Asks until that was answered so often. */
    private CompletableFuture<Boolean> again(
            Supplier<CompletableFuture<Boolean>> request, int count, long pauseBefore, long limit) {
        if (count == 0) return CompletableFuture.completedFuture(true);
        if (Times.tick() > limit || engine.isShut) return CompletableFuture.completedFuture(false);
        return request.get().thenCompose(isAnswered -> isAnswered
                ? again(request, count - 1, pauseBefore, limit)
                : engine.rest(pauseBefore)
                        .thenCompose(none -> again(request, count, Math.min(2 * pauseBefore, Times.PAUSE_MAX), limit)));
    }

    /** What comes of the request under way. Its link is closed if nothing comes. */
    private CompletableFuture<Seen> readOn() {
        CompletableFuture<Object> reply = pending;
        Link link = lending.get();
        if (reply == null) {
            giveBack();
            return CompletableFuture.completedFuture(Seen.NOTHING);
        }
        // What was not sent yet must not overtake the RELEASE.
        if (link != null && !link.wasOpen()) link.close();
        CompletableFuture<Seen> outcome = reply.handle((value, error) -> {
            // Another thread may have sent the release first: then it left the place of this request.
            if (error == null) return value == null && link != null ? Seen.NOTHING : Seen.FENCE;
            boolean wasSent = link == null || link.wasOpen();
            return Errors.code(Errors.plain(error)).isEmpty() && wasSent ? Seen.SILENCE : Seen.NOTHING;
        });
        return engine.alarm.until(Times.LEAVE, outcome).thenApply(what -> {
            if (what == null && link != null) link.close();
            giveBack();
            return what == null ? Seen.SILENCE : what;
        });
    }

    /** What a deadlock of a thread with itself is. */
    static DeadlockException itself(Terms terms) {
        return new DeadlockException(terms + ": this thread reads it, and waits for its own read to end", null);
    }
}
