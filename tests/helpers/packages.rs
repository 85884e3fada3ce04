//! Each helper as a package: built from the checkout, installed into an empty place, and used there.

use crate::language::{Language, node, python};
use crate::run::{copy_of, passes, root};
use crate::stage::Play;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use testbed::{Server, file_from, wait_for};

/// What a program that was given a package did: it took the lock `report`, printed the fence, and gave the lock back.
fn took_a_lock(server: &Server, printed: &str) {
    let fence: i64 = printed.trim().parse().unwrap_or_else(|_| panic!("no fence: {printed}"));
    let mut conn = server.connect();
    wait_for("the lock to be given back", || conn.lock_info("report").is_none());
    assert!(conn.int(&["LOCK.ACQUIRE", "report", "next"]).unwrap() > fence);
}

/// The licence, which goes with each copy of what it is for.
fn licence() -> String {
    fs::read_to_string(root().join("LICENSE")).unwrap()
}

/// A wheel or a jar has the licence, in one place.
pub(crate) fn has_the_licence(archive: &Path) {
    let read = "import sys, zipfile\n\
        archive = zipfile.ZipFile(sys.argv[1])\n\
        for name in archive.namelist():\n    \
            if name.endswith('/LICENSE'): print(archive.read(name).decode(), end='')";
    let found = passes(Command::new(python()).args(["-c", read]).arg(archive));
    assert_eq!(found, licence(), "{}", archive.display());
}

#[test]
fn the_wheel_of_python_is_built_installed_and_used() {
    let place = tempfile::tempdir().unwrap();
    let pip = ["-m", "pip", "--disable-pip-version-check", "--quiet"];
    let from = copy_of("clients/python", place.path());
    let wheels = place.path().join("wheels");
    passes(Command::new(python()).args(pip).args(["wheel", "--no-deps", "--wheel-dir"]).args([&wheels, &from]));
    let site = place.path().join("site");
    let wheel = only_file(&wheels);
    has_the_licence(&wheel);
    // PyPI refuses a page that it cannot show.
    let mut twine = Command::new(python());
    twine.args(["-m", "twine", "check", "--strict"]).arg(&wheel);
    passes(twine.env("PYTHONPATH", file_from("REDIS_LOCK_TWINE", "target/twine")));
    // The client library stands where make put it.
    passes(Command::new(python()).args(pip).args(["install", "--no-deps", "--target"]).args([&site, &wheel]));

    let server = Server::new();
    let program = "import sys, redis, redis_lock_client as helper\n\
        assert helper.__file__.startswith(sys.argv[1]), helper.__file__\n\
        with helper.Lock(redis.Redis(port=int(sys.argv[2])), 'report') as lock: print(lock.fence)";
    let mut command = Command::new(python());
    command.args(["-c", program]).arg(&site).arg(server.port().to_string());
    took_a_lock(&server, &passes(command.env("PYTHONPATH", &site).current_dir(place.path())));
    let others = [Server::new(), Server::new()];
    for program in programs("clients/python/README.md", "python", &[&server, &others[0], &others[1]]) {
        let mut command = Command::new(python());
        passes(command.args(["-c", &program]).env("PYTHONPATH", &site).current_dir(place.path()));
    }
}

#[test]
fn the_tarball_of_node_is_built_installed_and_used() {
    let place = tempfile::tempdir().unwrap();
    let path = format!("{}:{}", node().parent().unwrap().display(), std::env::var("PATH").unwrap());
    let npm = || {
        let mut command = Command::new("npm");
        command.env("PATH", &path).args(["--silent", "--no-audit", "--no-fund", "--prefer-offline"]);
        command
    };
    let from = copy_of("clients/node", place.path());
    let tarballs = place.path().join("tarballs");
    let empty = place.path().join("empty");
    fs::create_dir_all(&tarballs).unwrap();
    fs::create_dir_all(&empty).unwrap();
    passes(npm().arg("pack").arg("--pack-destination").arg(&tarballs).current_dir(&from));
    let libraries = [("redis", "node_redis="), ("ioredis", "ioredis=")].map(|(name, pinned)| {
        let version = version_in(&root().join("tools/install.sh"), pinned);
        format!("{name}@{version}")
    });
    passes(npm().arg("install").arg(only_file(&tarballs)).args(libraries).current_dir(&empty));
    let installed = |name| fs::read_to_string(empty.join("node_modules/redis-lock-client").join(name)).unwrap();
    assert_eq!(installed("LICENSE"), licence());
    assert!(installed("package.json").contains("\n  \"keywords\": ["), "npm finds it by its name alone");

    let server = Server::new();
    let program = "import { createClient } from 'redis';\n\
        import { Locks } from 'redis-lock-client';\n\
        const client = await createClient({ url: `redis://127.0.0.1:${process.argv[2]}` }).connect();\n\
        const locks = new Locks(client);\n\
        await locks.using('report', async (signal, lock) => console.log(String(lock.fence)));\n\
        await client.close();\n";
    fs::write(empty.join("use.mjs"), program).unwrap();
    let printed = passes(Command::new(node()).arg("use.mjs").arg(server.port().to_string()).current_dir(&empty));
    took_a_lock(&server, &printed);
    // How older projects find types: they do not read "exports".
    let types = "import { Locks } from 'redis-lock-client';\nimport { FakeServer } from 'redis-lock-client/testing';\n\
        export const used = new Locks(new FakeServer());\n";
    fs::write(empty.join("use.ts"), types).unwrap();
    let typescript = root().join("target/typescript/node_modules");
    let options =
        ["--noEmit", "--strict", "--target", "es2022", "--module", "commonjs", "--moduleResolution", "node10"];
    let mut tsc = Command::new(node());
    tsc.arg(typescript.join("typescript/bin/tsc")).args(options).args(["--types", "node", "--typeRoots"]);
    passes(tsc.arg(typescript.join("@types")).arg("use.ts").current_dir(&empty));
    for program in programs("clients/node/README.md", "js", &[&server]) {
        fs::write(empty.join("use.mjs"), program).unwrap();
        let mut command = Command::new(node());
        command.arg("use.mjs").env("REDIS_URL", format!("redis://127.0.0.1:{}", server.port()));
        passes(command.current_dir(&empty));
    }
}

