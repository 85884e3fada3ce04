/** Locks over Lettuce. */
@NullMarked
package redislock.lettuce;

import org.jspecify.annotations.NullMarked;
