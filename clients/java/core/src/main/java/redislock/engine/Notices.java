package redislock.engine;

import java.security.SecureRandom;
import java.util.HexFormat;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import org.jspecify.annotations.Nullable;
import redislock.spi.Transport;

/** How servers tell waits to ask again: a {@link Notice} for each node. */
final class Notices {
    private static final SecureRandom RANDOM = new SecureRandom();

    final Engine engine;
    final Transport transport;
    private final String prefix;
    private final Map<String, Notice> nodes = new ConcurrentHashMap<>();
    private final AtomicBoolean isWatching = new AtomicBoolean();

    Notices(Engine engine, Transport transport, String prefix) {
        this.engine = engine;
        this.transport = transport;
        this.prefix = prefix;
    }

    Notice at(@Nullable String address) {
        return nodes.computeIfAbsent(address == null ? "" : address, name -> new Notice(this, address));
    }

    /** A channel that no other process has, in a cluster of this slot. */
    String channel(boolean isCluster, int slot) {
        byte[] random = new byte[16];
        RANDOM.nextBytes(random);
        String name = "lock:notify:" + prefix + HexFormat.of().formatHex(random);
        return isCluster ? name + "{" + Route.tagOf(slot) + "}" : name;
    }

    /** Looks after all nodes with a subscription, again and again while there is one. */
    void watch() {
        if (engine.isClosed || isWatching.getAndSet(true)) return;
        engine.alarm.after(Times.WATCH, () -> {
            isWatching.set(false);
            boolean isNeeded = false;
            for (Notice notice : nodes.values()) isNeeded |= notice.look();
            if (isNeeded) watch();
        });
    }

    void close() {
        nodes.values().forEach(Notice::close);
    }
}
