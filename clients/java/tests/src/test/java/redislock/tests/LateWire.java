package redislock.tests;

import static java.nio.charset.StandardCharsets.ISO_8859_1;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import redislock.spi.Threads;

/** A wire to a server that is far away: what it says arrives late, or not at all. */
final class LateWire implements AutoCloseable {
    private final ServerSocket entry = new ServerSocket(0, 100, InetAddress.getLoopbackAddress());
    private final ScheduledThreadPoolExecutor later = new ScheduledThreadPoolExecutor(1, Threads.daemons("late"));
    private final List<Socket> sockets = new CopyOnWriteArrayList<>();
    private final int server;
    private volatile long millis;
    private volatile boolean isSilent;
    private volatile String lost;
    private volatile boolean isLostOnce;
    /** What is in the next request that stays in the wire, until it is let through. */
    private final AtomicReference<String> kept = new AtomicReference<>();

    private final CompletableFuture<Boolean> through = new CompletableFuture<>();
    private final Map<String, String> swapped = new ConcurrentHashMap<>();

    /** {@code millis}: so late. */
    LateWire(int server, long millis) throws IOException {
        this.server = server;
        this.millis = millis;
        Threads.daemons("entry").newThread(this::accept).start();
    }

    String url() {
        return "redis://127.0.0.1:" + entry.getLocalPort();
    }

    private void accept() {
        try {
            for (; ; ) {
                Socket near = entry.accept();
                Socket far = new Socket(InetAddress.getLoopbackAddress(), server);
                sockets.addAll(List.of(near, far));
                Threads.daemons("there").newThread(() -> pass(near, far, near)).start();
                Threads.daemons("back").newThread(() -> pass(far, near, near)).start();
            }
        } catch (IOException closed) {
            // The test is over.
        }
    }

    private void pass(Socket from, Socket to, Socket near) {
        byte[] bytes = new byte[65_536];
        try (InputStream in = from.getInputStream()) {
            OutputStream out = to.getOutputStream();
            for (int length = in.read(bytes); length >= 0; length = in.read(bytes)) {
                byte[] part = Arrays.copyOf(bytes, length);
                if (to == near) later.schedule(() -> write(out, part), millis, TimeUnit.MILLISECONDS);
                else ask(out, part);
            }
        } catch (IOException closed) {
            // So is the other one, then.
        } finally {
            close(to);
        }
    }

    private void ask(OutputStream out, byte[] part) throws IOException {
        String text = new String(part, ISO_8859_1);
        String word = kept.get();
        if (word != null && text.contains(word) && kept.compareAndSet(word, null)) through.join();
        for (Map.Entry<String, String> each : swapped.entrySet()) text = text.replace(each.getKey(), each.getValue());
        out.write(text.getBytes(ISO_8859_1));
    }

    private void write(OutputStream out, byte[] part) {
        try {
            String word = lost;
            boolean isLost = isSilent || word != null && new String(part, ISO_8859_1).contains(word);
            if (!isLost) out.write(part);
            else if (isLostOnce) lost = null;
        } catch (IOException closed) {
            // Nobody reads it any more.
        }
    }

    /** Loses what the server says from now on, or no longer. */
    void silent(boolean isSo) {
        isSilent = isSo;
    }

    /** Loses what the server says with this word in it. */
    void lose(String word) {
        lost = word;
    }

    /** The same, once. */
    void loseOnce(String word) {
        isLostOnce = true;
        lost = word;
    }

    /** True if nothing is to be lost any more. */
    boolean hasLost() {
        return lost == null;
    }

    /** From now on what the server says is so late. */
    void delay(long millis) {
        this.millis = millis;
    }

    /** Keeps the next request with this word in it, and what comes after it on its connection. */
    void keep(String word) {
        kept.set(word);
    }

    /** True if it has come. */
    boolean hasKept() {
        return kept.get() == null;
    }

    /** Lets it through, late. */
    void letThrough() {
        through.complete(true);
    }

    /** Writes the one instead of the other in requests: of the same length. */
    void swap(String from, String to) {
        swapped.put(from, to);
    }

    /** Ends all connections. */
    void cut() {
        for (Socket socket : sockets) {
            sockets.remove(socket);
            close(socket);
        }
    }

    private static void close(Socket socket) {
        try {
            socket.close();
        } catch (IOException closed) {
            // It was closed before.
        }
    }

    @Override
    public void close() throws IOException {
        entry.close();
        letThrough();
        cut();
        later.shutdownNow();
    }
}
