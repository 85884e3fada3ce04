package redislock.tests;

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

/** A wire to a server that is far away: what it says arrives late. */
final class LateWire implements AutoCloseable {
    private final ServerSocket entry = new ServerSocket(0, 100, InetAddress.getLoopbackAddress());
    private final ScheduledThreadPoolExecutor later = new ScheduledThreadPoolExecutor(1, Threads.daemons("late"));
    private final List<Socket> sockets = new CopyOnWriteArrayList<>();
    private final int server;
    private final long millis;

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
                Threads.daemons("there").newThread(() -> pass(near, far, 0)).start();
                Threads.daemons("back").newThread(() -> pass(far, near, millis)).start();
            }
        } catch (IOException closed) {
            // The test is over.
        }
    }

    private void pass(Socket from, Socket to, long delay) {
        byte[] bytes = new byte[65_536];
        try (InputStream in = from.getInputStream()) {
            OutputStream out = to.getOutputStream();
            for (int length = in.read(bytes); length >= 0; length = in.read(bytes)) {
                byte[] part = Arrays.copyOf(bytes, length);
                if (delay == 0) out.write(part);
                else later.schedule(() -> write(out, part), delay, TimeUnit.MILLISECONDS);
            }
        } catch (IOException closed) {
            // So is the other one, then.
        } finally {
            close(to);
        }
    }

    private static void write(OutputStream out, byte[] part) {
        try {
            out.write(part);
        } catch (IOException closed) {
            // Nobody reads it any more.
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
        sockets.forEach(LateWire::close);
        later.shutdownNow();
    }
}
