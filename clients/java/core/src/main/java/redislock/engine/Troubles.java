package redislock.engine;

import java.util.EnumSet;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.jspecify.annotations.Nullable;
import redislock.LockListener;

/** Tells the application of each kind of trouble once, and again after it was over. */
final class Troubles {
    /** A kind of trouble, with a sentence that helps. */
    enum Kind {
        UNREACHABLE("the server does not answer: is it up, and are host and port right?"),
        NO_MODULE("the server has no locks: load the module redis-lock there, or mend host and port"),
        NO_RIGHT("the server does not let this user in: may it run the commands LOCK.* on this key?"),
        MEMORY("the server is at maxmemory; a wait goes on and keeps its place"),
        REFUSED("the server refuses locks now; it is asked again"),
        NOTICES("the server does not tell waits when to ask again, so they ask each second: it needs redis-lock with NOTIFY,"
                + " and a user who may SUBSCRIBE and PUBLISH (in a cluster SSUBSCRIBE and SPUBLISH) on lock:notify:*"),
        RENEWAL("a lock could not be renewed, and is tried again"),
        RELEASE("a lock could not be given back, and is tried again until its lease is over");

        final String text;

        Kind(String text) {
            this.text = text;
        }
    }

    /** What is over when a lock was granted. */
    static final EnumSet<Kind> OF_ASKING = EnumSet.range(Kind.UNREACHABLE, Kind.REFUSED);

    /** What is over when a server has taken a request to be told. */
    static final EnumSet<Kind> OF_NOTICES = EnumSet.of(Kind.NOTICES);

    private static final Set<String> NO_RIGHT = Set.of("NOAUTH", "WRONGPASS", "NOPERM");
    /** What comes and goes by itself, when a server has started or a slot moves. */
    private static final Set<String> USUAL = Set.of("GRACE", "UNBLOCKED", "MOVED", "ASK", "TRYAGAIN");

    private static final String WORK = "a leader's work failed: the lock is given back, and asked for again";

    private static final System.Logger LOG = System.getLogger("redislock");

    private final Set<Kind> told = ConcurrentHashMap.newKeySet();
    private final Callbacks callbacks;

    Troubles(Callbacks callbacks) {
        this.callbacks = callbacks;
    }

    /** Of a request that failed, and perhaps is repeated. */
    void failed(Throwable error) {
        Kind kind = kindOf(error);
        if (kind != null) tell(kind, error);
    }

    private static @Nullable Kind kindOf(Throwable error) {
        if (error instanceof Unreachable) return Kind.UNREACHABLE;
        if (Errors.isNoModule(error)) return Kind.NO_MODULE;
        String code = Errors.code(error);
        if (NO_RIGHT.contains(code)) return Kind.NO_RIGHT;
        if (code.equals("OOM")) return Kind.MEMORY;
        return USUAL.contains(code) || !Errors.isPassing(error) ? null : Kind.REFUSED;
    }

    void tell(Kind kind, Throwable error) {
        if (!told.add(kind)) return;
        LockListener listener = callbacks.listener;
        callbacks.run(() -> {
            if (listener != null) listener.onTrouble(kind.text, error);
            else LOG.log(System.Logger.Level.WARNING, "{0} ({1})", kind.text, error.getMessage());
        });
    }

    /** A leader's body threw this: told each time, as its term is over, and logged with its stack. */
    void ofWork(Throwable failure) {
        LockListener listener = callbacks.listener;
        callbacks.run(() -> {
            LOG.log(System.Logger.Level.WARNING, WORK, failure);
            if (listener != null) listener.onTrouble(WORK, failure);
        });
    }

    /** A lock was granted or renewed: what was told before is over. */
    void over(EnumSet<Kind> kinds) {
        if (!told.isEmpty()) told.removeAll(kinds);
    }
}
