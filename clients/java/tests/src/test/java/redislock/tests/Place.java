package redislock.tests;

import static java.nio.charset.StandardCharsets.US_ASCII;

import io.lettuce.core.RedisURI;
import io.lettuce.core.SslOptions;
import io.lettuce.core.resource.ClientResources;
import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.util.Base64;
import org.junit.jupiter.api.Assumptions;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redislock.RedisLocks;
import redislock.jedis.JedisTransport;
import redislock.lettuce.LettuceTransport;
import redislock.spi.Transport;
import redislock.test.LockServer;

/** A server of some kind, and the way of each client library to it. */
class Place implements AutoCloseable {
    /** The kinds. */
    enum Kind {
        REDIS_8_6 {
            @Override
            Place open(Path folder) {
                return new Place(version("redis-8.6/redis-server"));
            }
        },
        VALKEY_9_1 {
            @Override
            Place open(Path folder) {
                return new Place(version("valkey-9.1/valkey-server"));
            }
        },
        CLUSTER {
            @Override
            Place open(Path folder) {
                Server node = new Server("--cluster-enabled", "yes");
                node.ask("CLUSTER", "ADDSLOTSRANGE", "0", "16383");
                Server.await("the cluster", () -> node.text("CLUSTER", "INFO").contains("cluster_state:ok"));
                return new Place(node);
            }
        },
        ACL {
            @Override
            Place open(Path folder) {
                Server server = new Server();
                server.ask("ACL", "SETUSER", "app", "reset", "on", ">secret", "~" + Scenario.PREFIX + "*", "resetchannels",
                        "&lock:notify:" + Scenario.PREFIX + "*", "+lock.acquire", "+lock.release", "+lock.extend", "+lock.check",
                        "+publish", "+subscribe");
                return new Place(server, server.url().replace("//", "//app:secret@"));
            }
        },
        SENTINEL {
            @Override
            Place open(Path folder) throws Exception {
                return new Watched(new Server(), folder);
            }
        },
        TLS {
            @Override
            Place open(Path folder) throws Exception {
                return Secured.open(folder);
            }
        };

        abstract Place open(Path folder) throws Exception;

        private static Server version(String program) {
            Path file = Path.of(Server.ROOT, "target/servers", program);
            Assumptions.assumeTrue(Files.exists(file), () -> "make servers brings " + program);
            return Server.by(file.toString());
        }
    }

    final Server server;
    final String url;

    Place(Server server) {
        this(server, server.url());
    }

    private Place(Server server, String url) {
        this.server = server;
        this.url = url;
    }

    Transport transport(Library library) {
        return library == Library.JEDIS ? JedisTransport.of(URI.create(url)) : LettuceTransport.of(RedisURI.create(url));
    }

    RedisLocks.Builder builder(Library library) {
        return RedisLocks.builder(transport(library)).keyPrefix(Scenario.PREFIX);
    }

    @Override
    public void close() throws Exception {
        server.close();
    }

    /** By a Sentinel. Jedis has no connection for that. */
    private static final class Watched extends Place {
        private final Process process;
        private final int port = LockServer.freePort();

        Watched(Server server, Path folder) throws IOException {
            super(server);
            Path file = folder.resolve("sentinel.conf");
            Files.writeString(file, "port " + port + "\nsentinel monitor locks 127.0.0.1 " + server.port() + " 1\n");
            process = new ProcessBuilder("redis-server", file.toString(), "--sentinel")
                    .redirectErrorStream(true)
                    .redirectOutput(folder.resolve("log").toFile())
                    .start();
        }

        @Override
        Transport transport(Library library) {
            Assumptions.assumeTrue(library != Library.JEDIS, "a Sentinel is asked by Lettuce");
            return LettuceTransport.of(RedisURI.Builder.sentinel("127.0.0.1", port, "locks").build());
        }

        @Override
        public void close() throws Exception {
            process.destroyForcibly().waitFor();
            super.close();
        }
    }

    /** With TLS, and a certificate that only its clients trust. */
    private static final class Secured extends Place {
        private static final String PASSWORD = "password";

        private final int port;
        private final Path store;
        private final ClientResources threads = ClientResources.create();

        private Secured(Server server, int port, Path store) {
            super(server);
            this.port = port;
            this.store = store;
        }

        static Secured open(Path folder) throws Exception {
            Path file = folder.resolve("store.p12");
            Path keytool = Path.of(System.getProperty("java.home"), "bin/keytool");
            Process made = new ProcessBuilder(
                            keytool.toString(), "-genkeypair", "-alias", "server", "-keyalg", "EC", "-dname", "CN=test", "-ext",
                            "san=ip:127.0.0.1", "-validity", "2", "-storetype", "PKCS12", "-storepass", PASSWORD, "-keystore",
                            file.toString())
                    .inheritIO()
                    .start();
            if (made.waitFor() != 0) throw new AssertionError("no certificate");
            KeyStore store = KeyStore.getInstance(file.toFile(), PASSWORD.toCharArray());
            Path certificate = pem(folder, "CERTIFICATE", store.getCertificate("server").getEncoded());
            Path key = pem(folder, "PRIVATE KEY", store.getKey("server", PASSWORD.toCharArray()).getEncoded());
            // What trusts the certificate has it without its key.
            store.setCertificateEntry("trusted", store.getCertificate("server"));
            store.deleteEntry("server");
            Path trusted = folder.resolve("trusted.p12");
            try (java.io.OutputStream out = Files.newOutputStream(trusted)) {
                store.store(out, PASSWORD.toCharArray());
            }
            int port = LockServer.freePort();
            return new Secured(
                    new Server("--tls-port", String.valueOf(port), "--tls-cert-file", certificate.toString(), "--tls-key-file",
                            key.toString(), "--tls-ca-cert-file", certificate.toString(), "--tls-auth-clients", "no"),
                    port,
                    trusted);
        }

        private static Path pem(Path folder, String kind, byte[] bytes) throws IOException {
            String text = Base64.getMimeEncoder(64, "\n".getBytes(US_ASCII)).encodeToString(bytes);
            Path file = folder.resolve(kind + ".pem");
            return Files.writeString(file, "-----BEGIN " + kind + "-----\n" + text + "\n-----END " + kind + "-----\n");
        }

        @Override
        Transport transport(Library library) {
            if (library != Library.JEDIS) {
                SslOptions tls = SslOptions.builder().jdkSslProvider().truststore(store.toFile(), PASSWORD).build();
                RedisURI uri = RedisURI.create("rediss://127.0.0.1:" + port);
                return LettuceTransport.of(threads, tls, uri);
            }
            redis.clients.jedis.SslOptions tls = redis.clients.jedis.SslOptions.builder()
                    .truststore(store.toFile(), PASSWORD.toCharArray())
                    .trustStoreType("PKCS12")
                    .build();
            return JedisTransport.of(
                    DefaultJedisClientConfig.builder().sslOptions(tls).build(), new HostAndPort("127.0.0.1", port));
        }

        @Override
        public void close() throws Exception {
            threads.shutdown(0, 2, java.util.concurrent.TimeUnit.SECONDS).get();
            super.close();
        }
    }
}
