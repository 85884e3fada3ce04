package redislock.engine;

import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import redislock.DeadlockException;
import redislock.LockLostException;
import redislock.LockUnavailableException;
import redislock.spi.ServerError;

/** What an error means. */
final class Errors {
    private static final Set<String> PASSING = Set.of(
            "UNBLOCKED", "GRACE", "READONLY", "LOADING", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "NOREPLICAS", "MISCONF", "OOM");
    private static final Pattern PASSING_LIMIT = Pattern.compile("^LIMIT .*(waiters|places?|(place|waiter)-bytes)\\b");
    private static final Pattern NO_MODULE = Pattern.compile("^ERR unknown command '?LOCK\\.", Pattern.CASE_INSENSITIVE);

    private static final Pattern OF_NOTIFY = Pattern.compile(
            "^(ERR unknown option \"?NOTIFY|ERR NOTIFY|NOPERM .*NOTIFY|NOTIFYSLOT|LIMIT .*channels)", Pattern.CASE_INSENSITIVE);
    private static final Pattern LONGEST_QUEUE = Pattern.compile("^ERR QUEUE must be a whole number from 1 to (\\d{1,15})");

    private Errors() {}

    /** What was wrong, without what futures wrap around it. */
    static Throwable plain(Throwable error) {
        Throwable inner = error;
        while ((inner instanceof CompletionException || inner instanceof ExecutionException) && inner.getCause() != null) {
            inner = inner.getCause();
        }
        return inner;
    }

    /** Completes the one as the other. */
    static <T> void pass(CompletableFuture<? extends T> from, CompletableFuture<T> to) {
        from.whenComplete((value, error) -> {
            if (error == null) to.complete(value);
            else to.completeExceptionally(plain(error));
        });
    }

    static String code(Throwable error) {
        return error instanceof ServerError reply ? reply.code() : "";
    }

    static boolean isRedirection(Throwable error) {
        String code = code(error);
        return code.equals("MOVED") || code.equals("ASK");
    }

    /** True if the fence that was asked for is too far ahead of the server's clock, as right after a start. */
    static boolean isAhead(Throwable error) {
        return String.valueOf(plain(error).getMessage()).contains("MINFENCE is more than");
    }

    /** True if the same request may succeed later. */
    static boolean isPassing(Throwable error) {
        if (error instanceof Unreachable || isRedirection(error)) return true;
        return PASSING.contains(code(error)) || PASSING_LIMIT.matcher(String.valueOf(error.getMessage())).find();
    }

    /** True if the server would let the same request without NOTIFY in. */
    static boolean isOfNotify(Throwable error) {
        return error instanceof ServerError && OF_NOTIFY.matcher(String.valueOf(error.getMessage())).find();
    }

    /** The longest QUEUE that the server allows, if that is what it says; else 0. */
    static long longestQueue(Throwable error) {
        Matcher longest = LONGEST_QUEUE.matcher(String.valueOf(error.getMessage()));
        return error instanceof ServerError && longest.find() ? Long.parseLong(longest.group(1)) : 0;
    }

    static boolean isNoModule(Throwable error) {
        return error instanceof ServerError && NO_MODULE.matcher(String.valueOf(error.getMessage())).find();
    }

    /** What an application is told. */
    static RuntimeException told(String what, Throwable raw) {
        Throwable error = plain(raw);
        if (error instanceof LockLostException || error instanceof DeadlockException || error instanceof LockUnavailableException) {
            return (RuntimeException) error;
        }
        String message = String.valueOf(error.getMessage());
        String code = code(error);
        if (code.equals("DEADLOCK")) return new DeadlockException(message, error);
        if (isNoModule(error)) {
            message = "the server has no locks: load the module redis-lock (libredis_lock.so) there, or mend host and port."
                    + " It said: " + message;
        } else if (!(error instanceof ServerError)) {
            message = what + ": " + message;
        }
        return new LockUnavailableException(message, code.isEmpty() ? null : code, error);
    }
}
