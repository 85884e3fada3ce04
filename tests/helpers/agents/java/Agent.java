import static java.nio.charset.StandardCharsets.UTF_8;

import io.lettuce.core.RedisURI;
import java.net.URI;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Scanner;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.stream.Stream;
import org.json.JSONArray;
import org.json.JSONObject;
import redis.clients.jedis.Jedis;
import redislock.DeadlockException;
import redislock.Hold;
import redislock.LockListener;
import redislock.LockLostException;
import redislock.LockUnavailableException;
import redislock.RedisLock;
import redislock.RedisLocks;
import redislock.jedis.JedisTransport;
import redislock.lettuce.LettuceTransport;
import redislock.spi.Connection;
import redislock.spi.ServerError;
import redislock.spi.Transport;
import redislock.test.FakeServer;

/**
 * The scenarios' agent for Java: uses clients/java as an application would, and does what it is told on stdin.
 *
 * <p>{@code Agent lettuce|jedis URL [--cluster] [blocking=N]}, N: how many waits may block. {@code fake:} is the URL of the
 * server in memory. One JSON object a line, in and out. Each request runs by itself, and its answer carries its id. It
 * never cleans up: at the end of stdin the process ends as one that dies.
 */
public final class Agent {
    /** What was acquired last. */
    private record Taken(Hold hold, List<Long> fences) {}

    private final String url;
    private final RedisLocks locks;
    /** In place of the one at the URL, where that is {@code fake:}. */
    private final FakeServer server;
    /** That of the server's other clients. */
    private final Connection others;
    private final Map<String, JSONObject> asked = new ConcurrentHashMap<>();
    private final Map<String, Taken> taken = new ConcurrentHashMap<>();
    private final Map<Integer, CompletableFuture<?>> futures = new ConcurrentHashMap<>();
    private final Map<Integer, Thread> threads = new ConcurrentHashMap<>();
    private final List<String> told = new CopyOnWriteArrayList<>();

    private Agent(String library, String url, List<String> more) {
        this.url = url;
        server = url.equals("fake:") ? new FakeServer() : null;
        others = server == null ? null : server.transport().connect(null).join();
        Transport transport;
        if (server != null) transport = server.transport();
        else if (library.equals("jedis")) transport = JedisTransport.of(URI.create(url));
        else transport = LettuceTransport.of(RedisURI.create(url));
        // The sentence names what cannot be had.
        RedisLocks.Builder builder = RedisLocks.builder(transport).listener(new LockListener() {
            @Override
            public void onTrouble(String what, Throwable error) {
                told.add((what.contains("NOTIFY") ? "notify: " : "") + what + ": " + error.getMessage());
            }
        });
        for (String word : more) {
            if (word.startsWith("blocking=")) builder.maxBlockingConnections(Integer.parseInt(word.substring("blocking=".length())));
        }
        locks = builder.build();
    }

    /**
     * Runs until stdin ends.
     *
     * @param args the client library, the URL of the server, and more
     */
    public static void main(String[] args) {
        Agent agent = new Agent(args[0], args[1], List.of(args).subList(2, args.length));
        write(new JSONObject().put("ready", args[0]));
        Scanner lines = new Scanner(System.in, UTF_8);
        while (lines.hasNextLine()) {
            JSONObject request = new JSONObject(lines.nextLine());
            Thread thread = new Thread(() -> agent.answer(request));
            thread.setDaemon(true);
            agent.threads.put(request.getInt("id"), thread);
            thread.start();
        }
        Runtime.getRuntime().halt(0);
    }

    private static synchronized void write(JSONObject answer) {
        System.out.println(answer);
        System.out.flush();
    }

    private void answer(JSONObject request) {
        int id = request.getInt("id");
        JSONObject answer;
        try {
            answer = serve(request);
        } catch (Throwable error) {
            Throwable plain = error instanceof ExecutionException || error instanceof CompletionException ? error.getCause() : error;
            answer = new JSONObject().put("error", kindOf(plain)).put("message", String.valueOf(plain.getMessage()));
        }
        threads.remove(id);
        futures.remove(id);
        write(answer.put("id", id));
    }

    private static String kindOf(Throwable error) {
        if (error instanceof InterruptedException || error instanceof CancellationException) return "cancelled";
        if (error instanceof DeadlockException) return "deadlock";
        if (error instanceof LockLostException) return "lost";
        if (error instanceof IllegalArgumentException || error instanceof IllegalStateException) return "refused";
        return error instanceof LockUnavailableException away && away.code().isPresent() ? "server" : "connection";
    }

    private static Duration seconds(double seconds) {
        return Duration.ofMillis(Math.round(seconds * 1_000));
    }

    private RedisLock lockOf(JSONObject asked) {
        List<String> keys = asked.getJSONArray("keys").toList().stream().map(String::valueOf).toList();
        RedisLock lock;
        if (!asked.isNull("limit")) lock = locks.semaphore(keys.get(0), asked.getLong("limit"), asked.optLong("take", 1));
        else if (keys.size() != 1) lock = locks.all(keys);
        else if (asked.optBoolean("shared")) lock = locks.read(keys.get(0));
        else lock = locks.exclusive(keys.get(0));
        if (!asked.isNull("lease")) lock = lock.lease(seconds(asked.getDouble("lease")));
        if (!asked.isNull("note")) lock = lock.note(asked.getString("note"));
        if (!asked.isNull("within")) lock = lock.within(taken.get(asked.getString("within")).hold);
        return lock;
    }

