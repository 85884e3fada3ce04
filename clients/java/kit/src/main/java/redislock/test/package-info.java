/** Tests of programs that use redislock: a server in memory, and one that is started. */
@NullMarked
package redislock.test;

import org.jspecify.annotations.NullMarked;