#[test]
fn the_module_of_go_is_used_by_another() {
    Play::scenario(Language::GoRedis, "packages::the_module_of_go_is_used_by_another", |_| {
        let place = tempfile::tempdir().unwrap();
        let from = copy_of("clients/go", place.path());
        let own = place.path().join("own");
        fs::create_dir_all(&own).unwrap();
        let from = from.display();
        let module = format!(
            "module own\n\ngo 1.24\n\nrequire (\n\tredis-lock.example/clients/go v0.0.0\n\
            \tredis-lock.example/clients/go/lockredigo v0.0.0\n\tgithub.com/gomodule/redigo v1.9.3\n)\n\n\
            replace redis-lock.example/clients/go => {from}\n\n\
            replace redis-lock.example/clients/go/lockredigo => {from}/lockredigo\n",
        );
        fs::write(own.join("go.mod"), module).unwrap();
        // The checksums of the tests, which have the same versions.
        fs::copy(root().join("clients/go/tests/go.sum"), own.join("go.sum")).unwrap();
        let program = "package main\n\nimport (\n\t\"context\"\n\t\"fmt\"\n\t\"os\"\n\n\
            \t\"github.com/gomodule/redigo/redis\"\n\t\"redis-lock.example/clients/go/lockredigo\"\n\
            \t\"redis-lock.example/clients/go/redislock\"\n)\n\n\
            func main() {\n\
            \tpool := &redis.Pool{Dial: func() (redis.Conn, error) { return redis.Dial(\"tcp\", os.Args[1]) }}\n\
            \terr := redislock.New(lockredigo.New(pool)).Do(context.Background(), \"report\",\n\
            \t\tfunc(_ context.Context, hold *redislock.Hold) error { fmt.Println(hold.Fence()); return nil })\n\
            \tif err != nil {\n\t\tpanic(err)\n\t}\n}\n";
        fs::write(own.join("main.go"), program).unwrap();

        let server = Server::new();
        let mut command = Command::new(root().join("tools/go.sh"));
        // Not a part of the repository's own workspace.
        command.args(["run", "."]).arg(format!("127.0.0.1:{}", server.port())).env("GOWORK", "off");
        took_a_lock(&server, &passes(command.current_dir(&own)));
    });
}

