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
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import redislock.spi.Threads;

/** A wire to a server that is far away: what it says arrives late, or not at all. */
final class LateWire implements AutoCloseable {
    private final ServerSocket entry = new ServerSocket(0, 100, InetAddress.getLoopbackAddress());
    private final ScheduledThreadPoolExecutor later = new ScheduledThreadPoolExecutor(1, Threads.daemons("late"));
    private final List<Socket> sockets = new CopyOnWriteArrayList<>();
    private final int server;
    private final long millis;
    private volatile boolean isSilent;
    private volatile String lost;

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
                else out.write(part);
            }
        } catch (IOException closed) {
            // So is the other one, then.
        } finally {
            close(to);
        }
    }

    private void write(OutputStream out, byte[] part) {
        try {
            String word = lost;
            boolean isLost = isSilent || word != null && new String(part, ISO_8859_1).contains(word);
            if (!isLost) out.write(part);
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
        cut();
        later.shutdownNow();
    }
}
