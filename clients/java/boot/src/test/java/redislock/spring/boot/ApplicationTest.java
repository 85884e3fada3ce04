package redislock.spring.boot;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.net.Socket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import net.javacrumbs.shedlock.core.LockProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.SpringBootConfiguration;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.core.annotation.Order;
import org.springframework.http.HttpStatus;
import org.springframework.integration.support.locks.LockRegistry;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.PathVariable;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.server.ResponseStatusException;
import redislock.Hold;
import redislock.LockListener;
import redislock.RedisLocks;
import redislock.shedlock.RedisLockProvider;
import redislock.spi.Transport;
import redislock.spring.RedisLockRegistry;
import redislock.test.FakeServer;
import redislock.test.LockServer;

/** An application of Spring Boot: a page that takes a lock, its health and figures. */
class ApplicationTest {
    @RegisterExtension
    static final LockServer SERVER = LockServer.withModule(Path.of(Optional.ofNullable(System.getenv("REDIS_LOCK_MODULE"))
            .orElse(System.getenv("REDIS_LOCK_ROOT") + "/target/release/libredis_lock.so")));

    /** The application. */
    @SpringBootConfiguration
    @EnableAutoConfiguration
    @RestController
    static class Application {
        private final RedisLocks locks;
        private final Told told;

        Application(RedisLocks locks, Told told) {
            this.locks = locks;
            this.told = told;
        }

        @GetMapping("/report")
        String report() throws InterruptedException {
            return locks.exclusive("report").call(hold -> "fence " + hold.fence());
        }

        /** The lock is broken while the page is made. */
        @GetMapping("/broken")
        String broken() throws Exception {
            Hold hold = locks.exclusive("broken").acquire();
            command("LOCK.BREAK app:broken");
            // Else the next renewal finds it, a third of the lease later.
            assertFalse(hold.check());
            return hold.lost().get(300, TimeUnit.SECONDS) + " " + told.lost.get(300, TimeUnit.SECONDS);
        }
    }

    /** The application of docs/guide/frameworks.md. */
    @RestController
    static class Reports {
        private final RedisLocks locks;

        Reports(RedisLocks locks) {
            this.locks = locks;
        }

        @GetMapping("/reports/{day}")
        String make(@PathVariable("day") String day) throws InterruptedException {
            Optional<Hold> held = locks.exclusive("report:" + day).tryAcquire(Duration.ofSeconds(1));
        try (Hold hold = held.orElseThrow(() -> new ResponseStatusException(HttpStatus.SERVICE_UNAVAILABLE))) {
            return "fence " + hold.fence();
        }
        }
    }

    /** A listener of the application. */
    static final class Told implements LockListener {
        final CompletableFuture<Hold.Loss> lost = new CompletableFuture<>();

        @Override
        public void onLost(String key, Hold.Loss why) {
            lost.complete(why);
        }
    }

    /** The same with beans of its own. */
    @SpringBootConfiguration
    @EnableAutoConfiguration
    static class Own {
        @Bean
        FakeServer server() {
            return new FakeServer();
        }

        @Bean(destroyMethod = "")
        Transport transport(FakeServer server) {
            return server.transport();
        }

        @Bean
        @Order(0)
        LockListener failing() {
            return new LockListener() {
                @Override
                public void onLost(String key, Hold.Loss why) {
                    throw new AssertionError("it keeps nothing from the next one");
                }
            };
        }

        @Bean
        Told told() {
            return new Told();
        }
    }

    private static ConfigurableApplicationContext run(Class<?>... classes) {
        SpringApplication application = new SpringApplication(classes);
        return application.run(
                "--server.port=0", "--redislock.url=" + SERVER.url(), "--redislock.lease=1m", "--redislock.key-prefix=app:",
                "--redislock.name=shop", "--spring.main.banner-mode=off", "--management.endpoints.web.exposure.include=health,metrics",
                "--management.endpoint.health.show-components=always");
    }