#[test]
fn the_crate_is_packaged_and_used_from_an_empty_project() {
    let place = tempfile::tempdir().unwrap();
    // Beside the tests, so that a second run finds what the first has built.
    let target = root().join("target/packages");
    let cargo = || {
        let mut command = Command::new(option_env!("CARGO").unwrap_or("cargo"));
        command.env("CARGO_TARGET_DIR", &target);
        command
    };
    // The program below builds it.
    let package = ["package", "--quiet", "--locked", "--allow-dirty", "--no-verify", "--package", "redis-lock-client"];
    passes(cargo().args(package));
    let name = format!("redis-lock-client-{}", version_in(&root().join("Cargo.toml"), "version = "));
    let tar = target.join("package").join(format!("{name}.crate"));
    passes(Command::new("tar").arg("-xzf").arg(&tar).arg("-C").arg(place.path()));
    assert_eq!(fs::read_to_string(place.path().join(&name).join("LICENSE")).unwrap(), licence());

    let own = place.path().join("own");
    let pages = own.join("src/bin");
    fs::create_dir_all(&pages).unwrap();
    let manifest = format!(
        "[package]\nname = \"own\"\nversion = \"1.0.0\"\nedition = \"2024\"\ndefault-run = \"own\"\n\n\
        [features]\npages = [\"redis-lock-client/tokio\", \"redis-lock-client/testing\", \
        \"redis-lock-client/opentelemetry\", \"dep:tokio\"]\n\n\
        [dependencies]\nredis-lock-client = {{ path = \"../{name}\" }}\n\
        tokio = {{ version = \"1\", features = [\"macros\", \"rt-multi-thread\"], optional = true }}\n"
    );
    fs::write(own.join("Cargo.toml"), manifest).unwrap();
    fs::copy(root().join("Cargo.lock"), own.join("Cargo.lock")).unwrap();
    let program = "fn main() -> Result<(), redis_lock_client::Error> {\n\
        let client = redis_lock_client::Client::open(std::env::args().nth(1).unwrap())?;\n\
        let guard = client.lock(\"report\")?;\n\
        println!(\"{}\", guard.fence());\n\
        guard.release()\n}\n";
    fs::write(own.join("src/main.rs"), program).unwrap();

    let server = Server::new();
    let url = format!("redis://127.0.0.1:{}", server.port());
    took_a_lock(&server, &passes(cargo().args(["run", "--quiet", "--"]).arg(url).current_dir(&own)));

    let others = [Server::new(), Server::new()];
    let servers = [&server, &others[0], &others[1]];
    let readme = programs("clients/rust/README.md", "rust,no_run", &[]);
    let guide = programs("docs/guide/quorum.md", "rust", &[]).into_iter();
    // The guide leaves out what is around its lines.
    let guide =
        guide.map(|lines| format!("fn main() -> Result<(), redis_lock_client::Error> {{\n{lines}\nOk(())\n}}\n"));
    let programs: Vec<String> = readme.into_iter().chain(guide).map(|text| on_this_machine(text, &servers)).collect();
    for (at, program) in programs.iter().enumerate() {
        fs::write(pages.join(format!("page{at}.rs")), program).unwrap();
    }
    passes(cargo().args(["build", "--quiet", "--bins", "--features", "pages"]).current_dir(&own));
    for (at, program) in programs.iter().enumerate() {
        let granted = || servers.map(|server| server.connect().info_number("lock", "lock_granted"));
        let before = granted();
        passes(&mut Command::new(target.join(format!("debug/page{at}"))));
        // The one that only shows how to name servers asks none of them.
        let asks_none = program.contains("FakeServer") || program.contains("Client::sentinel");
        assert!(asks_none || granted()[0] > before[0], "it has taken no lock:\n{program}");
        assert!(
            !program.contains("Quorum") || (1..3).all(|at| granted()[at] > before[at]),
            "of one server alone:\n{program}"
        );
    }
}

/// A program for the first of these servers instead of that of this machine, and for all of them instead of those of a
/// quorum at 10.0.0.1, 10.0.0.2 and so on.
fn on_this_machine(program: String, servers: &[&Server]) -> String {
    let of = |server: &Server| format!("redis://127.0.0.1:{}\"", server.port());
    let usual = program.replace("redis://127.0.0.1:6379\"", &of(servers[0]));
    servers.iter().zip(1..).fold(usual, |text, (server, at)| {
        let page = format!("redis://10.0.0.{at}");
        text.replace(&format!("{page}:6379\""), &of(server)).replace(&format!("{page}\""), &of(server))
    })
}

/// The programs in a language that a page has, for these servers instead of those at the ports from 6379 on.
fn programs(page: &str, language: &str, servers: &[&Server]) -> Vec<String> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let begin = format!("\n```{language}\n");
    let blocks = text.split(&begin).skip(1).map(|rest| rest.split("\n```").next().unwrap());
    // By way of a name for each, since a port may look like another one of the page.
    let named = |text: String, (at, _): (usize, _)| text.replace(&(6379 + at).to_string(), &format!("<port {at}>"));
    let real = |text: String, (at, server): (usize, &&Server)| {
        text.replace(&format!("<port {at}>"), &server.port().to_string())
    };
    let numbered = || servers.iter().enumerate();
    let on_servers = |block: &str| numbered().fold(numbered().fold(block.to_owned(), named), real);
    let programs: Vec<String> = blocks.map(on_servers).collect();
    assert!(!programs.is_empty(), "{page} has no program in {language}");
    programs
}

fn only_file(folder: &Path) -> PathBuf {
    let files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    file.clone()
}

/// What stands behind this word in a file, without quotes.
pub(crate) fn version_in(file: &Path, word: &str) -> String {
    let text = fs::read_to_string(file).unwrap();
    let found = text.lines().find_map(|line| line.strip_prefix(word)).unwrap_or_else(|| panic!("no {word}"));
    found.split_whitespace().next().unwrap().trim_matches('"').to_owned()
}
