package redislock.spi;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** What the clock of leases counts. */
class SystemClockTest {
    @Test
    void the_time_for_which_the_machine_was_suspended_counts(@TempDir Path folder) throws Exception {
        Path uptime = Files.writeString(folder.resolve("uptime"), "100.00 7.00\n");
        Clock clock = new SystemClock(uptime.toString());
        long before = clock.now();
        // As after a sleep of an hour, of which the other clock knows nothing.
        Files.writeString(uptime, "3700.00 7.00\n");
        assertTrue(clock.now() - before >= 3_599_000);
        long after = clock.now();
        Files.writeString(uptime, "100.00 7.00\n");
        assertTrue(clock.now() >= after, "it never goes back");
    }

    @Test
    void it_goes_on_where_there_is_no_such_file(@TempDir Path folder) throws Exception {
        Clock clock = new SystemClock(folder.resolve("none").toString());
        long before = clock.now();
        Thread.sleep(20);
        assertTrue(clock.now() - before >= 19);
        long first = SystemClock.ONE.now();
        Thread.sleep(20);
        assertTrue(SystemClock.ONE.now() - first >= 9);
    }
}
