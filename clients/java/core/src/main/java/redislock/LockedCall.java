package redislock;

/**
 * Work that is done while a lock is held.
 *
 * @param <T> what it returns
 * @param <X> what it throws
 */
@FunctionalInterface
public interface LockedCall<T, X extends Exception> {
    /**
     * Works.
     *
     * @param hold the lock. Ask {@link Hold#isValid} before each step that needs it
     * @return what the work is for
     * @throws X if the work fails
     */
    T call(Hold hold) throws X;
}
