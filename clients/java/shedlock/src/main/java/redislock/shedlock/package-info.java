/** Locks for ShedLock. */
@NullMarked
package redislock.shedlock;

import org.jspecify.annotations.NullMarked;
