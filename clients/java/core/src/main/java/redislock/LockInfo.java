package redislock;

import java.time.Duration;
import java.util.List;
import java.util.Optional;

/**
 * Who holds a lock and who waits for it.
 *
 * @param mode {@code "read"}, {@code "write"}, or {@code "free"} when there are only waiters
 * @param fence the highest fence of a holder
 * @param shares how many shares are held
 * @param holding how many holders there are
 * @param holders the first ones of them
 * @param waiting how many wait
 * @param waiters the first ones of them, in the order of the queue
 */
public record LockInfo(
        String mode, long fence, long shares, long holding, List<Holder> holders, long waiting, List<Waiter> waiters) {
    /**
     * Copies the lists.
     *
     * @param mode the mode
     * @param fence the fence
     * @param shares how many are held
     * @param holding how many hold it
     * @param holders the first holders
     * @param waiting how many wait
     * @param waiters the first waiters
     */
    public LockInfo {
        holders = List.copyOf(holders);
        waiters = List.copyOf(waiters);
    }

    /**
     * One holder.
     *
     * @param owner its name
     * @param fence its fence
     * @param lease how long until its lease is over
     * @param note its text for people
     */
    public record Holder(String owner, long fence, Duration lease, Optional<String> note) {}

    /**
     * One who waits.
     *
     * @param owner its name
     * @param waited for how long
     */
    public record Waiter(String owner, Duration waited) {}
}
