package redislock.tests;

import redislock.LockListener;

/**
 * Over when there was trouble: on a machine that is too busy requests have no answer in time. Then they are repeated, over
 * new connections.
 */
class Calm implements LockListener {
    private volatile boolean isOver;

    boolean isOver() {
        return isOver;
    }

    @Override
    public void onTrouble(String what, Throwable why) {
        isOver = true;
    }
}
