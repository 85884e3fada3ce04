package redislock.lettuce;

import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.protocol.AsyncCommand;
import io.lettuce.core.protocol.Command;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import io.lettuce.core.protocol.RedisCommand;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import redislock.spi.Connection;

/** A connection of Lettuce that never comes back. */
final class LettuceConnection implements Connection {
    /** The name of a command, as it is sent. */
    private record Name(byte[] bytes) implements ProtocolKeyword {
        @Override
        public byte[] getBytes() {
            return bytes;
        }

        @Override
        public String toString() {
            return new String(bytes, java.nio.charset.StandardCharsets.UTF_8);
        }
    }

    private final StatefulRedisConnection<byte[], byte[]> connection;

    LettuceConnection(StatefulRedisConnection<byte[], byte[]> connection) {
        this.connection = connection;
    }

    @Override
    public List<CompletableFuture<Object>> send(List<byte[][]> requests, long millis, boolean isDirect) {
        List<AsyncCommand<byte[], byte[], Object>> commands = new ArrayList<>(requests.size());
        for (byte[][] words : requests) {
            CommandArgs<byte[], byte[]> args = new CommandArgs<>(ByteArrayCodec.INSTANCE);
            for (int at = 1; at < words.length; at += 1) args.add(words[at]);
            commands.add(new AsyncCommand<>(new Command<>(new Name(words[0]), new ReplyOutput(), args)));
        }
        if (commands.size() == 1) {
            connection.dispatch(commands.get(0));
        } else {
            List<RedisCommand<byte[], byte[], ?>> all = new ArrayList<>(commands);
            connection.dispatch(all);
        }
        List<CompletableFuture<Object>> replies = new ArrayList<>(commands.size());
        for (AsyncCommand<byte[], byte[], Object> command : commands) {
            replies.add(command.handle((value, error) -> {
                if (error == null) return value;
                throw new CompletionException(LettuceTransport.plain(error));
            }));
        }
        return replies;
    }

    @Override
    public boolean isOpen() {
        return connection.isOpen();
    }

    @Override
    public void close() {
        connection.closeAsync();
    }
}
