package redislock.jedis;

import java.io.IOException;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisClientConfig;
import redis.clients.jedis.exceptions.JedisConnectionException;

/**
 * A connection of Jedis that connects once. Jedis connects again when a command is sent: so one that was about to be sent as
 * its connection was closed would take a lock after all, which nobody wants any more.
 */
final class SingleConnection extends redis.clients.jedis.Connection {
    private volatile boolean isClosed;

    SingleConnection(HostAndPort node, JedisClientConfig config) {
        super(node, config);
    }

    @Override
    public void connect() {
        if (isClosed) throw new JedisConnectionException("the connection is closed");
        super.connect();
    }

    @Override
    public void forceDisconnect() throws IOException {
        isClosed = true;
        super.forceDisconnect();
    }
}
