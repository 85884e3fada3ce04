package redislock.engine;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;
import redislock.Hold;
import redislock.HoldToken;
import redislock.LockLostException;

/** A lock that is held: until when it is valid, its renewal, its loss, and its release. */
final class Held implements Hold {
    final Engine engine;
    final Route route;
    final Owner holder;
    final long[] fences;
    final Terms terms;
    private final long began = Times.tick();
    private final ReentrantLock lock = new ReentrantLock();
    /** By the engine's clock: until when it is valid, and the end that the application set. */
    private volatile long validUntil;

    private volatile long maxUntil;
    /** When the renewer has something to do for it, and its place in the renewer's heap. The renewer guards both. */
    long due;

    int at = -1;
    private boolean isRenewing;
    private boolean hasFailed;
    /** How many renewals had no answer: the server may read them yet. */
    private final AtomicInteger unread = new AtomicInteger();
    /** Nothing is renewed or judged any more: it is lost, or the release has begun. */
    private volatile boolean isOver;

    private volatile @Nullable Loss loss;
    /** What the application was given to be told of a loss. */
    private @Nullable List<CompletableFuture<Loss>> listeners;
    /** What is forgotten when it is over. */
    private @Nullable List<Runnable> lasts;

    private @Nullable CompletableFuture<@Nullable Void> released;

    /** {@code sent}: when the request was made. The lease may have begun as early. */
    Held(Engine engine, Route route, Owner holder, Terms terms, long[] fences, long sent) {
        this.engine = engine;
        this.route = route;
        this.holder = holder;
        this.terms = terms;
        this.fences = fences;
        this.maxUntil = terms.max() >= Times.FOR_EVER ? Long.MAX_VALUE : sent + terms.max();
        this.validUntil = endOf(sent, terms.firstLease());
        this.due = dueAfter(sent);
    }

    /** Valid up to here: counted from before the request, less what two clocks may differ by. */
    private long endOf(long sent, long lease) {
        return Math.min(sent + lease - terms.margin() - Times.CLOCK_STEP, maxUntil);
    }

    private long dueAfter(long sent) {
        // What is renewed up to its maximum already is not renewed again.
        return validUntil >= maxUntil ? validUntil : sent + terms.lease() / 3;
    }

    long end() {
        return validUntil;
    }

    /** How much too early it may be renewed, together with others. Its end is never too early. */
    long slack() {
        return due < validUntil ? terms.lease() / 50 : 0;
    }

    @Override
    public String key() {
        return terms.keys().get(0);
    }

    @Override
    public long fence() {
        return fences[0];
    }

    @Override
    public String owner() {
        return holder.name;
    }

    @Override
    public boolean isValid() {
        if (isOver) return false;
        if (engine.clock.now() < validUntil) return true;
        lapse();
        return false;
    }

    private void lapse() {
        boolean isMax = validUntil >= maxUntil;
        boolean isLost = lose(isMax ? Loss.MAX : Loss.LEASE_OVER);
        // A renewal that the server reads late would let it last beyond its maximum.
        if (isLost && isMax && mayBeRead()) release(false);
    }

    /** True if the server may read a renewal yet. */
    private boolean mayBeRead() {
        return unread.get() > 0;
    }

    @Override
    public Duration validFor() {
        return isValid() ? Duration.ofMillis(Math.max(0, validUntil - engine.clock.now())) : Duration.ZERO;
    }

    @Override
    public CompletableFuture<Loss> lost() {
        CompletableFuture<Loss> told = new CompletableFuture<>();
        lock.lock();
        try {
            if (!isOver) {
                if (listeners == null) listeners = new ArrayList<>(1);
                listeners.add(told);
                return told;
            }
        } finally {
            lock.unlock();
        }
        Loss why = loss;
        if (why == null) told.cancel(false);
        else told.complete(why);
        return told;
    }

    /** Why it is lost; null while it is not. */
    @Nullable Loss loss() {
        isValid();
        return loss;
    }

    LockLostException lostException() {
        Loss why = Objects.requireNonNullElse(loss, Loss.LEASE_OVER);
        String text =
                switch (why) {
                    case LEASE_OVER -> "it could not be renewed in time";
                    case TAKEN_AWAY -> "the server has it no more";
                    case OVERWRITTEN -> "something else lies on its key";
                    case MAX -> "the maximum of its time is over";
                    case CLOSED -> "the locks were closed";
                };
        return new LockLostException(terms + " is lost: " + text, why);
    }

