package redislock.engine;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletableFuture;
import org.jspecify.annotations.Nullable;

/** The way to the server of a key, wherever in a cluster its slot goes. */
final class Route {
    static final int REDIRECTIONS_MAX = 5;

    final Wire wire;
    private final int slot;
    /** The node to which the server sent the next request, and that one alone. */
    private volatile @Nullable String asking;

    Route(Wire wire, byte[] key) {
        this.wire = wire;
        this.slot = slotOf(key);
    }

    /** The node to ask; null: any. */
    @Nullable String address() {
        String once = asking;
        return once != null ? once : wire.homes.get(slot);
    }

    /** Sends it over a shared connection and follows redirections, all within the time. */
    CompletableFuture<Object> request(byte[][] words, long millis, boolean isDirect) {
        return hop(words, Times.tick() + millis, millis, 0, isDirect, null);
    }

    /** The same, together with others. */
    CompletableFuture<Object> request(byte[][] words, long millis, Batch batch) {
        return hop(words, Times.tick() + millis, millis, 0, false, batch);
    }

    private CompletableFuture<Object> hop(
            byte[][] words, long end, long millis, int hops, boolean isDirect, @Nullable Batch batch) {
        CompletableFuture<Object> reply =
                batch != null ? batch.add(this, words, millis) : wire.exchange(this, words, millis, isDirect);
        CompletableFuture<Object> result = new CompletableFuture<>();
        reply.whenComplete((value, error) -> {
            if (error == null) {
                result.complete(value);
                return;
            }
            Throwable plain = Errors.plain(error);
            long left = end - Times.tick();
            if (Errors.isRedirection(plain) && hops < REDIRECTIONS_MAX && left > 0) {
                Errors.pass(hop(words, end, left, hops + 1, false, null), result);
            } else {
                result.completeExceptionally(plain);
            }
        });
        return result;
    }

    /** The same for what may be sent twice: over a connection that may be dead, and soon over a new one. */
    CompletableFuture<Object> ask(byte[][] words, long millis) {
        long end = Times.tick() + millis;
        CompletableFuture<Object> result = new CompletableFuture<>();
        request(words, millis / 2, false).whenComplete((value, error) -> {
            if (error == null) {
                result.complete(value);
                return;
            }
            long left = end - Times.tick();
            if (!(Errors.plain(error) instanceof Unreachable) || left <= 0) {
                result.completeExceptionally(Errors.plain(error));
                return;
            }
            Errors.pass(request(words, left, false), result);
        });
        return result;
    }

    /** Sends it once, over this link. A redirection is thrown: the next request follows it. */
    CompletableFuture<Object> send(Link link, byte[][] words, long millis, boolean isDirect) {
        CompletableFuture<Object> reply;
        if (asking != null) {
            asking = null;
            reply = link.send(java.util.List.of(new byte[][] {"ASKING".getBytes(StandardCharsets.UTF_8)}, words), millis, isDirect)
                    .get(1);
        } else {
            reply = link.send(words, millis, isDirect);
        }
        reply.whenComplete((value, error) -> {
            if (error != null) learn(Errors.plain(error), link);
        });
        return reply;
    }

    boolean isAsking() {
        return asking != null;
    }

    void learn(Throwable error, Link link) {
        String code = Errors.code(error);
        if (Errors.isRedirection(error)) {
            String next = target(error, link.address);
            if (code.equals("ASK")) asking = next;
            else wire.homes.put(slot, next);
        } else if (error instanceof Unreachable) {
            // Nobody answers there: any other node knows where the slot is.
            wire.homes.remove(slot);
            wire.forget(link.address);
        } else if (code.equals("READONLY") || code.equals("MASTERDOWN") || code.equals("UNBLOCKED")) {
            // Another server is the primary now: a new connection finds it where an address or a sentinel leads to it.
            link.retire();
            wire.forget(link.address);
        }
    }

    /** The node that a redirection names, as the node at this address said. */
    static String target(Throwable error, @Nullable String address) {
        String from = address == null ? "" : address;
        String[] parts = String.valueOf(error.getMessage()).split(" ");
        String target = parts.length > 2 ? parts[2] : from;
        // No host: the node that answers.
        return target.startsWith(":") ? from.substring(0, Math.max(0, from.lastIndexOf(':'))) + target : target;
    }

    /** The least number that is a tag of this slot. */
    static String tagOf(int slot) {
        for (int tag = 0; ; tag += 1) {
            String text = String.valueOf(tag);
            if (slotOf(text.getBytes(StandardCharsets.UTF_8)) == slot) return text;
        }
    }

    int slot() {
        return slot;
    }

    /** The slot of a key in a cluster: CRC16 of its tag, or of the whole key. */
    static int slotOf(byte[] key) {
        int from = 0;
        int to = key.length;
        for (int at = 0; at < key.length; at += 1) {
            if (key[at] != '{') continue;
            for (int end = at + 1; end < key.length; end += 1) {
                if (key[end] != '}') continue;
                if (end > at + 1) {
                    from = at + 1;
                    to = end;
                }
                break;
            }
            break;
        }
        int crc = 0;
        for (int at = from; at < to; at += 1) {
            crc ^= (key[at] & 0xff) << 8;
            for (int bit = 0; bit < 8; bit += 1) crc = (crc & 0x8000) != 0 ? crc << 1 ^ 0x1021 : crc << 1;
        }
        return crc & 0x3fff;
    }
}
