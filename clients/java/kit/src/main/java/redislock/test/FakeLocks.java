package redislock.test;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.function.BiConsumer;
import java.util.function.Function;
import java.util.function.LongSupplier;
import org.jspecify.annotations.Nullable;
import redislock.spi.ServerError;

/** The locks of a server in memory. Its user keeps threads apart, and runs the answers when it has done its work. */
final class FakeLocks {
    private static final long NEVER = Long.MAX_VALUE;
    /** How long a place outlives the connection over which its owner asked last. */
    private static final long AWAY_MS = 2_000;

    private static final long LEASE_MS = 30_000;
    private static final String WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value";

    /** What an owner has of a key. */
    private static final class Hold {
        final String owner;
        boolean isWriter;
        boolean isReader;
        long shares;
        long fence;
        long began;
        long end;
        @Nullable String note;
        /** The place of which it is an offer: its owner does not know yet. */
        @Nullable Place offer;

        Hold(String owner, long began) {
            this.owner = owner;
            this.began = began;
        }

        String mode() {
            return isWriter ? "write" : "read";
        }

        long reads() {
            return Math.max(shares, isReader ? 1 : 0);
        }
    }

    /** An acquisition, which may wait: for all of its keys at once. */
    private static final class Place {
        List<String> keys = List.of();
        String owner = "";
        boolean isWriter = true;
        boolean isReader;
        long shares;
        long limit;
        long lease = LEASE_MS;
        long block;
        long queue;
        @Nullable String note;
        @Nullable String channel;
        /** Who waits now, and over which connection its owner asked. */
        @Nullable CompletableFuture<@Nullable Object> client;

        @Nullable Object connection;
        /** When the request that waits is answered null; when the place is over without one. */
        long blockEnd = NEVER;

        long end = NEVER;
        long began;
    }

    /** What is to be run when nobody works on the locks. */
    final Queue<Runnable> answers = new ConcurrentLinkedQueue<>();

    final Map<String, Long> calls = new HashMap<>();
    /** What answers guarded commands; without it they run here. */
    @Nullable Function<List<String>, @Nullable Object> guarded;

    private final LongSupplier clock;
    private final BiConsumer<String, String> publish;
    private final Map<String, Map<String, Hold>> holds = new HashMap<>();
    private final Map<String, String> strings = new HashMap<>();
    /** In the order in which they came. */
    private final List<Place> places = new ArrayList<>();

    /** How many waits began. */
    private long queued;

    private long lastFence = System.currentTimeMillis() * 1_000;

    FakeLocks(LongSupplier clock, BiConsumer<String, String> publish) {
        this.clock = clock;
        this.publish = publish;
    }

    private Map<String, Hold> holdersOf(String key) {
        return holds.getOrDefault(key, Map.of());
    }

    /** Answers a request, now or later. */
    CompletableFuture<@Nullable Object> serve(List<byte[]> raw, @Nullable Object connection) {
        List<String> words = raw.stream().map(word -> new String(word, UTF_8)).toList();
        String command = words.get(0);
        calls.merge(command, 1L, Long::sum);
        try {
            return switch (command) {
                case "LOCK.ACQUIRE", "LOCK.RW", "LOCK.SHARE", "LOCK.MACQUIRE" -> acquire(parse(words), connection);
                default -> CompletableFuture.completedFuture(answer(command, words));
            };
        } catch (ServerError refused) {
            return CompletableFuture.failedFuture(refused);
        }
    }

    private @Nullable Object answer(String command, List<String> words) {
        return switch (command) {
            case "LOCK.RELEASE" -> release(List.of(words.get(1)), words.get(2), words);
            case "LOCK.MRELEASE" -> {
                int count = Integer.parseInt(words.get(1));
                yield release(words.subList(2, 2 + count), words.get(2 + count), words);
            }
            case "LOCK.EXTEND" -> extend(words);
            case "LOCK.CHECK" -> {
                Hold hold = held(words.get(1), words.get(2), words);
                yield hold == null ? null : hold.fence;
            }
            case "LOCK.GUARD" -> guard(words);
            case "LOCK.INFO" -> info(words.get(1));
            case "LOCK.BREAK" -> {
                long count = holdersOf(words.get(1)).size();
                holds.remove(words.get(1));
                yield count;
            }
            case "PING" -> text("PONG");
            case "HELLO" -> List.of(text("mode"), text("standalone"));
            case "INFO" -> text(figures());
            default -> data(command, words.subList(1, words.size()));
        };
    }

