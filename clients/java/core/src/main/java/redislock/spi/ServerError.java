package redislock.spi;

/** An error reply of the server. */
public final class ServerError extends RuntimeException {
    private static final long serialVersionUID = 1;

    /**
     * Makes one.
     *
     * @param message the reply, which begins with its code
     */
    public ServerError(String message) {
        super(message, null, false, false);
    }

    /**
     * Returns the code of the reply.
     *
     * @return as {@code "READONLY"}
     */
    public String code() {
        String text = String.valueOf(getMessage());
        int end = text.indexOf(' ');
        return end < 0 ? text : text.substring(0, end);
    }
}