    /** Ends the renewal. False if it was over before. */
    boolean stop() {
        return stop(null);
    }

    /** Ends it by this release, in one step: of two threads only one does. */
    private boolean stop(@Nullable CompletableFuture<@Nullable Void> release) {
        lock.lock();
        try {
            if (isOver) return false;
            isOver = true;
            released = release;
        } finally {
            lock.unlock();
        }
        over();
        return true;
    }

    private void over() {
        engine.renewer.remove(this);
        List<Runnable> all = lasts;
        if (all != null) all.forEach(Runnable::run);
    }

    /** Runs this when it is given back or lost. */
    void whenOver(Runnable last) {
        lock.lock();
        try {
            if (!isOver) {
                // A list of its own each time: who runs it needs no lock.
                List<Runnable> all = lasts == null ? new ArrayList<>(1) : new ArrayList<>(lasts);
                all.add(last);
                lasts = all;
                return;
            }
        } finally {
            lock.unlock();
        }
        last.run();
    }

    /** False if it was over before. */
    boolean lose(Loss why) {
        lock.lock();
        try {
            if (isOver) return false;
            loss = why;
            isOver = true;
        } finally {
            lock.unlock();
        }
        over();
        holder.leave(terms.keys(), false);
        settle(why);
        engine.callbacks.tell(listener -> listener.onLost(key(), why));
        return true;
    }

    /** Tells those who wait for a loss. */
    private void settle(@Nullable Loss why) {
        List<CompletableFuture<Loss>> all;
        lock.lock();
        try {
            all = listeners;
            listeners = null;
        } finally {
            lock.unlock();
        }
        if (all == null) return;
        List<CompletableFuture<Loss>> told = all;
        engine.callbacks.run(() -> told.forEach(each -> {
            if (why == null) each.cancel(false);
            else each.complete(why);
        }));
    }

    /** A request about a key, with its fence. */
    private interface Asking {
        byte[][] words(int at);
    }

    private interface Sending {
        CompletableFuture<Object> send(byte[][] words);
    }

    /** One request for each key. Null: all are held; else why one is not. */
    private CompletableFuture<@Nullable Loss> each(Asking asking, Sending sending) {
        int count = terms.keys().size();
        CompletableFuture<@Nullable Loss> result = null;
        for (int at = 0; at < count; at += 1) {
            CompletableFuture<@Nullable Loss> one = sending.send(asking.words(at)).handle((reply, error) -> {
                if (error == null) return reply == null ? Loss.TAKEN_AWAY : null;
                Throwable plain = Errors.plain(error);
                if (Errors.code(plain).equals("WRONGTYPE")) return Loss.OVERWRITTEN;
                throw plain instanceof RuntimeException known ? known : new Unreachable(terms.toString(), plain);
            });
            result = result == null ? one : result.thenCombine(one, (before, now) -> before != null ? before : now);
        }
        return Objects.requireNonNull(result);
    }

    /** Begins the lease anew. Null: it is held; else why not. */
    CompletableFuture<@Nullable Loss> extend(long millis, @Nullable Batch batch) {
        long sent = engine.clock.now();
        // Up to the maximum, and what is taken from a lease for its validity.
        long rest = maxUntil == Long.MAX_VALUE ? maxUntil : maxUntil - sent + terms.margin() + Times.CLOCK_STEP;
        long lease = Math.max(1, Math.min(terms.lease(), rest));
        Asking asking = at -> terms.about(
                at, "LOCK.EXTEND", holder.name, "PX", String.valueOf(lease), "FENCE", String.valueOf(fences[at]));
        Sending sending = words ->
                batch == null ? route.request(words, millis, false) : route.request(words, millis, batch);
        unread.incrementAndGet();
        return each(asking, sending).whenComplete((why, error) -> {
            if (error == null) unread.decrementAndGet();
        }).thenApply(why -> {
            if (why != null) return why;
            lock.lock();
            try {
                // What was found lost meanwhile stays lost, and an older answer takes nothing away.
                if (!isOver) validUntil = Math.max(validUntil, endOf(sent, lease));
            } finally {
                lock.unlock();
            }
            engine.renewer.move(this, dueAfter(sent));
            return engine.clock.now() < validUntil ? null : Loss.LEASE_OVER;
        });
    }

