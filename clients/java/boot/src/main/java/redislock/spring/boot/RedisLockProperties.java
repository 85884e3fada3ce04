package redislock.spring.boot;

import java.time.Duration;
import org.springframework.boot.context.properties.ConfigurationProperties;
import org.springframework.boot.context.properties.bind.DefaultValue;

/**
 * The settings {@code redislock.*} of an application.
 *
 * @param url {@code redislock.url}: the server, as Lettuce's {@code RedisURI} reads it
 * @param lease {@code redislock.lease}: how soon a lock is free after its process died, at least a second
 * @param keyPrefix {@code redislock.key-prefix}: what is written before each key
 * @param maxBlockingConnections {@code redislock.max-blocking-connections}: how many waits may have a connection each
 * @param name {@code redislock.name}: the tag {@code locks} of the figures
 */
@ConfigurationProperties("redislock")
public record RedisLockProperties(
        @DefaultValue("redis://127.0.0.1:6379") String url,
        @DefaultValue("30s") Duration lease,
        @DefaultValue("") String keyPrefix,
        @DefaultValue("32") int maxBlockingConnections,
        @DefaultValue("application") String name) {}