    private JSONObject acquire(int id, String name) throws Exception {
        JSONObject options = asked.get(name);
        RedisLock lock = lockOf(options);
        Optional<Hold> hold;
        boolean isForEver = options.isNull("wait");
        Duration wait = isForEver ? Duration.ZERO : seconds(options.getDouble("wait"));
        // In turns by a thread that waits, and by a future.
        if (id % 2 == 0) {
            hold = isForEver ? Optional.of(lock.acquire()) : lock.tryAcquire(wait);
        } else if (isForEver) {
            CompletableFuture<Hold> future = lock.acquireAsync();
            hold = Optional.of(of(id, future));
        } else {
            CompletableFuture<Optional<Hold>> future = lock.tryAcquireAsync(wait);
            hold = of(id, future);
        }
        if (hold.isEmpty()) return new JSONObject().put("fences", JSONObject.NULL);
        Taken now = new Taken(hold.get(), fences(options, hold.get()));
        taken.put(name, now);
        return new JSONObject().put("fences", new JSONArray(now.fences));
    }

    /** What the future gives. An interrupt that came before it was known cancels it. */
    private <T> T of(int id, CompletableFuture<T> future) throws Exception {
        futures.put(id, future);
        try {
            return future.get();
        } catch (InterruptedException interrupted) {
            if (future.cancel(true)) throw interrupted;
            // It was granted in this moment.
            return future.get();
        }
    }

    /** The hold has the first one; the server has all. */
    private List<Long> fences(JSONObject options, Hold hold) {
        JSONArray keys = options.getJSONArray("keys");
        if (keys.length() == 1) return List.of(hold.fence());
        return keys.toList().stream()
                .map(key -> locks.info(String.valueOf(key)).orElseThrow().fence())
                .toList();
    }

    private JSONObject serve(JSONObject request) throws Exception {
        int id = request.getInt("id");
        String name = request.optString("lock");
        JSONObject done = new JSONObject();
        switch (request.getString("do")) {
            case "open" -> {
                asked.put(name, request);
                if (request.isNull("within")) lockOf(request);
            }
            case "acquire" -> done = acquire(id, name);
            case "cancel" -> cancel(request.getInt("of"));
            case "release" -> {
                Hold hold = taken.get(name).hold;
                if (id % 2 == 0) hold.close();
                else hold.releaseAsync().get();
                done.put("released", true);
            }
            case "check" -> done.put("held", taken.get(name).hold.check());
            case "guard" -> {
                List<Object> words = request.getJSONArray("command").toList();
                Object reply = taken.get(name).hold.guard(
                        String.valueOf(words.get(0)), words.subList(1, words.size()).toArray());
                done.put("reply", reply instanceof byte[] raw ? new String(raw, UTF_8) : reply);
            }
            case "lost" -> {
                Hold hold = taken.get(name).hold;
                CompletableFuture<Hold.Loss> lost = hold.lost();
                done.put("lost", !hold.isValid() && !lost.isCancelled());
            }
            case "await-lost" -> {
                // A future is completed once and for all, so that it cannot be a second time.
                done.put("signals", taken.get(name).hold.lost().get() == null ? 0 : 1);
            }
            case "owner" -> done.put("owner", taken.get(name).hold.owner());
            case "troubles" -> done.put("troubles", new JSONArray(told));
            case "tasks" -> done.put("tasks", tasks());
            case "server" -> {
                byte[][] words = request.getJSONArray("command").toList().stream()
                        .map(word -> String.valueOf(word).getBytes(UTF_8))
                        .toArray(byte[][]::new);
                try {
                    done.put("reply", json(others.send(List.<byte[][]>of(words), 0, true).get(0).get()));
                } catch (ExecutionException error) {
                    if (!(error.getCause() instanceof ServerError)) throw error;
                    done.put("reply", new JSONObject().put("error", error.getCause().getMessage()));
                }
            }
            case "ping" -> {
                if (server != null) break;
                try (Jedis own = new Jedis(URI.create(url))) {
                    own.ping();
                }
            }
            default -> throw new IllegalArgumentException(request.toString());
        }
        return done;
    }

    /** A reply of the server in memory, as JSON has it. */
    private static Object json(Object reply) {
        if (reply == null) return JSONObject.NULL;
        if (reply instanceof byte[] raw) return new String(raw, UTF_8);
        return reply instanceof List<?> items ? new JSONArray(items.stream().map(Agent::json).toList()) : reply;
    }

    /** How many threads there are, but for those of Lettuce: its pool has as many as processors, and starts them late. */
    private static long tasks() {
        Thread[] all = new Thread[2 * Thread.activeCount()];
        int count = Thread.enumerate(all);
        return Stream.of(all).limit(count).filter(thread -> !thread.getName().startsWith("lettuce-")).count();
    }

    private void cancel(int of) {
        CompletableFuture<?> future = futures.get(of);
        Thread thread = threads.get(of);
        if (future != null) future.cancel(true);
        else if (thread != null) thread.interrupt();
    }
}
