/** What a client library has to give, so that locks can use it. Applications need none of this. */
@NullMarked
package redislock.spi;

import org.jspecify.annotations.NullMarked;