    private @Nullable Object data(String command, List<String> words) {
        return switch (command) {
            case "DEL" -> words.stream().filter(this::lose).count();
            case "EXISTS" -> words.stream().filter(key -> holds.containsKey(key) || strings.containsKey(key)).count();
            case "GET" -> {
                if (holds.containsKey(words.get(0))) throw new ServerError(WRONG_TYPE);
                String value = strings.get(words.get(0));
                yield value == null ? null : text(value);
            }
            case "SET" -> {
                lose(words.get(0));
                strings.put(words.get(0), words.get(1));
                yield text("OK");
            }
            case "FLUSHALL" -> {
                holds.clear();
                strings.clear();
                yield text("OK");
            }
            default -> throw new ServerError("ERR unknown command '" + command + "'");
        };
    }

    private void checkTypes(Collection<String> keys) {
        if (keys.stream().anyMatch(strings::containsKey)) throw new ServerError(WRONG_TYPE);
    }

    /** What INFO says. */
    private String figures() {
        StringBuilder lines = new StringBuilder("redis_mode:standalone\r\n");
        lines.append("lock_queued:").append(queued).append("\r\n");
        calls.forEach((command, count) -> lines.append("cmdstat_").append(command.toLowerCase(Locale.ROOT)).append(":calls=")
                .append(count).append("\r\n"));
        return lines.toString();
    }

    private Place parse(List<String> words) {
        Place asked = new Place();
        int at = 1;
        if (words.get(0).equals("LOCK.MACQUIRE")) {
            int count = Integer.parseInt(words.get(at));
            asked.keys = words.subList(at + 1, at + 1 + count);
            at += 1 + count;
        } else {
            asked.keys = List.of(words.get(at));
            at += 1;
        }
        asked.owner = words.get(at);
        at += 1;
        if (words.get(0).equals("LOCK.RW")) {
            asked.isReader = words.get(at).equals("READ");
            asked.isWriter = !asked.isReader;
            at += 1;
        }
        if (words.get(0).equals("LOCK.SHARE")) {
            asked.isWriter = false;
            asked.limit = Long.parseLong(words.get(at));
            asked.shares = 1;
            at += 1;
        }
        for (; at + 1 < words.size(); at += 2) {
            String value = words.get(at + 1);
            switch (words.get(at)) {
                case "PX" -> asked.lease = Long.parseLong(value);
                // 0 is for ever.
                case "BLOCK" -> asked.block = value.equals("0") ? NEVER : Long.parseLong(value);
                case "QUEUE" -> asked.queue = Long.parseLong(value);
                case "NOTIFY" -> asked.channel = value;
                case "NOTE" -> asked.note = value;
                case "TAKE" -> asked.shares = Long.parseLong(value);
                case "RETRY" -> {}
                default -> throw new ServerError("ERR unknown option \"" + words.get(at) + "\"");
            }
        }
        return asked;
    }

    private CompletableFuture<@Nullable Object> acquire(Place asked, @Nullable Object connection) {
        checkTypes(asked.keys);
        Place standing = places.stream()
                .filter(place -> place.owner.equals(asked.owner) && place.keys.equals(asked.keys))
                .findFirst()
                .orElse(null);
        boolean isFree = asked.keys.stream().allMatch(key -> isFree(asked, key));
        boolean isFirst = places.stream().takeWhile(place -> place != standing).noneMatch(place -> meets(place, asked));
        boolean isMine = asked.keys.stream().allMatch(key -> has(asked, key));
        if (isMine || isFree && isFirst) {
            if (standing != null) places.remove(standing);
            return CompletableFuture.completedFuture(grant(asked, null));
        }
        if (asked.block == 0 && asked.queue == 0) return CompletableFuture.completedFuture(null);
        List<String> cycle = cycle(asked);
        if (!cycle.isEmpty()) {
            if (standing != null) places.remove(standing);
            throw new ServerError("DEADLOCK " + String.join(" -> ", cycle));
        }
        asked.began = clock.getAsLong();
        if (standing == null) {
            queued += 1;
            places.add(asked);
        } else {
            // The later request has the place.
            asked.began = standing.began;
            places.set(places.indexOf(standing), asked);
            if (standing.client != null) later(standing.client, null);
        }
        return waits(asked, connection);
    }

    private CompletableFuture<@Nullable Object> waits(Place place, @Nullable Object connection) {
        place.connection = place.block > 0 || place.channel != null ? connection : null;
        if (place.block == 0 || connection == null) {
            place.end = clock.getAsLong() + place.queue;
            return CompletableFuture.completedFuture(null);
        }
        place.client = new CompletableFuture<>();
        place.blockEnd = place.block == NEVER ? NEVER : clock.getAsLong() + place.block;
        return place.client;
    }

    private static boolean meets(Place one, Place other) {
        if (one.keys.stream().noneMatch(other.keys::contains)) return false;
        // Readers beside readers, and shares in their order.
        return one.isWriter || other.isWriter || one.limit > 0 && other.limit > 0;
    }

