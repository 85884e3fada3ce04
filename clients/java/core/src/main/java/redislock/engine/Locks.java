package redislock.engine;

import static java.nio.charset.StandardCharsets.UTF_8;
import static java.util.Objects.requireNonNull;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.function.Consumer;
import redislock.Hold;
import redislock.HoldToken;
import redislock.Leadership;
import redislock.LockInfo;
import redislock.RedisLock;
import redislock.RedisLocks;
import redislock.Term;
import redislock.spi.Transport;

/** The locks of an application. */
final class Locks implements RedisLocks {
    private static final long ADOPT = 10_000;

    private final Engine engine;
    private final Transport transport;
    private final long lease;
    private final String prefix;
    private final ThreadHolds threads = new ThreadHolds();

    Locks(Engine engine, Transport transport, long lease, String prefix) {
        this.engine = engine;
        this.transport = transport;
        this.lease = lease;
        this.prefix = prefix;
    }

    private Terms terms(Terms.Kind kind, String key) {
        return new Terms(kind, List.of(requireNonNull(key, "key")), prefix, lease);
    }

    private Recipe recipe(Terms terms) {
        return new Recipe(engine, threads, terms, null);
    }

    @Override
    public RedisLock exclusive(String key) {
        return recipe(terms(Terms.Kind.WRITE, key));
    }

    @Override
    public RedisLock read(String key) {
        return recipe(terms(Terms.Kind.READ, key));
    }

    @Override
    public RedisLock write(String key) {
        return exclusive(key);
    }

    @Override
    public RedisLock semaphore(String key, long limit, long take) {
        return recipe(terms(Terms.Kind.WRITE, key).withShares(limit, take));
    }

    @Override
    public RedisLock all(Collection<String> keys) {
        return recipe(new Terms(Terms.Kind.WRITE, new ArrayList<>(requireNonNull(keys, "keys")), prefix, lease));
    }

    @Override
    public Lock asLock(String key) {
        return exclusive(key).asLock();
    }

    @Override
    public ReadWriteLock asReadWriteLock(String key) {
        Lock read = read(key).asLock();
        Lock write = exclusive(key).asLock();
        return new ReadWriteLock() {
            @Override
            public Lock readLock() {
                return read;
            }

            @Override
            public Lock writeLock() {
                return write;
            }
        };
    }

    @Override
    public Leadership lead(String key, Consumer<Term> body) {
        return new Leader(recipe(terms(Terms.Kind.WRITE, key)), requireNonNull(body, "body"), engine);
    }

    @Override
    public Optional<Hold> adopt(HoldToken token) {
        return Awaiting.uninterruptibly(adopted(token), "adopt");
    }

    @Override
    public CompletableFuture<Optional<Hold>> adoptAsync(HoldToken token) {
        return engine.callbacks.outside("locks", adopted(token), found -> found.ifPresent(Hold::releaseAsync));
    }

    private CompletableFuture<Optional<Hold>> adopted(HoldToken token) {
        Terms terms = terms(Terms.Kind.WRITE, requireNonNull(token, "token").key());
        return adopted(token, terms, Times.tick() + ADOPT);
    }

    private CompletableFuture<Optional<Hold>> adopted(HoldToken token, Terms terms, long end) {
        Route route = new Route(engine.wire, terms.wired(0));
        Owner owner = new Owner(token.owner());
        byte[][] words = terms.about(
                0,
                "LOCK.EXTEND",
                token.owner(),
                "PX",
                String.valueOf(terms.lease()),
                "FENCE",
                String.valueOf(token.fence()),
                "MINFENCE",
                String.valueOf(token.fence() + 1));
        long sent = engine.clock.now();
        return route.request(words, Times.ANSWER, false)
                .handle((reply, error) -> {
                    if (error != null) {
                        Throwable plain = Errors.plain(error);
                        if (!Errors.isAhead(plain) || Times.tick() > end) {
                            return CompletableFuture.<Optional<Hold>>failedFuture(plain);
                        }
                        return engine.alarm
                                .pause(Times.PAUSE_MIN)
                                .thenCompose(none -> adopted(token, terms, end));
                    }
                    if (!(reply instanceof Long fence)) return CompletableFuture.completedFuture(Optional.<Hold>empty());
                    Held hold = new Held(engine, route, owner, terms, new long[] {fence}, sent);
                    owner.enter(terms.keys());
                    engine.renewer.add(hold);
                    return CompletableFuture.completedFuture(Optional.<Hold>of(hold));
                })
                .thenCompose(next -> next);
    }

    @Override
    public Optional<LockInfo> info(String key) {
        return Awaiting.uninterruptibly(asked(key), "info");
    }

    @Override
    public CompletableFuture<Optional<LockInfo>> infoAsync(String key) {
        return engine.callbacks.outside("locks", asked(key));
    }

    private CompletableFuture<Optional<LockInfo>> asked(String key) {
        byte[] wired = (prefix + requireNonNull(key, "key")).getBytes(UTF_8);
        return new Route(engine.wire, wired)
                .ask(new byte[][] {"LOCK.INFO".getBytes(UTF_8), wired}, Times.ANSWER)
                .thenApply(reply -> reply instanceof List<?> fields ? Optional.of(infoOf(fields)) : Optional.empty());
    }

    private static LockInfo infoOf(List<?> reply) {
        Map<String, Object> fields = fields(reply);
        List<LockInfo.Holder> holders = new ArrayList<>();
        for (Object each : (List<?>) fields.getOrDefault("holders", List.of())) {
            Map<String, Object> holder = fields((List<?>) each);
            Duration left = Duration.ofMillis(number(holder, "ttl_ms"));
            Optional<String> note = Optional.ofNullable(holder.get("note")).map(Locks::text);
            holders.add(new LockInfo.Holder(text(holder.get("owner")), number(holder, "fence"), left, note));
        }
        List<LockInfo.Waiter> waiters = new ArrayList<>();
        for (Object each : (List<?>) fields.getOrDefault("waiters", List.of())) {
            Map<String, Object> waiter = fields((List<?>) each);
            waiters.add(new LockInfo.Waiter(text(waiter.get("owner")), Duration.ofMillis(number(waiter, "waited_ms"))));
        }
        return new LockInfo(
                text(fields.get("mode")),
                number(fields, "fence"),
                number(fields, "shares"),
                number(fields, "holding"),
                holders,
                number(fields, "waiting"),
                waiters);
    }

    private static Map<String, Object> fields(List<?> reply) {
        Map<String, Object> fields = new HashMap<>();
        for (int at = 0; at + 1 < reply.size(); at += 2) {
            Object value = reply.get(at + 1);
            if (value != null) fields.put(text(reply.get(at)), value);
        }
        return fields;
    }

    private static String text(@org.jspecify.annotations.Nullable Object value) {
        return value instanceof byte[] raw ? new String(raw, UTF_8) : String.valueOf(value);
    }

    private static long number(Map<String, Object> fields, String name) {
        return fields.get(name) instanceof Long number ? number : 0;
    }

    @Override
    public void close() {
        if (engine.isClosed) return;
        engine.isClosed = true;
        for (Wait wait : List.copyOf(engine.waits)) wait.close();
        for (Held hold : engine.renewer.all()) hold.lose(Hold.Loss.CLOSED);
        engine.settle();
        engine.notices.close();
        engine.wire.close();
        engine.alarm.end();
        transport.close();
        engine.callbacks.end();
    }
}
