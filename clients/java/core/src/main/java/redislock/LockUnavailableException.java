package redislock;

import java.util.Optional;
import org.jspecify.annotations.Nullable;

/** The server could not be asked, or refused: it is away, has no module, the user has no right, the key has another type. */
public class LockUnavailableException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /** The code of the error reply. */
    private final @Nullable String code;

    /**
     * Makes one.
     *
     * @param message what is wrong
     * @param code the code of the error reply, or null if there was none
     * @param cause what came, or null
     */
    public LockUnavailableException(String message, @Nullable String code, @Nullable Throwable cause) {
        super(message, cause);
        this.code = code;
    }

    /**
     * Returns the code of the error reply.
     *
     * @return as {@code "NOPERM"}; empty if the server did not answer
     */
    public Optional<String> code() {
        return Optional.ofNullable(code);
    }
}
