/**
 * How locks are asked for, kept and given back, whatever the client library. The names are those of the helpers in other
 * languages: a {@code Wait} becomes a {@code Held}, which the {@code Renewer} renews, over the links of a {@code Wire}.
 */
@NullMarked
package redislock.engine;

import org.jspecify.annotations.NullMarked;
