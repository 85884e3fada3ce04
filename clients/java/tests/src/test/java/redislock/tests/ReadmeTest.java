package redislock.tests;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.io.StringWriter;
import java.net.URI;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.time.LocalDate;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import javax.tools.JavaCompiler;
import javax.tools.JavaFileObject;
import javax.tools.SimpleJavaFileObject;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.io.TempDir;
import redislock.RedisLocks;

/** The examples of the pages: each compiles, and those that are no class of their own run. */
class ReadmeTest {
    @RegisterExtension
    static final redislock.test.LockServer SERVER = Server.of();

    private static final Pattern BLOCK = Pattern.compile("```java\\n(.*?)```", Pattern.DOTALL);

    /** The page of the helper, the front page, and the pages of the guide with examples that need this module's libraries. */
    private static final List<String> PAGES = List.of("clients/java/README.md", "README.md", "docs/guide/first-lock.md",
            "docs/guide/waiting.md", "docs/guide/readers-writers.md", "docs/guide/semaphores.md",
            "docs/guide/several-keys.md", "docs/guide/losing-a-lock.md", "docs/guide/recipes.md", "docs/guide/fencing.md",
            "docs/guide/guarded-writes.md", "docs/guide/sessions.md", "docs/guide/stores.md", "docs/guide/testing.md");

    /** What an example of a page other than the helper's need not import. */
    private static final String IMPORTS = String.join("\n", "import io.lettuce.core.RedisURI;", "import java.sql.PreparedStatement;", "import java.time.Duration;",
            "import java.util.*;", "import java.util.concurrent.*;", "import redislock.*;", "import redislock.lettuce.LettuceTransport;");

    /** A source in memory. */
    private static final class Source extends SimpleJavaFileObject {
        private final String text;

        Source(String name, String text) {
            super(URI.create("memory:///" + name + ".java"), Kind.SOURCE);
            this.text = text;
        }

        @Override
        public CharSequence getCharContent(boolean ignoresErrors) {
            return text;
        }
    }

    @Test
    void every_example_compiles_and_runs(@TempDir Path folder) throws Exception {
        List<JavaFileObject> sources = new ArrayList<>();
        List<String> runs = new ArrayList<>();
        List<String> again = new ArrayList<>();
        for (String page : PAGES) {
            List<MatchResult> blocks = BLOCK.matcher(Files.readString(Path.of(Server.ROOT, page))).results().toList();
            assertTrue(!blocks.isEmpty(), page);
            for (MatchResult found : blocks) {
                String block = found.group(1).replace("redis://127.0.0.1:6379", SERVER.url());
                String imports = String.join("\n", block.lines().filter(line -> line.startsWith("import ")).toList());
                String body = String.join("\n", block.lines().filter(line -> !line.startsWith("import ")).toList());
                if (body.strip().startsWith("class ")) {
                    sources.add(new Source(body.strip().split(" ")[1], block));
                    continue;
                }
                String name = "Example" + runs.size();
                // What a block does not make itself it is given.
                String given = body.contains("RedisLocks locks") ? "given" : "locks";
                String code = (imports.isEmpty() ? IMPORTS : imports) + "\npublic class " + name
                        + " { public static void run(redislock.RedisLocks " + given + ", java.sql.Connection db) throws Exception {\n" + body + "\n}}";
                sources.add(new Source(name, code));
                runs.add(name);
                // As on a second host.
                if (page.endsWith("/recipes.md")) again.add(name);
            }
        }
        JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
        StringWriter said = new StringWriter();
        String libraries = System.getProperty("surefire.test.class.path", System.getProperty("java.class.path"));
        List<String> options = List.of("-proc:none", "-Xlint:all,-try,-classfile", "-Werror", "-d", folder.toString(), "-cp", libraries);
        assertTrue(compiler.getTask(said, null, null, options, null, sources).call(), said::toString);
        try (URLClassLoader loader = new URLClassLoader(new URL[] {folder.toUri().toURL()});
                RedisLocks locks = Server.builder(Library.LETTUCE, SERVER.url()).build();
                Connection db = DriverManager.getConnection("jdbc:h2:mem:")) {
            db.createStatement().execute("CREATE TABLE pages (id text PRIMARY KEY, text text, highest_fence bigint)");
            db.createStatement().execute("INSERT INTO pages VALUES ('disk', '', 0)");
            PrintStream out = System.out;
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            LocalDate before = LocalDate.now();
            System.setOut(new PrintStream(printed, true, UTF_8));
            try {
                runs.addAll(again);
                for (String name : runs) loader.loadClass(name).getMethod("run", RedisLocks.class, Connection.class).invoke(null, locks, db);
            } finally {
                System.setOut(out);
            }
            String text = printed.toString(UTF_8);
            long days = ChronoUnit.DAYS.between(before, LocalDate.now()) + 1;
            long ran = text.lines().filter("once a day"::equals).count();
            assertTrue(0 < ran && ran <= days, text);
            assertEquals(2, text.lines().filter(line -> line.startsWith("leading with the fence ")).count(), text);
        }
        assertEquals(sources.size() - 1, runs.size() - again.size(), "one is a class of tests");
    }
}
