package redislock.tests;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;
import org.junit.jupiter.api.parallel.ResourceAccessMode;
import org.junit.jupiter.api.parallel.ResourceLock;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;
import redislock.LockListener;
import redislock.RedisLocks;
import redislock.spi.ServerError;

/**
 * Six scenarios at each kind of server. Each client library plays them by one of its two ways to wait; with
 * {@code REDIS_LOCK_NIGHTLY} by both.
 */
class PlacesTest {
    @TempDir
    static Path folder;

    private static final Map<Place.Kind, Place> OPEN = new EnumMap<>(Place.Kind.class);

    @AfterAll
    static void close() throws Exception {
        for (Place place : OPEN.values()) place.close();
    }

    private static Stream<Arguments> places() {
        boolean isAll = System.getenv("REDIS_LOCK_NIGHTLY") != null;
        return Stream.of(Place.Kind.values()).flatMap(kind -> Stream.of(Library.LETTUCE, Library.JEDIS)
                .filter(library -> library != Library.JEDIS || kind != Place.Kind.SENTINEL)
                .flatMap(library -> Stream.of(0, 32)
                        .filter(blocking -> isAll || (blocking == 0) == (library == Library.LETTUCE))
                        .map(blocking -> Arguments.of(kind, library, blocking))));
    }

    private static Stream<Arguments> calm() {
        return places().flatMap(place -> Stream.of(Scenario.values())
                .filter(scenario -> scenario != Scenario.CUT)
                .map(scenario -> Arguments.of(Stream.concat(Stream.of(scenario), Stream.of(place.get())).toArray())));
    }

    @ParameterizedTest
    @MethodSource("calm")
    @Execution(ExecutionMode.CONCURRENT)
    @ResourceLock(value = "places", mode = ResourceAccessMode.READ)
    void locks_are_the_same_everywhere(Scenario scenario, Place.Kind kind, Library library, int blocking) throws Exception {
        Place place = opened(kind);
        List<Throwable> refusals = new CopyOnWriteArrayList<>();
        LockListener listener = new LockListener() {
            @Override
            public void onTrouble(String what, Throwable why) {
                // On a busy machine a request may have no answer in time.
                if (why instanceof ServerError) refusals.add(why);
            }
        };
        try (RedisLocks locks = place.builder(library).maxBlockingConnections(blocking).listener(listener).build()) {
            scenario.play(place.server, locks, scenario + " by " + library + " " + blocking);
        }
        assertEquals(List.of(), refusals);
    }

    /** One after the other: each ends the connections of all. */
    @ParameterizedTest
    @MethodSource("places")
    @ResourceLock("places")
    void connections_that_are_cut_cost_no_lock_anywhere(Place.Kind kind, Library library, int blocking) throws Exception {
        Place place = opened(kind);
        try (RedisLocks locks = place.builder(library).maxBlockingConnections(blocking).build()) {
            Scenario.CUT.play(place.server, locks, "cut by " + library + " " + blocking);
        }
    }

    private static Place opened(Place.Kind kind) throws Exception {
        synchronized (OPEN) {
            Place open = OPEN.get(kind);
            if (open == null) OPEN.put(kind, open = kind.open(Files.createDirectories(folder.resolve(kind.name()))));
            return open;
        }
    }
}
