/** Locks for Spring Integration. */
@NullMarked
package redislock.spring;

import org.jspecify.annotations.NullMarked;
