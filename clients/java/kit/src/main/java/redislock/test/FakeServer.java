package redislock.test;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Consumer;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;
import redislock.RedisLocks;
import redislock.spi.Clock;
import redislock.spi.Connection;
import redislock.spi.ServerError;
import redislock.spi.Subscription;
import redislock.spi.Threads;
import redislock.spi.Transport;

/**
 * A server in memory, for tests of programs that use locks. The locks over it are the real ones: they wait, renew, and lose.
 * Its locks have queues, leases, places, offers and rising fences as the module's. Several {@link RedisLocks} may share it,
 * as processes do. Its clock goes by itself, and can be set ahead.
 */
public final class FakeServer implements AutoCloseable {
    private final ReentrantLock lock = new ReentrantLock();
    private final FakeClock clock = new FakeClock();
    private final FakeLocks locks;
    private final ScheduledThreadPoolExecutor timer = new ScheduledThreadPoolExecutor(1, Threads.daemons("redislock-fake"));
    private final Set<FakeConnection> connections = ConcurrentHashMap.newKeySet();
    private final Set<Listening> listening = ConcurrentHashMap.newKeySet();
    private @Nullable Future<?> alarm;
    private volatile boolean isDown;

    /** Makes a server that has no lock. */
    public FakeServer() {
        locks = new FakeLocks(clock::now, this::publish);
    }

    /** A subscription. */
    private record Listening(String channel, Consumer<byte[]> told, Runnable ended) {}

    /** The system's clock, ahead by what was said. */
    private static final class FakeClock implements Clock {
        private final List<Runnable> looks = new CopyOnWriteArrayList<>();
        private volatile long ahead;

        @Override
        public long now() {
            return System.nanoTime() / 1_000_000 + ahead;
        }

        @Override
        public void onJump(Runnable look) {
            looks.add(look);
        }
    }

    /**
     * Returns the way to this server, for {@link RedisLocks#builder}.
     *
     * @return another one each time
     */
    public Transport transport() {
        return new Way();
    }

    /**
     * Takes a lock away from all its holders, as an operator does with LOCK.BREAK. They learn of it at the next renewal: a
     * third of the lease, which {@link #advance} can let pass.
     *
     * @param key the key on the server, with its prefix
     */
    public void lose(String key) {
        ask("DEL", Objects.requireNonNull(key, "key"));
    }

    /**
     * Holds a lock for somebody else, until {@link #lose}.
     *
     * @param key the key on the server, with its prefix
     * @return the fence
     * @throws IllegalStateException if it is held
     */
    public long take(String key) {
        String owner = "another " + UUID.randomUUID();
        if (ask("LOCK.ACQUIRE", Objects.requireNonNull(key, "key"), owner, "PX", "86400000") instanceof Long fence) return fence;
        throw new IllegalStateException("\"" + key + "\" is held");
    }

    /** Lets all leases end, as for a process that slept for so long. Holders learn of it at once. */
    public void expire() {
        long ends = locked(locks::latestEnd);
        advance(Duration.ofMillis(Math.max(0, ends - clock.now()) + 1));
    }

    /**
     * Sets the clock ahead, of the server and of all locks over it. What is due then is renewed, or is over.
     *
     * @param time by how much
     */
    public void advance(Duration time) {
        clock.ahead += time.toMillis();
        clock.looks.forEach(Runnable::run);
        locked(() -> null);
    }

    /**
     * Ends all connections and refuses new ones, or lets them come again.
     *
     * @param down true: nobody reaches the server
     */
    public void down(boolean down) {
        isDown = down;
        if (!down) return;
        List.copyOf(connections).forEach(FakeConnection::close);
        List.copyOf(listening).forEach(each -> {
            if (listening.remove(each)) each.ended.run();
        });
    }

    /**
     * Sets what {@link redislock.Hold#guard} answers.
     *
     * @param reply of a command's words; without it DEL, EXISTS, GET and SET run, and nothing else
     */
    public void guarded(Function<List<String>, @Nullable Object> reply) {
        locked(() -> {
            locks.guarded = reply;
            return null;
        });
    }

