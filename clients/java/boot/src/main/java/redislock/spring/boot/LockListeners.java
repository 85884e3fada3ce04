package redislock.spring.boot;

import java.time.Duration;
import java.util.List;
import java.util.function.Consumer;
import redislock.Hold;
import redislock.LockListener;

/** Tells all listeners of an application, one after the other. One that fails keeps nothing from the others. */
record LockListeners(List<LockListener> all) implements LockListener {
    private static final System.Logger LOG = System.getLogger("redislock");

    private void each(Consumer<LockListener> tell) {
        for (LockListener listener : all) {
            try {
                tell.accept(listener);
            } catch (Throwable failure) {
                LOG.log(System.Logger.Level.WARNING, "a listener of locks failed", failure);
            }
        }
    }

    @Override
    public void onAcquired(String key, Duration waited) {
        each(listener -> listener.onAcquired(key, waited));
    }

    @Override
    public void onRefused(String key, Duration waited) {
        each(listener -> listener.onRefused(key, waited));
    }

    @Override
    public void onLost(String key, Hold.Loss why) {
        each(listener -> listener.onLost(key, why));
    }

    @Override
    public void onReleased(String key, Duration held) {
        each(listener -> listener.onReleased(key, held));
    }

    @Override
    public void onTrouble(String what, Throwable why) {
        if (all.isEmpty()) LOG.log(System.Logger.Level.WARNING, "{0} ({1})", what, why.getMessage());
        each(listener -> listener.onTrouble(what, why));
    }
}