    /** True if the owner has the key in this mode, or is offered it. */
    private boolean has(Place asked, String key) {
        Hold mine = holdersOf(key).get(asked.owner);
        if (mine == null) return false;
        if (asked.isWriter) return mine.isWriter;
        return asked.isReader ? mine.isReader || mine.isWriter : mine.shares > 0;
    }

    private boolean isFree(Place asked, String key) {
        long taken = asked.shares;
        for (Hold hold : holdersOf(key).values()) {
            if (hold.owner.equals(asked.owner)) continue;
            if (hold.isWriter || asked.isWriter) return false;
            taken += hold.shares;
        }
        return asked.limit == 0 || taken <= asked.limit;
    }

    /** The reply: a fence, or one for each key. With {@code offer} its owner does not know yet. */
    private Object grant(Place asked, @Nullable Place offer) {
        List<Object> fences = new ArrayList<>();
        long now = clock.getAsLong();
        for (String key : asked.keys) {
            Hold hold = holds.computeIfAbsent(key, none -> new LinkedHashMap<>()).computeIfAbsent(asked.owner, owner -> new Hold(owner, now));
            if (hold.fence == 0) {
                lastFence = Math.max(lastFence + 1, System.currentTimeMillis() * 1_000);
                hold.fence = lastFence;
            }
            hold.isWriter |= asked.isWriter;
            hold.isReader |= asked.isReader;
            hold.shares = Math.max(hold.shares, asked.shares);
            hold.offer = offer;
            hold.end = now + (offer == null ? asked.lease : asked.queue);
            if (asked.note != null) hold.note = asked.note;
            fences.add(hold.fence);
        }
        return asked.keys.size() == 1 ? fences.get(0) : fences;
    }

    /** The owners and keys of a cycle that a wait would close; empty if there is none. */
    private List<String> cycle(Place asked) {
        List<String> path = new ArrayList<>(List.of(asked.owner));
        return leads(asked, asked.owner, path, new HashSet<>()) ? path : List.of();
    }

    private boolean leads(Place from, String to, List<String> path, Set<String> seen) {
        for (String key : from.keys) {
            for (Hold hold : holdersOf(key).values()) {
                if (hold.owner.equals(from.owner)) continue;
                path.addAll(List.of(key, hold.owner));
                if (hold.owner.equals(to)) return true;
                if (seen.add(hold.owner)) {
                    for (Place next : places) {
                        if (next.owner.equals(hold.owner) && leads(next, to, path, seen)) return true;
                    }
                }
                path.subList(path.size() - 2, path.size()).clear();
            }
        }
        return false;
    }

    /** What the owner holds there, if the fence is right where one is named. */
    private @Nullable Hold held(String key, String owner, List<String> words) {
        checkTypes(List.of(key));
        Hold hold = holdersOf(key).get(owner);
        if (hold == null || hold.offer != null) return null;
        long fence = option(words, "FENCE");
        return fence == 0 || fence == hold.fence ? hold : null;
    }

    private static long option(List<String> words, String name) {
        int at = words.indexOf(name);
        return at < 0 ? 0 : Long.parseLong(words.get(at + 1));
    }

    private @Nullable Object extend(List<String> words) {
        Hold hold = held(words.get(1), words.get(2), words);
        if (hold == null) return null;
        hold.end = clock.getAsLong() + option(words, "PX");
        hold.fence = Math.max(hold.fence, option(words, "MINFENCE"));
        lastFence = Math.max(lastFence, hold.fence);
        return hold.fence;
    }

    private @Nullable Object guard(List<String> words) {
        checkTypes(List.of(words.get(1)));
        Hold hold = holdersOf(words.get(1)).get(words.get(2));
        boolean isHeld = hold != null && hold.isWriter && hold.offer == null && hold.fence == Long.parseLong(words.get(3));
        if (!isHeld) return null;
        List<String> command = words.subList(4, words.size());
        Object reply = guarded == null ? data(command.get(0), command.subList(1, command.size())) : guarded.apply(command);
        return Arrays.asList(1L, reply);
    }

    private @Nullable Object release(Collection<String> keys, String owner, List<String> words) {
        checkTypes(keys);
        long fence = option(words, "FENCE");
        if (fence == 0 && !words.contains("WRITE")) {
            places.removeIf(place -> {
                if (!place.owner.equals(owner) || place.keys.stream().noneMatch(keys::contains)) return false;
                if (place.client != null) later(place.client, null);
                return true;
            });
        }
        Object reply = null;
        for (String key : keys) {
            Hold hold = holdersOf(key).get(owner);
            if (hold == null || fence != 0 && fence != hold.fence) continue;
            if (words.contains("WRITE") && hold.isReader) hold.isWriter = false;
            else remove(key, owner);
            reply = 0L;
        }
        return reply;
    }

