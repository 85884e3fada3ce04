package redislock.engine;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.ReentrantLock;
import org.jspecify.annotations.Nullable;

/** The name under which the server knows a holder, and what is known of its keys: an outermost lock, and those within it. */
final class Owner {
    private static final String HOME = home();
    private static final SecureRandom RANDOM = new SecureRandom();

    final String name;
    private final ReentrantLock lock = new ReentrantLock();
    /** Keys that are held or asked for now. */
    private final List<String> busy = new ArrayList<>(1);
    /** Keys that are given back now, in the background: until then they cannot be asked for. */
    private @Nullable Map<String, CompletableFuture<Boolean>> leaving;
    /** Keys that the server may still have under this owner. They are released before they are asked for again. */
    private @Nullable Set<String> doubtful;

    Owner() {
        byte[] random = new byte[16];
        RANDOM.nextBytes(random);
        name = HOME + HexFormat.of().formatHex(random);
    }

    /** Of another process. */
    Owner(String name) {
        this.name = name;
    }

    private static String home() {
        String host;
        try {
            host = InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException none) {
            host = "host";
        }
        return host.substring(0, Math.min(64, host.length())) + ":" + ProcessHandle.current().pid() + ":";
    }

    void enter(Collection<String> keys) {
        lock.lock();
        try {
            for (String key : keys) {
                if (busy.contains(key)) throw new IllegalStateException("key \"" + key + "\" twice under one owner");
            }
            busy.addAll(keys);
        } finally {
            lock.unlock();
        }
    }

    /** They are not held any more: for certain, or the server may have them still. */
    void leave(Collection<String> keys, boolean isCertain) {
        lock.lock();
        try {
            busy.removeAll(keys);
            if (isCertain) {
                if (doubtful != null) doubtful.removeAll(keys);
            } else {
                if (doubtful == null) doubtful = new HashSet<>();
                doubtful.addAll(keys);
            }
        } finally {
            lock.unlock();
        }
    }

    /** They are given back, with this outcome. */
    void leaveWith(Collection<String> keys, CompletableFuture<Boolean> outcome) {
        lock.lock();
        try {
            busy.removeAll(keys);
            if (leaving == null) leaving = new HashMap<>();
            for (String key : keys) leaving.put(key, outcome);
        } finally {
            lock.unlock();
        }
        outcome.whenComplete((isCertain, error) -> {
            lock.lock();
            try {
                for (String key : keys) leaving.remove(key, outcome);
                if (error == null && isCertain) return;
                if (doubtful == null) doubtful = new HashSet<>();
                doubtful.addAll(keys);
            } finally {
                lock.unlock();
            }
        });
    }

    /** What is given back now of these keys. */
    List<CompletableFuture<Boolean>> leaving(Collection<String> keys) {
        lock.lock();
        try {
            List<CompletableFuture<Boolean>> these = new ArrayList<>();
            if (leaving == null) return these;
            for (String key : keys) {
                CompletableFuture<Boolean> outcome = leaving.get(key);
                if (outcome != null) these.add(outcome);
            }
            return these;
        } finally {
            lock.unlock();
        }
    }

    boolean isDoubtful(Collection<String> keys) {
        lock.lock();
        try {
            return doubtful != null && keys.stream().anyMatch(doubtful::contains);
        } finally {
            lock.unlock();
        }
    }

    void isClean(Collection<String> keys) {
        lock.lock();
        try {
            if (doubtful != null) doubtful.removeAll(keys);
        } finally {
            lock.unlock();
        }
    }
}
