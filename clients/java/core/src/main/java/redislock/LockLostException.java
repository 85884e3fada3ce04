package redislock;

/**
 * The lock was lost before it was given back: others may have held it since. It is an {@link IllegalMonitorStateException},
 * so that code which catches that of other locks catches this.
 */
public class LockLostException extends IllegalMonitorStateException {
    private static final long serialVersionUID = 1;

    /** Why. */
    private final Hold.Loss loss;

    /**
     * Makes one.
     *
     * @param message which lock, and why
     * @param loss why
     */
    public LockLostException(String message, Hold.Loss loss) {
        super(message);
        this.loss = loss;
    }

    /**
     * Returns why the lock was lost.
     *
     * @return the reason
     */
    public Hold.Loss loss() {
        return loss;
    }
}
