package redislock.engine;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.jspecify.annotations.Nullable;
import redislock.spi.Connection;
import redislock.spi.ServerError;
import redislock.spi.Transport;

/** One connection with its requests and the time that each has. It never connects again, and sends nothing twice. */
final class Link {
    final @Nullable String address;
    /** Any number of requests at a time go over it, so that no thread may wait on it. */
    final boolean isShared;
    private final Alarm alarm;
    private final CompletableFuture<Connection> opened = new CompletableFuture<>();
    private final long begunAt = Times.tick();
    private final AtomicBoolean started = new AtomicBoolean();
    /** Requests under way. */
    private final AtomicInteger requests = new AtomicInteger();
    /** It takes no new request, since one failed or the connection ended. It closes after the last one. */
    private volatile boolean retired;

    private volatile boolean closed;
    /** When it was used, and when something came from the server. */
    volatile long usedAt = Times.tick();

    private volatile long heardAt = Long.MIN_VALUE / 2;

    Link(Alarm alarm, @Nullable String address, boolean isShared) {
        this.alarm = alarm;
        this.address = address;
        this.isShared = isShared;
    }

    /** Connects, unless it has begun before or is closed. */
    Link open(Transport transport) {
        if (closed || started.getAndSet(true)) return this;
        transport.connect(address).whenComplete((connection, error) -> {
            heardAt = Times.tick();
            if (connection == null) {
                retired = true;
                opened.completeExceptionally(error);
            } else if (!opened.complete(connection)) {
                connection.close();
            }
        });
        return this;
    }

    /** True if it was ever open: before that nothing is sent. */
    boolean wasOpen() {
        return opened.isDone() && !opened.isCompletedExceptionally();
    }

    boolean isUsable() {
        return !retired && (!opened.isDone() || isOpen());
    }

    private boolean isOpen() {
        return wasOpen() && opened.join().isOpen();
    }

    boolean isFresh() {
        return !retired && isOpen() && Times.tick() - heardAt < Times.FRESH;
    }

    boolean isIdle() {
        return requests.get() == 0;
    }

    CompletableFuture<Object> send(byte[][] words, long millis, boolean isDirect) {
        return send(List.<byte[][]>of(words), millis, isDirect).get(0);
    }

    /** Sends them in one write. Each fails with the error reply, or with {@link Unreachable}. */
    List<CompletableFuture<Object>> send(List<byte[][]> all, long millis, boolean isDirect) {
        usedAt = Times.tick();
        requests.addAndGet(all.size());
        List<CompletableFuture<Object>> replies = new ArrayList<>(all.size());
        for (int count = 0; count < all.size(); count += 1) replies.add(new CompletableFuture<>());
        // Whoever has a reply may give this link back: its request is not under way any more.
        List<CompletableFuture<Object>> told = replies.stream().map(reply -> reply.whenComplete((value, error) -> ended())).toList();
        if (opened.isDone()) {
            go(all, replies, millis, isDirect && !isShared);
            if (replies.stream().allMatch(CompletableFuture::isDone)) return told;
        } else {
            opened.whenComplete((connection, error) -> go(all, replies, millis, false));
        }
        watch(all, replies, millis);
        return told;
    }

    /** The same, where the time is for the answers alone. To be open it has that time too, and goes on for the next attempt. */
    List<CompletableFuture<Object>> sendOnceOpen(List<byte[][]> all, long millis) {
        if (opened.isDone()) return send(all, millis, false);
        List<CompletableFuture<Object>> replies = new ArrayList<>(all.size());
        for (int count = 0; count < all.size(); count += 1) replies.add(new CompletableFuture<>());
        alarm.until(millis, opened.handle((connection, error) -> true)).thenAccept(isDone -> {
            if (isDone != null) {
                List<CompletableFuture<Object>> sent = send(all, millis, false);
                for (int at = 0; at < all.size(); at += 1) Errors.pass(sent.get(at), replies.get(at));
                return;
            }
            // One that takes so long hangs, perhaps: then another one is opened.
            if (Times.tick() - begunAt >= Math.min(3 * millis, Times.ANSWER)) retire();
            TimeoutException error = new TimeoutException("no connection within " + millis + " ms");
            for (CompletableFuture<Object> reply : replies) {
                reply.completeExceptionally(new Unreachable(String.valueOf(error.getMessage()), error));
            }
        });
        return replies;
    }

    private void watch(List<byte[][]> all, List<CompletableFuture<Object>> replies, long millis) {
        Future<?> late = alarm.after(millis, () -> {
            TimeoutException error = new TimeoutException("no answer within " + millis + " ms");
            for (int at = 0; at < replies.size(); at += 1) {
                if (!replies.get(at).isDone()) fail(all.get(at), replies.get(at), error);
            }
        });
        // Each ends by itself; the last one ends the watch.
        AtomicInteger left = new AtomicInteger(replies.size());
        for (CompletableFuture<Object> reply : replies) {
            reply.whenComplete((value, error) -> {
                if (left.decrementAndGet() == 0) late.cancel(false);
            });
        }
    }

    private void go(List<byte[][]> all, List<CompletableFuture<Object>> replies, long millis, boolean isDirect) {
        // One that is late is never sent.
        if (replies.get(0).isDone()) return;
        List<CompletableFuture<Object>> sent;
        try {
            Connection connection = opened.join();
            sent = connection.send(all, millis, isDirect);
        } catch (Throwable failure) {
            Throwable error = Errors.plain(failure);
            for (int at = 0; at < all.size(); at += 1) fail(all.get(at), replies.get(at), error);
            return;
        }
        for (int at = 0; at < all.size(); at += 1) {
            byte[][] words = all.get(at);
            CompletableFuture<Object> reply = replies.get(at);
            sent.get(at).whenComplete((value, error) -> {
                if (error != null) {
                    fail(words, reply, Errors.plain(error));
                    return;
                }
                heardAt = Times.tick();
                reply.complete(value);
            });
        }
    }

    private void fail(byte[][] words, CompletableFuture<Object> reply, Throwable error) {
        if (error instanceof ServerError) heardAt = Times.tick();
        else retired = true;
        String text = new String(words[0], UTF_8) + ": " + error.getMessage();
        reply.completeExceptionally(error instanceof ServerError ? error : new Unreachable(text, error));
    }

    private void ended() {
        if (requests.decrementAndGet() == 0 && retired) close();
    }

    void retire() {
        retired = true;
        if (isIdle()) close();
    }

    void close() {
        retired = true;
        closed = true;
        // What waits for the connection fails. One that is there is closed.
        if (!opened.completeExceptionally(new IllegalStateException("closed")) && wasOpen()) opened.join().close();
    }
}
