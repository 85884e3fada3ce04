package redislock.engine;

/** No connection, or no answer in time: nobody knows what the server did. */
final class Unreachable extends RuntimeException {
    private static final long serialVersionUID = 1;

    Unreachable(String message, Throwable cause) {
        super(message, cause, false, false);
    }
}
