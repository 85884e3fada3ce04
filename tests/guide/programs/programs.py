"""Runs a program of docs/guide that needs a library or a store, and sees that it does what its page says.

programs.py NAME FILE: the program in FILE uses the server on 127.0.0.1:REDIS_LOCK_PORT. Says why and ends with 77 if
this machine lacks something.
"""

import contextlib
import functools
import importlib.util
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import redis

# For what never comes, not for a busy machine.
PATIENCE = 300
NOBODY = 65534
# Where tools/install.sh unpacks databases.
DATABASES = Path(__file__).resolve().parents[3] / "target/databases"


def not_run(why):
    print(why)
    sys.exit(77)


def wait_for(what, condition):
    give_up = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > give_up:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.02)


@contextlib.contextmanager
def held_by_another(key):
    with redis.Redis(port=int(os.environ["REDIS_LOCK_PORT"])) as client:
        assert client.execute_command("LOCK.ACQUIRE", key, "another", "PX", 600_000)
        yield
        client.execute_command("LOCK.RELEASE", key, "another")


def celery(file):
    """A task that others keep waiting is tried again, in a worker that has forked."""
    with tempfile.TemporaryDirectory() as folder:
        # A worker on a busy machine would take its children for dead after four seconds.
        patient = f"\napp.conf.update(worker_proc_alive_timeout={PATIENCE}, broker_connection_timeout={PATIENCE})\n"
        Path(folder, "shop.py").write_text(Path(file).read_text() + patient)
        sys.path.insert(0, folder)
        import shop  # noqa: PLC0415

        command = [sys.executable, "-m", "celery", "-A", "shop", "worker", "--concurrency", "2"]
        options = ["--pool", "prefork", "--without-gossip", "--without-mingle", "--loglevel", "ERROR"]
        worker = subprocess.Popen(command + options, cwd=folder)
        try:
            with held_by_another("report:monday"):
                task = shop.report.delay("monday")
                wait_for("a retry", lambda: task.state == "RETRY")
            fences = [task.get(PATIENCE)] + [
                one.get(PATIENCE) for one in [shop.report.delay("monday") for _ in range(2)]
            ]
            assert len(set(fences)) == len(fences), fences
        finally:
            worker.send_signal(signal.SIGTERM)
            try:
                worker.wait(PATIENCE)
            finally:
                worker.kill()


def django(file):
    """The view answers with the fence, and at last with 503 while others have the lock."""
    import django as framework  # noqa: PLC0415
    from django.conf import settings  # noqa: PLC0415
    from django.urls import path  # noqa: PLC0415

    settings.configure(ROOT_URLCONF=[], ALLOWED_HOSTS=["*"])
    framework.setup()
    hasty = Path(file).read_text()
    assert "wait=1)" in hasty
    Path(file).write_text(hasty.replace("wait=1)", f"wait={PATIENCE})"))
    patient = runpy.run_path(file)["report"]
    Path(file).write_text(hasty)
    views = path("reports/<day>", runpy.run_path(file)["report"]), path("patient/<day>", patient)
    settings.ROOT_URLCONF = views
    from django.test import Client  # noqa: PLC0415

    site = Client()

    def refuses():
        # A server that answers too late is another error.
        with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
            refused = site.get("/reports/monday")
            assert (refused.status_code, refused["Retry-After"]) == (503, "5")
            return True

    with held_by_another("report:monday"):
        wait_for("a refusal", refuses)
    for _ in range(2):
        assert site.get("/patient/monday").content.startswith(b"fence ")


def redbeat(file):
    """The second beat waits in the queue, and has the lock when the first one ends. No tick adds to its time."""
    often = "\napp.conf.update(beat_max_loop_interval=0.05, redbeat_lock_timeout=600)\n"
    client = redis.Redis(port=int(os.environ["REDIS_LOCK_PORT"]), protocol=3)
    with client, tempfile.TemporaryDirectory() as folder:
        Path(folder, "shop.py").write_text(Path(file).read_text() + often)

        def lock():
            info = client.execute_command("LOCK.INFO", "redbeat::lock")
            return info and info | info[b"holders"][0]

        def ticks():
            return client.info("commandstats").get("cmdstat_lock.extend", {"calls": 0})["calls"]

        def begin():
            return subprocess.Popen([sys.executable, "-m", "celery", "-A", "shop", "beat"], cwd=folder)

        with begin() as first:
            try:
                wait_for("the first beat", lock)
                owner, before = lock()[b"owner"], ticks()
                with begin() as second:
                    try:
                        wait_for("a beat in the queue", lambda: lock()[b"waiters"])
                        wait_for("some ticks", lambda: ticks() > before + 5)
                        assert lock()[b"owner"] == owner
                        assert lock()[b"ttl_ms"] <= 600_000
                        first.terminate()
                        wait_for("the second beat", lambda: (lock() or {b"owner": owner})[b"owner"] != owner)
                        before = ticks()
                        wait_for("its ticks", lambda: ticks() > before + 2)
                    finally:
                        second.terminate()
            finally:
                first.terminate()
        assert lock() is None


