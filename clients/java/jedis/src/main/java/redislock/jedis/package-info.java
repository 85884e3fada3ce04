/** Locks over Jedis. */
@NullMarked
package redislock.jedis;

import org.jspecify.annotations.NullMarked;
