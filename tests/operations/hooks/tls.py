"""What the recipes of docs/operations/tls.md begin with, and the programs of that page, each run over TLS."""

import os
import re
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/operations/tls.md"
# What reads pages and brings machines: ../recipes, the program that runs.
recipes = sys.modules["__main__"]
LOGGED_IN = "REDISCLI_AUTH=change-me redis-cli --tls --cacert ca.crt "


def first_recipe():
    return next(recipe for recipe in recipes.recipes_of(PAGE) if recipe.heading == "A server with TLS")


def with_tls(machine, authority=None):
    """Types the first recipe of the page on a machine; the certificate is by the authority of another one."""
    for block in first_recipe().blocks:
        text = block.text.replace("10.0.0.1", machine.address)
        if block.kind == "conf":
            machine.write("/etc/redis/redis.conf", text + "\n", add=True)
        elif block.kind == "sh":
            if authority and "-keyout ca.key" in text:
                for name in ("ca.crt", "ca.key"):
                    (machine.folder / "home" / name).write_bytes((authority.folder / "home" / name).read_bytes())
                text = text[text.index("openssl req -newkey") :]
            machine.must(text)


def before(stage):
    before_a_server_with_tls(stage)
    with_tls(stage.first)


def before_a_server_with_tls(stage):
    # A user redis comes with the package of a server, which may not be installed here.
    stage.program("chown", '#!/bin/sh\n[ "$1 $2" = "-R redis:redis" ] && [ -d "$3" ]\n')
    stage.loaded()


def after_a_server_with_tls(stage):
    # What could go wrong: the port still answers without TLS, without a password, or to another authority's friends.
    home = stage.first
    assert "NOAUTH" in home.bash("env -u REDISCLI_AUTH redis-cli --tls --cacert ca.crt PING")[1]
    assert home.bash("REDISCLI_AUTH=change-me redis-cli PING")[0] != 0
    code, said = home.bash("REDISCLI_AUTH=change-me redis-cli --tls --cacert /etc/ssl/certs/ca-certificates.crt PING")
    assert code != 0 and "PONG" not in said, said


def before_a_replica_over_tls(stage):
    before_a_server_with_tls(stage)
    with_tls(stage.first)
    with_tls(stage.machines["10.0.0.2"], stage.first)


def after_a_replica_over_tls(stage):
    # What could go wrong: the link is up, and without TLS.
    # On one connection: WAIT waits for what its own has written.
    stage.first.must("printf 'LOCK.ACQUIRE report alice PX 60000\\nWAIT 1 20000\\n' | " + LOGGED_IN)
    replica = stage.machines["10.0.0.2"]
    assert "alice" in replica.must(LOGGED_IN + "LOCK.INFO report | cat")
    assert "tls-replication yes" in replica.read("/etc/redis/redis.conf")


def before_a_new_certificate(stage):
    before(stage)
    home = stage.first
    stage.old = home.must(
        "openssl s_client -connect 127.0.0.1:6379 </dev/null 2>/dev/null | openssl x509 -serial -noout"
    )
    lines = [block.text for block in first_recipe().blocks if block.kind == "sh"][0]
    home.must(lines[lines.index("openssl req -newkey") :])


def after_a_new_certificate(stage):
    # What could go wrong: the server goes on with the old one until a restart.
    now = stage.first.must(
        "openssl s_client -connect 127.0.0.1:6379 </dev/null 2>/dev/null | openssl x509 -serial -noout"
    )
    assert now.startswith("serial=") and now != stage.old, (now, stage.old)


def after_certificates_for_clients(stage):
    # What could go wrong: a client without one is let in all the same; or one of the page's options is wrong.
    assert stage.first.bash(LOGGED_IN + "PING")[0] != 0
    program = block_of("Python", "python").replace('ssl_ca_certs="ca.crt"', CLIENT_OF_PYTHON)
    runs_over_tls(stage, "program.py", program, f"PYTHONPATH={ROOT}/clients/python {python()} program.py", CERTIFICATE)
    program = block_of("Node.js", "js").replace("readFileSync('ca.crt') }", CLIENT_OF_NODE)
    runs_over_tls(stage, *in_node(stage, program), CERTIFICATE)


CERTIFICATE = "--cert app.crt --key app.key "
CLIENT_OF_PYTHON = 'ssl_ca_certs="ca.crt", ssl_certfile="app.crt", ssl_keyfile="app.key"'
CLIENT_OF_NODE = "readFileSync('ca.crt'), cert: readFileSync('app.crt'), key: readFileSync('app.key') }"