    /** What is due: a renewal, or the end. */
    void look(long now, Batch batch) {
        if (now >= validUntil) {
            lapse();
            return;
        }
        lock.lock();
        try {
            if (isOver || isRenewing) return;
            if (maxUntil != Long.MAX_VALUE && validUntil >= maxUntil) return;
            isRenewing = true;
        } finally {
            lock.unlock();
        }
        extend(Times.ofRenewal(terms.lease()), batch).whenComplete((why, error) -> {
            long pause;
            lock.lock();
            try {
                isRenewing = false;
                // A connection may have ended long ago: a new one is tried at once.
                pause = hasFailed ? terms.lease() / 24 : 0;
                hasFailed = error != null;
            } finally {
                lock.unlock();
            }
            if (error == null) {
                if (why != null) lose(why);
                else engine.troubles.over(java.util.EnumSet.of(Troubles.Kind.RENEWAL));
            } else if (!isOver) {
                engine.troubles.tell(Troubles.Kind.RENEWAL, Errors.plain(error));
                engine.renewer.move(this, Math.min(engine.clock.now() + pause, validUntil));
            }
        });
    }

    @Override
    public CompletableFuture<Boolean> checkAsync() {
        return engine.callbacks.outside(terms, checked());
    }

    @Override
    public boolean check() {
        return await(checked());
    }

    private CompletableFuture<Boolean> checked() {
        if (!isValid()) return CompletableFuture.completedFuture(false);
        String mode = terms.kind() == Terms.Kind.WRITE ? "WRITE" : "READ";
        Asking asking = at -> terms.about(at, "LOCK.CHECK", holder.name, mode, "FENCE", String.valueOf(fences[at]));
        return each(asking, words -> route.ask(words, Times.ANSWER)).thenApply(why -> {
            if (why != null) lose(why);
            return !isOver;
        });
    }

    @Override
    public CompletableFuture<@Nullable Object> guardAsync(String command, Object... args) {
        return engine.callbacks.outside(terms, guarded(command, args));
    }

    @Override
    public @Nullable Object guard(String command, Object... args) {
        return await(guarded(command, args));
    }

    private CompletableFuture<@Nullable Object> guarded(String command, Object... args) {
        Objects.requireNonNull(command, "command");
        if (terms.kind() != Terms.Kind.WRITE) throw new IllegalStateException("guard needs a lock of one holder alone");
        if (!isValid()) {
            if (loss != null) return CompletableFuture.failedFuture(lostException());
            throw new IllegalStateException(terms + " was given back");
        }
        List<byte[]> words = new ArrayList<>(
                Arrays.asList(terms.about(0, "LOCK.GUARD", holder.name, String.valueOf(fences[0]), command)));
        for (Object arg : args) {
            words.add(Objects.requireNonNull(arg, "args") instanceof byte[] raw ? raw : arg.toString().getBytes(UTF_8));
        }
        long left = Math.max(1, validUntil - engine.clock.now());
        return route.request(words.toArray(byte[][]::new), Math.min(left, Times.BLOCK + Times.ANSWER), false)
                .thenApply(reply -> {
                    if (reply instanceof List<?> both) return both.get(1);
                    lose(Loss.TAKEN_AWAY);
                    throw lostException();
                });
    }

    @Override
    public CompletableFuture<Boolean> renewMaxAsync(Duration max) {
        return engine.callbacks.outside(terms, renewedMax(max));
    }

    @Override
    public boolean renewMax(Duration max) {
        return await(renewedMax(max));
    }

    private CompletableFuture<Boolean> renewedMax(Duration max) {
        long millis = Times.millis(max);
        if (millis <= 0) throw new IllegalArgumentException("max must be above 0: " + max);
        if (!isValid()) return CompletableFuture.completedFuture(false);
        lock.lock();
        try {
            long until = millis >= Times.FOR_EVER ? Long.MAX_VALUE : engine.clock.now() + millis;
            // A nearer end than the present one counts from now on.
            maxUntil = until;
            validUntil = Math.min(validUntil, until);
        } finally {
            lock.unlock();
        }
        return extend(Times.ANSWER, null).thenApply(why -> {
            if (why != null) lose(why);
            return why == null && !isOver;
        });
    }

    @Override
    public HoldToken detach() {
        if (terms.keys().size() > 1) throw new IllegalStateException("several keys cannot be detached");
        if (!isValid() || !stop(CompletableFuture.completedFuture(null))) {
            if (loss != null) throw lostException();
            throw new IllegalStateException(terms + " was given back");
        }
        settle(null);
        return new HoldToken(key(), holder.name, fence());
    }

    @Override
    public void releaseAfter(Duration rest) {
        await(lapsed(rest));
    }