def django_redis(file):
    """The cache's lock is the helper's: it keeps out others, ends by itself, and can be extended."""
    from django.conf import settings  # noqa: PLC0415

    settings.configure(CACHES=runpy.run_path(file)["CACHES"])
    from django.core.cache import cache  # noqa: PLC0415
    from redis.exceptions import LockNotOwnedError  # noqa: PLC0415

    cache.set("price", 7)
    with cache.lock("report", timeout=PATIENCE) as lock:
        assert lock.fence
        assert lock.extend(PATIENCE)
        assert not cache.lock("report", timeout=PATIENCE).acquire(blocking=False)
    cache.lock("report", timeout=0.5).acquire()
    with cache.lock("report", timeout=PATIENCE, blocking_timeout=PATIENCE) as lock:
        assert lock.owned()
        cache.client.get_client().execute_command("LOCK.BREAK", cache.make_key("report"))
        with contextlib.suppress(LockNotOwnedError):
            lock.extend(1)
            raise AssertionError("a lost lock was extended")
        with contextlib.suppress(LockNotOwnedError):
            lock.release()
            raise AssertionError("a lost lock was released")
        assert lock.acquire()
    assert cache.get("price") == 7


@contextlib.contextmanager
def as_nobody():
    """A folder, and the user that a server runs as there: databases do not run as root."""
    user = {"user": NOBODY, "group": NOBODY} if os.getuid() == 0 else {}
    with tempfile.TemporaryDirectory() as folder:
        if user:
            os.chown(folder, NOBODY, NOBODY)
        yield folder, user


@contextlib.contextmanager
def database(init, command, ready, stop):
    """A server that has said that it is ready. In both commands {} is the folder that it has."""
    with as_nobody() as (folder, user):
        init, command = ([word.format(folder) for word in words] for words in (init, command))
        subprocess.run(init, cwd=folder, check=True, stdout=subprocess.PIPE, **user)
        with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, **user) as server:
            try:
                said = []
                for line in server.stderr:
                    said.append(line)
                    if ready in line:
                        break
                else:
                    raise AssertionError("".join(said))
                threading.Thread(target=server.stderr.read, daemon=True).start()
                yield folder
            finally:
                server.send_signal(stop)


def check_table(page, row, waits, overtake):
    """A late write changes no row, also if it came first and waited for the row. One that is repeated is none."""
    mine = ("my page", page["lock"].fences[0])
    assert row() == mine
    assert page["write"](mine[1], "my page")
    assert not page["write"](mine[1] - 1, "late")
    assert row() == mine
    with overtake:
        wrote = []
        late = threading.Thread(target=lambda: wrote.append(page["write"](mine[1], "late")))
        late.start()
        wait_for("the row to be waited for", waits)
    late.join()
    assert wrote == [False]
    assert row() == ("newest", mine[1] + 1)


NEWEST = "UPDATE pages SET text = 'newest', highest_fence = highest_fence + 1"


def find(what, pattern):
    """The program of a database: that of tools/install.sh, or the newest of this machine."""
    for root in (DATABASES, Path("/")):
        found = sorted(root.glob(pattern), key=lambda path: [int(part) for part in path.parts if part.isdigit()])
        if found and root == DATABASES:
            if os.getuid() == 0 and not all(path.stat().st_mode & 0o001 for path in DATABASES.parents):
                not_run(f"{what} does not run as root, and no other user sees {DATABASES}")
            # Of what it needs, it brings what this machine lacks.
            os.environ["LD_LIBRARY_PATH"] = ":".join(map(str, DATABASES.glob("**/lib/*-linux-gnu")))
        if found:
            return found[-1]
    return shutil.which(Path(pattern).name) or not_run(f"this machine has no {what}: tools/install.sh databases")


