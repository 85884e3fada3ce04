package redislock.engine;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;

/** Requests that go out together: one write for each node. */
final class Batch {
    private record Entry(Route route, byte[][] words, long millis, CompletableFuture<Object> reply) {}

    private final Wire wire;
    private final List<Entry> entries = new ArrayList<>();

    Batch(Wire wire) {
        this.wire = wire;
    }

    CompletableFuture<Object> add(Route route, byte[][] words, long millis) {
        CompletableFuture<Object> reply = new CompletableFuture<>();
        entries.add(new Entry(route, words, millis, reply));
        return reply;
    }

    void flush() {
        while (!entries.isEmpty()) {
            String address = entries.get(0).route.address();
            List<Entry> there = new ArrayList<>();
            entries.removeIf(entry -> java.util.Objects.equals(entry.route.address(), address) && there.add(entry));
            long millis = there.stream().mapToLong(Entry::millis).min().orElse(Times.ANSWER);
            List<byte[][]> words = there.stream().map(Entry::words).toList();
            wire.shared(address, false, link -> {
                List<CompletableFuture<Object>> replies = link.sendOnceOpen(words, millis);
                for (int at = 0; at < there.size(); at += 1) {
                    Entry entry = there.get(at);
                    replies.get(at).whenComplete((value, error) -> {
                        if (error == null) {
                            entry.reply.complete(value);
                            return;
                        }
                        Throwable plain = Errors.plain(error);
                        entry.route.learn(plain, link);
                        entry.reply.completeExceptionally(plain);
                    });
                }
                return CompletableFuture.allOf(replies.toArray(CompletableFuture<?>[]::new));
            });
        }
    }
}
