import com.sun.management.OperatingSystemMXBean;
import io.lettuce.core.RedisURI;
import java.lang.management.ManagementFactory;
import java.net.URI;
import java.time.Duration;
import java.util.List;
import java.util.Scanner;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.Lock;
import java.util.stream.IntStream;
import org.json.JSONObject;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.integration.redis.util.RedisLockRegistry;
import redislock.RedisLocks;
import redislock.jedis.JedisTransport;
import redislock.lettuce.LettuceTransport;
import redislock.spi.Transport;

/** Takes locks with a library for Java as fast as it can, as README.md of the folder above says. */
public class Driver {
    static final Duration LEASE = Duration.ofSeconds(10);
    /** What the virtual machine has for its translation, from its first lock on, before anything counts. */
    private static final Duration WARM = Duration.ofSeconds(8);
    /** A few owners are threads. More of them wait by futures. */
    private static final int THREADS = 100;

    /** Takes the lock of an owner, and returns what gives it back. */
    interface Taker {
        AutoCloseable take(int owner) throws Exception;
    }

    final JSONObject plan;
    final List<String> keys;
    private final long holdMs;
    private final CountDownLatch had;
    private final AtomicIntegerArray locks;
    private final AtomicInteger failed = new AtomicInteger();
    private final AtomicLong longest = new AtomicLong();

    Driver(JSONObject plan) {
        this.plan = plan;
        keys = plan.getJSONArray("keys").toList().stream().map(String::valueOf).toList();
        holdMs = plan.getLong("hold_ms");
        had = new CountDownLatch(keys.size());
        locks = new AtomicIntegerArray(keys.size());
    }

    /**
     * Runs until it is told to end.
     *
     * @param args the last one is the plan
     * @throws Exception if it cannot begin
     */
    public static void main(String[] args) throws Exception {
        new Driver(new JSONObject(args[args.length - 1])).run();
        Runtime.getRuntime().halt(0);
    }

    final void run() throws Exception {
        long warm = System.nanoTime() + WARM.toNanos();
        start();
        had.await();
        TimeUnit.NANOSECONDS.sleep(warm - System.nanoTime());
        Scanner lines = new Scanner(System.in);
        System.out.println(new JSONObject().put("ready", true));
        lines.nextLine();
        int[] before = counts();
        int failedBefore = failed.get();
        longest.set(0);
        OperatingSystemMXBean process = ManagementFactory.getPlatformMXBean(OperatingSystemMXBean.class);
        long cpu = process.getProcessCpuTime();
        long begin = System.nanoTime();
        TimeUnit.NANOSECONDS.sleep(Math.round(plan.getDouble("seconds") * 1e9));
        int[] after = counts();
        System.out.println(new JSONObject()
                .put("locks", IntStream.range(0, after.length).mapToObj(owner -> after[owner] - before[owner]).toList())
                .put("failed", failed.get() - failedBefore)
                .put("longest", longest.get() / 1e9)
                .put("seconds", (System.nanoTime() - begin) / 1e9)
                .put("cpu", (process.getProcessCpuTime() - cpu) / 1e9));
        lines.nextLine();
    }

    private int[] counts() {
        return IntStream.range(0, keys.size()).map(locks::get).toArray();
    }

    /** Lets the owners begin. */
    void start() throws Exception {
        String kind = plan.getString("kind").replace(" by NOTIFY", "");
        URI url = URI.create(plan.getString("url"));
        switch (kind) {
            case "redislock, Lettuce" -> own(LettuceTransport.of(RedisURI.create(url)));
            case "redislock, Jedis" -> own(JedisTransport.of(url));
            case "Redisson" -> {
                Config config = new Config().setLockWatchdogTimeout(LEASE.toMillis());
                config.useSingleServer().setAddress(url.toString());
                RedissonClient client = Redisson.create(config);
                threads(owner -> held(client.getLock(keys.get(owner))));
            }
            case "Spring's RedisLockRegistry" -> {
                LettuceConnectionFactory client = new LettuceConnectionFactory(url.getHost(), url.getPort());
                client.afterPropertiesSet();
                client.start();
                // Of the threads of one registry one alone asks the server. These stand for as many processes.
                List<? extends Lock> of = keys.stream().map(key -> new RedisLockRegistry(client, "r", LEASE.toMillis()).obtain(key)).toList();
                threads(owner -> held(of.get(owner)));
            }
            default -> throw new IllegalArgumentException(kind);
        }
    }

    private static AutoCloseable held(Lock lock) {
        lock.lock();
        return lock::unlock;
    }

    private void own(Transport transport) {
        RedisLocks own = RedisLocks.builder(transport)
                .lease(LEASE)
                .maxBlockingConnections(plan.getInt("blocking"))
                .build();
        if (keys.size() > THREADS) IntStream.range(0, keys.size()).forEach(owner -> repeat(own, owner));
        else threads(owner -> own.exclusive(keys.get(owner)).acquire());
    }

    final void threads(Taker taker) {
        for (int owner = 0; owner < keys.size(); owner++) {
            int one = owner;
            Thread thread = new Thread(() -> repeat(taker, one));
            thread.setDaemon(true);
            thread.start();
        }
    }

    private void repeat(Taker taker, int owner) {
        while (true) {
            long begin = System.nanoTime();
            try (AutoCloseable held = taker.take(owner)) {
                waited(begin);
                if (holdMs > 0) Thread.sleep(holdMs);
            } catch (Exception error) {
                failed.incrementAndGet();
                continue;
            }
            count(owner);
        }
    }

    /** The same without a thread. */
    private void repeat(RedisLocks own, int owner) {
        long begin = System.nanoTime();
        own.exclusive(keys.get(owner))
                .acquireAsync()
                .thenComposeAsync(hold -> {
                    waited(begin);
                    return hold.releaseAsync();
                }, CompletableFuture.delayedExecutor(holdMs, TimeUnit.MILLISECONDS))
                .whenComplete((done, error) -> {
                    if (error == null) count(owner);
                    else failed.incrementAndGet();
                    repeat(own, owner);
                });
    }

    private void waited(long begin) {
        longest.accumulateAndGet(System.nanoTime() - begin, Math::max);
    }

    private void count(int owner) {
        if (locks.getAndIncrement(owner) == 0) had.countDown();
    }
}
