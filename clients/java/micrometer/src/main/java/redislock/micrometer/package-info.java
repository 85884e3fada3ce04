/** Figures of locks by Micrometer. */
@NullMarked
package redislock.micrometer;

import org.jspecify.annotations.NullMarked;
