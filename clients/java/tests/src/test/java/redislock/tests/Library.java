package redislock.tests;

import io.lettuce.core.RedisURI;
import java.net.URI;
import redislock.RedisLocks;
import redislock.jedis.JedisTransport;
import redislock.lettuce.LettuceTransport;
import redislock.spi.Transport;

/** A client library. */
enum Library {
    LETTUCE,
    JEDIS;

    RedisLocks.Builder builder(Server server) {
        Transport transport = this == JEDIS
                ? JedisTransport.of(URI.create(server.url()))
                : LettuceTransport.of(RedisURI.create(server.url()));
        return RedisLocks.builder(transport);
    }
}