    /**
     * Answers a command as to another client: {@code LOCK.*}, DEL, EXISTS, GET, SET, FLUSHALL, INFO.
     *
     * @param words the command
     * @return the reply: {@code byte[]}, {@code Long}, {@code List}, or null. One that would wait is answered null
     * @throws ServerError if it is refused
     */
    public @Nullable Object ask(String... words) {
        List<byte[]> raw = new ArrayList<>();
        for (String word : words) raw.add(word.getBytes(UTF_8));
        CompletableFuture<@Nullable Object> reply = locked(() -> locks.serve(raw, null));
        try {
            return reply.getNow(null);
        } catch (java.util.concurrent.CompletionException refused) {
            throw (ServerError) refused.getCause();
        }
    }

    /**
     * Returns how often a command was called.
     *
     * @param command as {@code LOCK.EXTEND}
     * @return since the start
     */
    public long calls(String command) {
        return locked(() -> locks.calls.getOrDefault(command, 0L));
    }

    /**
     * Returns how many connections there are, with those of subscriptions.
     *
     * @return of all {@link RedisLocks}
     */
    public int connections() {
        return connections.size() + listening.size();
    }

    @Override
    public void close() {
        down(true);
        timer.shutdownNow();
    }

    private void publish(String channel, String owner) {
        for (Listening each : listening) {
            if (each.channel.equals(channel)) locks.answers.add(() -> each.told.accept(owner.getBytes(UTF_8)));
        }
    }

    private interface Work<T> {
        T run();
    }

    /** Works on the locks, and answers only when that is over: an answer may lead to the next request. */
    private <T> T locked(Work<T> work) {
        T result;
        lock.lock();
        try {
            locks.look();
            result = work.run();
            locks.look();
            arm();
        } finally {
            lock.unlock();
        }
        for (Runnable answer = locks.answers.poll(); answer != null; answer = locks.answers.poll()) answer.run();
        return result;
    }

    private void arm() {
        if (alarm != null) alarm.cancel(false);
        long next = locks.nextEnd();
        if (next == Long.MAX_VALUE || timer.isShutdown()) return;
        alarm = timer.schedule(() -> locked(() -> null), Math.max(1, next - clock.now()), TimeUnit.MILLISECONDS);
    }

    private final class Way implements Transport {
        @Override
        public CompletableFuture<Connection> connect(@Nullable String address) {
            if (isDown) return CompletableFuture.failedFuture(new IllegalStateException("the fake server is down"));
            FakeConnection connection = new FakeConnection();
            connections.add(connection);
            return CompletableFuture.completedFuture(connection);
        }

        @Override
        public boolean isMultiplexed() {
            return true;
        }

        @Override
        public CompletableFuture<Subscription> subscribe(
                @Nullable String address, String channel, boolean isSharded, Consumer<byte[]> told, Runnable ended) {
            if (isDown) return CompletableFuture.failedFuture(new IllegalStateException("the fake server is down"));
            Listening mine = new Listening(channel, told, ended);
            listening.add(mine);
            return CompletableFuture.completedFuture(() -> listening.remove(mine));
        }

        @Override
        public Clock clock() {
            return clock;
        }

        @Override
        public void close() {
            // The engine closes its connections, and nothing is shared between them.
        }
    }

    private final class FakeConnection implements Connection {
        /** What waits on it. */
        private final Set<CompletableFuture<@Nullable Object>> waiting = ConcurrentHashMap.newKeySet();

        private volatile boolean isClosed;

        @Override
        public List<CompletableFuture<Object>> send(List<byte[][]> requests, long millis, boolean isDirect) {
            List<CompletableFuture<Object>> replies = new ArrayList<>(requests.size());
            for (byte[][] words : requests) {
                if (isClosed) {
                    replies.add(CompletableFuture.failedFuture(new IllegalStateException("the connection is closed")));
                    continue;
                }
                CompletableFuture<@Nullable Object> reply = locked(() -> locks.serve(List.of(words), this));
                waiting.add(reply);
                reply.whenComplete((value, error) -> waiting.remove(reply));
                replies.add(reply);
            }
            return replies;
        }

        @Override
        public boolean isOpen() {
            return !isClosed;
        }

        @Override
        public void close() {
            isClosed = true;
            connections.remove(this);
            locked(() -> {
                locks.closed(this);
                return null;
            });
            waiting.forEach(reply -> reply.completeExceptionally(new IllegalStateException("the connection is closed")));
        }
    }
}