    @Override
    public CompletableFuture<@Nullable Void> releaseAfterAsync(Duration rest) {
        return engine.callbacks.outside(terms, lapsed(rest));
    }

    private CompletableFuture<@Nullable Void> lapsed(Duration rest) {
        long millis = Times.millis(rest);
        if (millis <= 0) throw new IllegalArgumentException("rest must be above 0: " + rest);
        if (!isValid() || !stop(CompletableFuture.completedFuture(null))) {
            if (loss != null) return CompletableFuture.failedFuture(lostException());
            throw new IllegalStateException(terms + " was given back");
        }
        settle(null);
        // Until it is answered, its owner takes no other hold of the keys.
        CompletableFuture<Boolean> over = new CompletableFuture<>();
        holder.leaveWith(terms.keys(), over);
        engine.owe(over);
        Ending ending = new Ending(Times.tick() + millis);
        tellReleased();
        return ending.ask()
                .exceptionallyCompose(error -> Errors.plain(error) instanceof Unreachable
                        ? ending.ask()
                        : CompletableFuture.failedFuture(error))
                .whenComplete((why, error) -> {
                    Throwable plain = error == null ? null : Errors.plain(error);
                    if (plain != null) engine.troubles.tell(Troubles.Kind.RELEASE, plain);
                    CompletableFuture<Boolean> later = new CompletableFuture<>();
                    later.thenAccept(isAnswered -> over.complete(false));
                    if (plain == null || !Errors.isPassing(plain)) later.complete(true);
                    else releaseLater(() -> ending.ask(), later);
                })
                .thenApply(why -> {
                    // Null says nothing once its time is over.
                    if (why == null || Times.tick() >= ending.end) return null;
                    loss = why;
                    throw lostException();
                });
    }

    /**
     * The end of the lease, as the application set it. What the server reads after it would undo it: a fence that is
     * raised makes that void, as each request names the fence of this hold. Its attempts follow each other.
     */
    private final class Ending {
        private final long end;
        /** True if an attempt had no answer, and if one of these raised the fence. */
        private volatile boolean isUnanswered;

        private volatile boolean hasRaised;
        /** What an answer said before the fence was raised. */
        private volatile @Nullable Loss found;

        Ending(long end) {
            this.end = end;
        }

        CompletableFuture<@Nullable Loss> ask() {
            return ask(isUnanswered || mayBeRead());
        }

        private CompletableFuture<@Nullable Loss> ask(boolean raises) {
            boolean wasRaised = hasRaised;
            Asking asking = at -> {
                List<String> words = new ArrayList<>(List.of(
                        "PX", String.valueOf(Math.max(1, end - Times.tick())), "FENCE", String.valueOf(fences[at])));
                if (raises) words.addAll(List.of("MINFENCE", String.valueOf(fences[at] + 1)));
                return terms.about(at, "LOCK.EXTEND", holder.name, words.toArray(String[]::new));
            };
            Sending sending = words -> route.request(words, Times.ANSWER / 2, false).thenApply(reply -> {
                // Once the fence is raised, null says that the end is as asked.
                if (reply == null && !wasRaised) found = Loss.TAKEN_AWAY;
                return reply;
            });
            return each(asking, sending)
                    .thenApply(why -> why == Loss.TAKEN_AWAY ? found : why)
                    .exceptionallyCompose(error -> {
                        boolean isAhead = raises && Errors.isAhead(error);
                        // Of several keys another one may be raised.
                        if (!isAhead || terms.keys().size() > 1) {
                            isUnanswered = true;
                            hasRaised |= raises;
                        }
                        return isAhead ? ask(false) : CompletableFuture.failedFuture(error);
                    });
        }
    }

    private void tellReleased() {
        Duration time = Engine.since(began);
        engine.callbacks.tell(listener -> listener.onReleased(key(), time));
    }

    @Override
    public CompletableFuture<@Nullable Void> releaseAsync() {
        return engine.callbacks.outside(terms, release(false));
    }

    @Override
    public void close() {
        long end = Times.tick() + Times.CLOSE;
        CompletableFuture<@Nullable Void> over = release(true);
        boolean wasInterrupted = false;
        try {
            for (; ; ) {
                try {
                    over.get(Math.max(0, end - Times.tick()), TimeUnit.MILLISECONDS);
                    return;
                } catch (InterruptedException again) {
                    wasInterrupted = true;
                } catch (TimeoutException late) {
                    if (loss != null) throw lostException();
                    return;
                } catch (ExecutionException failure) {
                    // Without an answer it goes on in the background, and trouble was told.
                    if (failure.getCause() instanceof LockLostException) throw lostException();
                    return;
                }
            }
        } finally {
            if (wasInterrupted) Thread.currentThread().interrupt();
        }
    }

