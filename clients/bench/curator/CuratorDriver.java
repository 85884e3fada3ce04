import java.net.URI;
import java.util.List;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;
import org.json.JSONObject;

/** The same with Curator, whose locks are in a ZooKeeper. */
public final class CuratorDriver extends Driver {
    private static final int PAUSE_MS = 100;

    private CuratorDriver(JSONObject plan) {
        super(plan);
    }

    /**
     * Runs until it is told to end.
     *
     * @param args the last one is the plan
     * @throws Exception if it cannot begin
     */
    public static void main(String[] args) throws Exception {
        new CuratorDriver(new JSONObject(args[args.length - 1])).run();
        Runtime.getRuntime().halt(0);
    }

    @Override
    void start() {
        CuratorFramework client = CuratorFrameworkFactory.builder()
                .connectString(URI.create(plan.getString("url")).getAuthority())
                .sessionTimeoutMs(Math.toIntExact(LEASE.toMillis()))
                .retryPolicy(new RetryOneTime(PAUSE_MS))
                .build();
        client.start();
        List<InterProcessMutex> of = keys.stream().map(key -> new InterProcessMutex(client, "/" + key)).toList();
        threads(owner -> {
            InterProcessMutex lock = of.get(owner);
            lock.acquire();
            return lock::release;
        });
    }
}