def block_of(heading, kind):
    """The program below a heading of the page."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.search(rf"```{kind}\n(.*?)```", section, re.S)[1]


def python():
    return os.environ.get("REDIS_LOCK_PYTHON") or ROOT / "target/venv/bin/python"


def node():
    return os.environ.get("REDIS_LOCK_NODE") or ROOT / "target/node/bin/node"


def runs_over_tls(stage, name, program, command, certificate=""):
    """Runs a program while another owner has the lock: it waits, on a connection of its own, until that one leaves."""
    home = stage.first
    (home.folder / "home" / name).write_text(home.typed(program))
    cli = LOGGED_IN + certificate
    fields = cli + r"INFO lock | grep -oE 'lock_(queued|granted|released):[0-9]+'"
    before = counts(home.must(fields))
    home.must(cli + "LOCK.ACQUIRE report other PX 600000")
    with ThreadPoolExecutor() as threads:
        runs = threads.submit(home.must, command)
        while counts(home.must(fields))["lock_queued"] == before["lock_queued"] and not runs.done():
            time.sleep(0.1)
        home.must(cli + "LOCK.RELEASE report other")
        said = runs.result()
    assert re.search(r"only one is here, with the fence \d{16}\n", said), said
    after = counts(home.must(fields))
    grown = {field: after[field] - before[field] for field in after}
    assert grown["lock_granted"] == grown["lock_released"] == 2 and grown["lock_queued"] >= 1, grown


def counts(text):
    return {name: int(number) for name, number in re.findall(r"(\w+):(\d+)", text)}


def on_a_server(name, play):
    with recipes.Stage(f"tls::{name}", ["10.0.0.1"]) as stage:
        before(stage)
        play(stage)


def test_the_program_in_python_waits_and_holds_over_tls():
    program = block_of("Python", "python")
    command = f"PYTHONPATH={ROOT}/clients/python {python()} program.py"
    on_a_server("python", lambda stage: runs_over_tls(stage, "program.py", program, command))


def in_node(stage, program):
    """The page imports packages by their names; here they lie in target/."""
    helper = ROOT / "target/helpers/node"
    modules = stage.first.folder / "home/node_modules"
    if not modules.exists():
        modules.mkdir()
        for package in ("redis", "ioredis", "@redis"):
            (modules / package).symlink_to(ROOT / "target/node/node_modules" / package)
        package = modules / "redis-lock-client"
        shutil.copytree(helper, package)
        (package / "package.json").write_text('{ "type": "module", "exports": "./redis-lock.js" }')
    return "program.mjs", program, f"{node()} program.mjs"


def test_the_programs_for_node_wait_and_hold_over_tls():
    def play(stage):
        program = block_of("Node.js", "js")
        runs_over_tls(stage, *in_node(stage, program))
        # The line for ioredis that the page has beside.
        connect = re.search(r"`(new Redis\(url, .*\))`", PAGE.read_text())[1]
        program = re.sub(r"await createClient\(.*\)\.connect\(\)", lambda _: connect, program)
        program = program.replace("{ createClient } from 'redis'", "{ Redis } from 'ioredis'")
        runs_over_tls(stage, *in_node(stage, program.replace("client.close()", "client.quit()")))

    on_a_server("node", play)


def test_the_program_in_go_waits_and_holds_over_tls():
    missing = ROOT / "target/helpers/go-is-missing"
    if missing.exists():
        raise recipes.NotHere(missing.read_text().strip())

    def play(stage):
        build = f'{ROOT}/tools/go.sh build -o "$home/program" "$home/main.go"'
        command = f"home=$PWD && cd {ROOT}/clients/go/tests && {build}"
        (stage.first.folder / "home/main.go").write_text(stage.first.typed(block_of("Go", "go")))
        stage.first.must(command)
        runs_over_tls(stage, "main.go", block_of("Go", "go"), "./program")

    on_a_server("go", play)


def test_the_program_in_java_waits_and_holds_over_tls():
    missing = ROOT / "target/helpers/java-is-missing"
    if missing.exists():
        raise recipes.NotHere(missing.read_text().strip())
    built = Path(os.environ.get("REDIS_LOCK_JAVA_AGENT") or ROOT / "target/java/redislock-agent")
    imports, lines = block_of("Java", "java").split("\n\n", 1)
    main = "public static void main(String[] words) throws Exception"
    program = f"{imports}\nclass Program {{\n{main} {{\n{lines}}}\n}}\n"
    command = f"java -cp '{built}/libraries/*' Program.java"
    on_a_server("java", lambda stage: runs_over_tls(stage, "Program.java", program, command))


def test_the_program_in_rust_waits_and_holds_over_tls():
    source = (ROOT / "clients/rust/examples/tls.rs").read_text()
    assert source.split("\n\n", 1)[1] == block_of("Rust", "rust"), "the example is not the program of the page"
    program = os.environ.get("REDIS_LOCK_TLS_EXAMPLE") or ROOT / "target/debug/examples/tls"
    url = re.search(r"`(rediss://[^`]*)`:\n", PAGE.read_text())[1]
    on_a_server(
        "rust",
        lambda stage: runs_over_tls(
            stage, "url", url, f'REDIS_LOCK_URL=$(cat url) SSL_CERT_FILE=$PWD/ca.crt "{program}"'
        ),
    )