    private static HttpResponse<String> page(ConfigurableApplicationContext context, String path) throws Exception {
        String port = Objects.requireNonNull(context.getEnvironment().getProperty("local.server.port"));
        URI place = URI.create("http://127.0.0.1:" + port + path);
        HttpRequest request = HttpRequest.newBuilder(place).timeout(Duration.ofMinutes(5)).build();
        return HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
    }

    /** Once it has this status: on a busy machine the server may be too late with its answer. */
    private static String page(ConfigurableApplicationContext context, String path, int status) throws Exception {
        long end = System.nanoTime() + TimeUnit.MINUTES.toNanos(5);
        for (; ; ) {
            HttpResponse<String> page = page(context, path);
            if (page.statusCode() == status) return page.body();
            assertTrue(System.nanoTime() < end, page::toString);
        }
    }

    private static String health(ConfigurableApplicationContext context, int status) throws Exception {
        return page(context, "/actuator/health", status);
    }

    /** What an operator types at the server. */
    private static void command(String line) throws IOException {
        try (Socket operator = new Socket("127.0.0.1", SERVER.port())) {
            operator.getOutputStream().write((line + "\r\n").getBytes(UTF_8));
            operator.getInputStream().read();
        }
    }

    @Test
    void the_page_of_frameworks_has_what_runs_here() throws Exception {
        Path root = Path.of(Optional.ofNullable(System.getenv("REDIS_LOCK_ROOT")).orElse("../../.."));
        String shown = Files.readString(root.resolve("docs/guide/frameworks.md")).split("```java\n")[1].split("\n```")[0];
        Path source = root.resolve("clients/java/boot/src/test/java/redislock/spring/boot/ApplicationTest.java");
        String here = Files.readString(source).replaceAll("\\s+", " ").replace("static class", "class");
        assertTrue(here.contains(shown.replaceAll("\\s+", " ")), shown);
        try (ConfigurableApplicationContext context = run(Application.class, Told.class, Reports.class)) {
            command("LOCK.ACQUIRE app:report:monday another PX 600000");
            page(context, "/reports/monday", 503);
            command("LOCK.RELEASE app:report:monday another");
            assertTrue(page(context, "/reports/monday", 200).startsWith("fence "));
        }
    }

    @Test
    void a_page_takes_a_lock_and_health_and_figures_are_there() throws Exception {
        try (ConfigurableApplicationContext context = run(Application.class, Told.class)) {
            assertTrue(page(context, "/report").body().startsWith("fence "));
            assertEquals("TAKEN_AWAY TAKEN_AWAY", page(context, "/broken").body());
            assertTrue(context.getBean(LockProvider.class) instanceof RedisLockProvider);
            assertTrue(context.getBean(LockRegistry.class) instanceof RedisLockRegistry);
            // They are told by another thread.
            String figures = "";
            while (!figures.contains("\"COUNT\",\"value\":2")) {
                figures = page(context, "/actuator/metrics/redis.lock.wait?tag=locks:shop").body();
            }
            assertTrue(health(context, 200).contains("\"redisLock\":{\"status\":\"UP\"}"));
            SERVER.stop();
            assertTrue(health(context, 503).contains("\"redisLock\":{\"status\":\"DOWN\"}"));
            SERVER.start();
            health(context, 200);
        }
    }

    @Test
    void beans_of_the_application_come_first_and_locks_end_with_it() throws Exception {
        RedisLocks locks;
        Hold hold;
        Told told;
        try (ConfigurableApplicationContext context = run(Own.class)) {
            locks = context.getBean(RedisLocks.class);
            hold = locks.exclusive("k").acquire();
            assertTrue(context.getBean(FakeServer.class).calls("LOCK.ACQUIRE") > 0);
            assertTrue(hold.isValid());
            told = context.getBean(Told.class);
        }
        assertEquals(Hold.Loss.CLOSED, told.lost.get(300, TimeUnit.SECONDS));
        assertFalse(hold.isValid());
        assertEquals(Hold.Loss.CLOSED, hold.lost().get(300, TimeUnit.SECONDS));
    }
}