def postgresql(file):
    import psycopg  # noqa: PLC0415

    program = find("PostgreSQL", "usr/lib/postgresql/*/bin/postgres")
    init = [
        str(Path(program).resolve().with_name("initdb")),
        "-D",
        "data",
        "-U",
        "postgres",
        "-A",
        "trust",
        "--no-sync",
    ]
    init += ["--locale=C", "-E", "UTF8"]
    command = [str(program), "-D", "data", "-k", "{}", "-c", "listen_addresses="]
    with database(init, command, "ready to accept connections", signal.SIGQUIT) as folder:
        os.environ.update(PGHOST=folder, PGUSER="postgres")
        with psycopg.connect("dbname=postgres", autocommit=True) as admin:
            admin.execute("CREATE DATABASE shop")
        page = runpy.run_path(file)
        with page["db"], psycopg.connect("dbname=shop", autocommit=True) as eye:

            def row():
                return eye.execute("SELECT text, highest_fence FROM pages WHERE id = 'disk'").fetchone()

            def waits():
                asked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                return eye.execute(asked).fetchone()[0] == 1

            @contextlib.contextmanager
            def overtake():
                with psycopg.connect("dbname=shop") as other:
                    other.execute(NEWEST)
                    yield

            check_table(page, row, waits, overtake())


def mariadb(file):
    import pymysql  # noqa: PLC0415

    program = find("MariaDB", "usr/sbin/mariadbd")
    base = Path(program).resolve().parents[1]
    data = ["--no-defaults", f"--basedir={base}", "--datadir={}/data"]
    init = [str(base / "bin/mariadb-install-db"), *data, "--auth-root-authentication-method=normal", "--skip-test-db"]
    command = [str(program), *data, "--skip-networking", "--socket={}/socket"]
    with database(init, command, "ready for connections", signal.SIGTERM) as folder:
        connect = functools.partial(pymysql.connect, unix_socket=f"{folder}/socket")
        with connect(user="root", autocommit=True) as eye:

            def ask(query):
                with eye.cursor() as cursor:
                    cursor.execute(query)
                    return cursor.fetchone()

            ask("CREATE DATABASE shop")
            ask("CREATE USER shop")
            ask("GRANT ALL ON shop.* TO shop")
            ask("CREATE TABLE shop.pages (id varchar(64) PRIMARY KEY, text text, highest_fence bigint)")
            ask("INSERT INTO shop.pages VALUES ('disk', '', 0)")
            pymysql.connect = connect
            page = runpy.run_path(file)

            @contextlib.contextmanager
            def overtake():
                with connect(user="shop", database="shop") as other:
                    with other.cursor() as cursor:
                        cursor.execute(NEWEST)
                    yield
                    other.commit()

            row = functools.partial(ask, "SELECT text, highest_fence FROM shop.pages WHERE id = 'disk'")
            # Not innodb_trx: who asks it more often than every 0.1 s is told the same again.
            waiting = "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'"
            check_table(page, row, lambda: int(ask(waiting)[1]) == 1, overtake())
            page["db"].close()


def s3(file):
    """A late write changes nothing, also if a newer one with the same data comes between its two steps."""
    from moto import mock_aws  # noqa: PLC0415

    os.environ.update(AWS_ACCESS_KEY_ID="k", AWS_SECRET_ACCESS_KEY="k", AWS_DEFAULT_REGION="us-east-1")  # noqa: S106
    with mock_aws():
        import boto3  # noqa: PLC0415

        other = boto3.client("s3")
        other.create_bucket(Bucket="shop")
        page = runpy.run_path(file)

        def stored():
            return other.get_object(Bucket="shop", Key="disk")["Body"].read().decode()

        fence = page["lock"].fences[0]
        assert stored() == f"{fence}\nmy page"
        assert not page["write"](fence - 1, "late")
        assert stored() == f"{fence}\nmy page"

        newer = f"{fence + 2}\nmy page"
        between = [newer]

        def overtake(**_):
            if between:
                other.put_object(Bucket="shop", Key="disk", Body=between.pop())

        page["s3"].meta.events.register("before-parameter-build.s3.PutObject", overtake)
        assert not page["write"](fence + 1, "my page")
        assert not between
        assert stored() == newer


NEEDS = {
    celery: ["celery"],
    redbeat: ["celery", "redbeat"],
    django: ["django"],
    django_redis: ["django", "django_redis"],
    postgresql: ["psycopg"],
    mariadb: ["pymysql"],
    s3: ["boto3", "moto"],
}

if __name__ == "__main__":
    name, program = sys.argv[1:]
    run = globals()[name.replace("-", "_")]
    missing = [module for module in NEEDS[run] if not importlib.util.find_spec(module)]
    if missing:
        not_run(f"this machine has no {' '.join(missing)}: tools/install.sh client-libraries")
    run(program)
    print("the end")
