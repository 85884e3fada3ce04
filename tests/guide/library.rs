//! The clients that the page has, where this machine has them, and how their programs are run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use testbed::{file_from, say_not_run};

/// A client of the page that can be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Library {
    RedisPy,
    RedisPyAsyncio,
    ValkeyPy,
    NodeRedis,
    Ioredis,
    Iovalkey,
    RedisRs,
    RedisRsAsync,
    Redigo,
    GoRedis,
    Hiredis,
    Phpredis,
    Predis,
    RedisRb,
    GlidePython,
    GlidePythonSync,
    GlideNode,
    Jedis,
}

use Library::*;

impl Library {
    /// The heading of its section.
    pub(crate) fn heading(self) -> &'static str {
        match self {
            RedisPy | ValkeyPy => "redis-py",
            RedisPyAsyncio => "redis-py asyncio",
            NodeRedis => "node-redis",
            Ioredis | Iovalkey => "ioredis",
            RedisRs | RedisRsAsync => "redis-rs",
            Redigo => "Redigo",
            GoRedis => "go-redis",
            Hiredis => "hiredis",
            Phpredis => "PhpRedis",
            Predis => "Predis",
            RedisRb => "redis-rb",
            GlidePython | GlidePythonSync | GlideNode => "valkey-glide",
            Jedis => "Jedis",
        }
    }

    /// Its name in the table.
    pub(crate) fn row(self) -> &'static str {
        match self {
            ValkeyPy => "valkey-py",
            Iovalkey => "iovalkey",
            RedisRs => "redis-rs, blocking",
            RedisRsAsync => "redis-rs, async",
            GlidePython => "valkey-glide, Python",
            GlidePythonSync => "valkey-glide, Python sync",
            GlideNode => "valkey-glide, Node.js",
            other => other.heading(),
        }
    }

    /// The language of its example.
    pub(crate) fn language(self) -> &'static str {
        match self {
            RedisPy | RedisPyAsyncio | ValkeyPy | GlidePython | GlidePythonSync => "python",
            NodeRedis | Ioredis | Iovalkey | GlideNode => "js",
            RedisRs | RedisRsAsync => "rust",
            Redigo | GoRedis => "go",
            Hiredis => "c",
            Phpredis | Predis => "php",
            RedisRb => "ruby",
            Jedis => "java",
        }
    }

    /// The page's example as a program for this machine and this client, which may be one that the page names beside
    /// another.
    pub(crate) fn adapt(self, example: &str) -> String {
        match self {
            ValkeyPy => example.replace("import redis, ", "import valkey, ").replace("redis.Redis(", "valkey.Valkey("),
            GlidePythonSync => example.replace("from glide ", "from glide_sync ").replace("await ", ""),
            Iovalkey => example.replace("'ioredis'", "'iovalkey'"),
            // Debian has no Composer. Its package has a loader of its own.
            Predis => {
                let loader = "require 'Predis/Autoloader.php';\nPredis\\Autoloader::register();";
                example.replace("require 'vendor/autoload.php';", loader)
            }
            Jedis => {
                let (imports, lines) = example.split_once("\n\n").unwrap();
                let main = "public static void main(String[] words) throws Exception";
                format!("{imports}\nclass Program {{\n{main} {{\n{lines}}}\n}}\n")
            }
            _ => example.to_owned(),
        }
    }

    /// Whether this machine has it. If not, says that a test is not run.
    pub(crate) fn is_here(self, test: &str) -> bool {
        let there = match self {
            // These two have to be there: other tests need them, too.
            RedisPy | RedisPyAsyncio | NodeRedis | Ioredis | RedisRs | RedisRsAsync => true,
            ValkeyPy => succeeds(Command::new(python()).args(["-c", "import valkey"])),
            GlidePython => succeeds(Command::new(python()).args(["-c", "import glide"])),
            GlidePythonSync => succeeds(Command::new(python()).args(["-c", "import glide_sync"])),
            Iovalkey | GlideNode => self.node_modules().join(self.package()).exists(),
            Redigo => has_go("github.com/gomodule/redigo/redis"),
            GoRedis => has_go("github.com/redis/go-redis/v9"),
            Hiredis => has("cc") && Path::new("/usr/include/hiredis/hiredis.h").exists(),
            Phpredis => succeeds(Command::new("php").args(["-r", "exit(class_exists('Redis') ? 0 : 1);"])),
            Predis => succeeds(Command::new("php").args(["-r", "require 'Predis/Autoloader.php';"])),
            RedisRb => succeeds(Command::new("ruby").args(["-e", "require 'redis'"])),
            Jedis => has("java") && jars().exists(),
        };
        let word = if ["go", "java"].contains(&self.language()) { self.language() } else { "client-libraries" };
        if !there {
            say_not_run(test, &format!("this machine has no {}: tools/install.sh {word}", self.row()));
        }
        there
    }

    /// Its name in npm.
    fn package(self) -> &'static str {
        match self {
            NodeRedis => "redis",
            Ioredis => "ioredis",
            Iovalkey => "iovalkey",
            _ => "@valkey/valkey-glide",
        }
    }

    /// Where npm has put it.
    pub(crate) fn node_modules(self) -> PathBuf {
        match self {
            NodeRedis | Ioredis => node().parent().and_then(Path::parent).unwrap().join("node_modules"),
            _ => file_from("REDIS_LOCK_CLIENT_LIBRARIES", "target/client-libraries").join("node_modules"),
        }
    }

    /// Makes a command of a program in a folder: compiles it where that is needed.
    pub(crate) fn command(self, text: &str, folder: &Path) -> Command {
        let file = folder.join(format!("program.{}", self.ending()));
        fs::write(&file, text).unwrap();
        match self.language() {
            "python" => with(python(), &file),
            "js" => {
                fs::write(&file, self.requiring(text)).unwrap();
                with(node(), &file)
            }
            "php" => with("php".into(), &file),
            "ruby" => with("ruby".into(), &file),
            "c" => {
                let program = folder.join("program");
                let mut compiler = Command::new("cc");
                compiler.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(&file).arg("-lhiredis");
                compiled(&mut compiler);
                Command::new(program)
            }
            "go" => {
                let program = folder.join("program");
                let mut compiler = Command::new(root().join("tools/go.sh"));
                compiler.args(["build", "-o"]).arg(&program).arg(&file);
                compiled(&mut compiler);
                Command::new(program)
            }
            "java" => {
                let mut command = Command::new("java");
                command.arg("-cp").arg(jars().join("*")).arg(&file);
                command
            }
            language => unreachable!("{language} runs in this process"),
        }
    }

    fn ending(self) -> &'static str {
        match self.language() {
            "python" => "py",
            "js" => "mjs",
            "ruby" => "rb",
            other => other,
        }
    }

    /// The imports of packages of npm as calls of `require`, which can be told where they lie.
    fn requiring(self, text: &str) -> String {
        let home = self.node_modules();
        let line = |line: &str| match line.strip_prefix("import ").and_then(|rest| rest.split_once(" from ")) {
            Some((names, package)) if !package.contains("node:") => {
                format!("const {names} = createRequire('{}/')({});", home.display(), package.trim_end_matches(';'))
            }
            _ => line.to_owned(),
        };
        let lines: Vec<String> = text.lines().map(line).collect();
        format!("import {{ createRequire }} from 'node:module';\n{}\n", lines.join("\n"))
    }
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn python() -> PathBuf {
    file_from("REDIS_LOCK_PYTHON", "target/venv/bin/python")
}

pub(crate) fn node() -> PathBuf {
    file_from("REDIS_LOCK_NODE", "target/node/bin/node")
}

/// Where Maven puts what the helper for Java needs: tools/java.sh agent.
fn jars() -> PathBuf {
    file_from("REDIS_LOCK_JAVA_AGENT", "target/java/redislock-agent").join("libraries")
}

fn with(interpreter: PathBuf, file: &Path) -> Command {
    let mut command = Command::new(interpreter);
    command.arg(file);
    command
}

fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

fn has_go(package: &str) -> bool {
    succeeds(Command::new(root().join("tools/go.sh")).args(["list", package]))
}

fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).exists())
}

fn compiled(compiler: &mut Command) {
    let output = compiler.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
