package redislock.lettuce;

import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.output.CommandOutput;
import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import org.jspecify.annotations.Nullable;

/** A reply as it comes: {@code byte[]}, {@code Long}, {@code List}, or null. */
final class ReplyOutput extends CommandOutput<byte[], byte[], Object> {
    /** A list that is not complete, and how many elements it will have. */
    private record Open(List<@Nullable Object> elements, int count) {}

    private final Deque<Open> open = new ArrayDeque<>();

    ReplyOutput() {
        super(ByteArrayCodec.INSTANCE, null);
    }

    private void add(@Nullable Object value) {
        Object item = value;
        for (; ; ) {
            Open inner = open.peek();
            if (inner == null) {
                output = item;
                return;
            }
            inner.elements.add(item);
            if (inner.elements.size() < inner.count) return;
            open.pop();
            item = inner.elements;
        }
    }

    @Override
    public void set(ByteBuffer bytes) {
        if (bytes == null) {
            add(null);
            return;
        }
        byte[] copy = new byte[bytes.remaining()];
        bytes.get(copy);
        add(copy);
    }

    @Override
    public void set(long integer) {
        add(integer);
    }

    @Override
    public void multi(int count) {
        if (count < 0) add(null);
        else if (count == 0) add(new ArrayList<>());
        else open.push(new Open(new ArrayList<>(count), count));
    }
}