    private void remove(String key, String owner) {
        Map<String, Hold> all = holds.get(key);
        if (all == null) return;
        all.remove(owner);
        if (all.isEmpty()) holds.remove(key);
    }

    /** True if there was something. */
    private boolean lose(String key) {
        return holds.remove(key) != null | strings.remove(key) != null;
    }

    /** What waited there is kept for a while: its process may be dead. */
    void closed(Object connection) {
        for (Place place : places) {
            if (place.connection != connection) continue;
            place.client = null;
            place.blockEnd = NEVER;
            place.end = Math.min(place.end, clock.getAsLong() + Math.min(AWAY_MS, place.queue));
        }
    }

    long latestEnd() {
        return holds.values().stream().flatMap(all -> all.values().stream()).mapToLong(hold -> hold.end).max().orElse(0);
    }

    /** When something is over next. */
    long nextEnd() {
        long next = NEVER;
        for (Map<String, Hold> all : holds.values()) {
            for (Hold hold : all.values()) next = Math.min(next, hold.end);
        }
        for (Place place : places) next = Math.min(next, Math.min(place.blockEnd, place.end));
        return next;
    }

    /** Ends what is over, and serves who is next. */
    void look() {
        long now = clock.getAsLong();
        for (Map<String, Hold> all : List.copyOf(holds.values())) all.values().removeIf(hold -> hold.end <= now);
        holds.values().removeIf(Map::isEmpty);
        for (Place place : List.copyOf(places)) {
            if (place.client != null && place.blockEnd <= now) {
                later(place.client, null);
                place.client = null;
                place.blockEnd = NEVER;
                place.end = now + place.queue;
            }
            if (place.client == null && place.end <= now) places.remove(place);
        }
        List<Place> before = new ArrayList<>();
        for (Place place : List.copyOf(places)) {
            boolean isFirst = before.stream().noneMatch(other -> meets(other, place));
            if (isFirst && place.keys.stream().allMatch(key -> isFree(place, key))) serveNext(place);
            else before.add(place);
        }
    }

    private void serveNext(Place place) {
        places.remove(place);
        if (place.client != null) {
            later(place.client, grant(place, null));
            return;
        }
        grant(place, place);
        if (place.channel != null) publish.accept(place.channel, place.owner);
    }

    private void later(CompletableFuture<@Nullable Object> client, @Nullable Object reply) {
        answers.add(() -> client.complete(reply));
    }

    private @Nullable Object info(String key) {
        checkTypes(List.of(key));
        Collection<Hold> all = holdersOf(key).values();
        List<List<Object>> waiters = places.stream().filter(place -> place.keys.contains(key)).map(this::shown).toList();
        if (all.isEmpty() && waiters.isEmpty()) return null;
        String mode = all.stream().anyMatch(hold -> hold.isWriter) ? "write" : "read";
        return fields(
                "mode", all.isEmpty() ? null : text(mode),
                "fence", all.isEmpty() ? null : all.stream().mapToLong(hold -> hold.fence).max().getAsLong(),
                "shares", all.stream().mapToLong(Hold::reads).sum(),
                "holding", (long) all.size(),
                "holders", all.stream().map(this::shown).toList(),
                "waiting", (long) waiters.size(),
                "waiters", waiters);
    }

    private List<Object> shown(Hold hold) {
        long now = clock.getAsLong();
        return fields(
                "owner", text(hold.owner),
                "mode", text(hold.mode()),
                "reads", hold.reads(),
                "writes", hold.isWriter ? 1L : 0L,
                "fence", hold.fence,
                "ttl_ms", hold.end - now,
                "held_ms", now - hold.began,
                "offered", hold.offer == null ? 0L : 1L,
                "session", null,
                "client", null,
                "note", hold.note == null ? null : text(hold.note));
    }

    private List<Object> shown(Place place) {
        long now = clock.getAsLong();
        boolean isPlace = place.client == null;
        return fields(
                "owner", text(place.owner),
                "mode", text(place.isWriter ? "write" : "read"),
                "waited_ms", now - place.began,
                "left_ms", place.blockEnd == NEVER ? null : place.blockEnd - now,
                "queue_left_ms", isPlace ? place.end - now : null,
                "client", isPlace ? null : (long) System.identityHashCode(place.connection));
    }

    /** Names and values, one after the other. */
    private static List<Object> fields(@Nullable Object... pairs) {
        for (int at = 0; at < pairs.length; at += 2) pairs[at] = text((String) pairs[at]);
        return Arrays.asList(pairs);
    }

    private static byte[] text(String word) {
        return word.getBytes(UTF_8);
    }
}
