package redislock;

import org.jspecify.annotations.Nullable;

/** To wait would be to wait for oneself. The message names the cycle: release what is held, and begin again. */
public class DeadlockException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /**
     * Makes one.
     *
     * @param message the cycle
     * @param cause what came, or null
     */
    public DeadlockException(String message, @Nullable Throwable cause) {
        super(message, cause);
    }
}