    /** Gives it back, once. {@code isDirect}: the calling thread waits for it anyhow. */
    CompletableFuture<@Nullable Void> release(boolean isDirect) {
        CompletableFuture<@Nullable Void> result = new CompletableFuture<>();
        boolean isMine = isValid() && stop(result);
        if (!isMine) {
            lock.lock();
            try {
                if (released != null) return released;
                released = result;
            } finally {
                lock.unlock();
            }
        }
        Asking asking =
                at -> terms.about(at, "LOCK.RELEASE", holder.name, "ALL", "FENCE", String.valueOf(fences[at]));
        if (!isMine) {
            // Of several keys some may be held still.
            each(asking, words -> route.request(words, Times.LEAVE, isDirect)).whenComplete((why, error) -> {
                if (error != null && Errors.isPassing(Errors.plain(error))) releaseLater(asking, new CompletableFuture<>());
                result.completeExceptionally(lostException());
            });
            engine.owe(result);
            return result;
        }
        settle(null);
        tellReleased();
        long limit = isDirect ? Times.CLOSE / 2 : Times.ANSWER;
        each(asking, words -> route.request(words, limit, isDirect)).whenComplete((why, error) -> {
            if (error == null) {
                holder.leave(terms.keys(), why == null);
                if (why == null) {
                    result.complete(null);
                    return;
                }
                loss = why;
                engine.callbacks.tell(listener -> listener.onLost(key(), why));
                result.completeExceptionally(lostException());
            } else if (Errors.isPassing(Errors.plain(error))) {
                repeat(asking, result);
            } else {
                holder.leave(terms.keys(), false);
                unreleased(Errors.plain(error), result);
            }
        });
        engine.owe(result);
        return result;
    }

    /** Null to a repeated release is the first one's success, of which the answer was lost. */
    private void repeat(Asking asking, CompletableFuture<@Nullable Void> result) {
        each(asking, this::again).whenComplete((why, error) -> {
            if (error == null) {
                holder.leave(terms.keys(), true);
                result.complete(null);
                return;
            }
            Throwable plain = Errors.plain(error);
            if (Errors.isPassing(plain)) {
                CompletableFuture<Boolean> later = new CompletableFuture<>();
                holder.leaveWith(terms.keys(), later);
                releaseLater(asking, later);
            } else {
                holder.leave(terms.keys(), false);
            }
            unreleased(plain, result);
        });
    }

    private void unreleased(Throwable error, CompletableFuture<@Nullable Void> result) {
        engine.troubles.tell(Troubles.Kind.RELEASE, error);
        result.completeExceptionally(Errors.told(terms + " could not be given back, and ends with its lease", error));
    }

    private CompletableFuture<Object> again(byte[][] words) {
        return route.request(words, Times.ANSWER, false);
    }

    private void releaseLater(Asking asking, CompletableFuture<Boolean> later) {
        releaseLater(() -> each(asking, this::again), later);
    }

    /** Until the lease is over. */
    private void releaseLater(Supplier<CompletableFuture<?>> request, CompletableFuture<Boolean> later) {
        engine.owe(later);
        engine.repeat(request, Times.tick() + terms.lease() + Times.QUEUE, later);
    }

    private <T> T await(CompletableFuture<T> future) {
        return Awaiting.uninterruptibly(future, terms.toString());
    }

    /** A writer that reads stays a reader: its thread gives the write back. */
    CompletableFuture<@Nullable Held> downgrade() {
        Terms reading = new Terms(Terms.Kind.READ, terms.keys(), terms.prefix(), terms.lease());
        long sent = engine.clock.now();
        return route.ask(reading.acquire(holder.name, 0, 0, null), Times.ANSWER)
                .thenCompose(fence -> route.ask(terms.about(0, "LOCK.RELEASE", holder.name, "WRITE", "ALL"), Times.ANSWER)
                        .thenApply(none -> {
                            if (!(fence instanceof Long number) || number != fences[0] || !stop()) return null;
                            Held reader = new Held(engine, route, holder, reading, fences, sent);
                            engine.renewer.add(reader);
                            settle(null);
                            return reader;
                        }));
    }
}
