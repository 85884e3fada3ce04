"""Prometheus and redis_exporter beside a server, as docs/operations/monitoring.md says, and what they then see."""

import json
import re
import shutil
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import causes

ROOT = Path(__file__).resolve().parents[3]
CONTRIB = ROOT / "contrib"
PROGRAMS = ROOT / "target/prometheus"
# What reads pages and brings machines: ../recipes, the program that runs.
recipes = sys.modules["__main__"]
SCRAPED_EACH_S = 1
PATIENCE_S = 60

# The units of Debian's packages, beside the one of the server.
SYSTEMCTL = """#!/bin/bash
[ "$1" = restart ] || exec "${0%/*}/systemctl-of-servers" "$@"
for unit in "${@:2}"; do
  out=$RECIPE_ROOT/$unit.out
  case "$unit" in
    prometheus-redis-exporter)
      . "$RECIPE_ROOT/etc/default/$unit"
      setsid PROGRAMS/usr/bin/$unit $ARGS </dev/null >"$out" 2>&1 & ;;
    prometheus)
      setsid PROGRAMS/usr/bin/$unit --config.file="$RECIPE_ROOT/etc/prometheus/prometheus.yml" \\
        --web.listen-address=WEB --storage.tsdb.path="$RECIPE_ROOT/tsdb" </dev/null >"$out" 2>&1 & ;;
    *) "${0%/*}/systemctl-of-servers" restart "$unit" || exit ;;
  esac
done
"""
APT = """#!/bin/sh
[ "$*" = "install -y prometheus prometheus-redis-exporter" ]
"""


def before_with_redis_exporter(stage):
    lacks()
    home = stage.first
    folder = stage.folder / "bin"
    (folder / "systemctl").rename(folder / "systemctl-of-servers")
    stage.program(
        "systemctl", SYSTEMCTL.replace("PROGRAMS", str(PROGRAMS)).replace("WEB", home.typed("127.0.0.1:9090"))
    )
    stage.program("apt-get", APT)
    (folder / "promtool").symlink_to(PROGRAMS / "usr/bin/promtool")
    home.path("/etc/prometheus").mkdir(parents=True)
    # A checkout of the repository, with the addresses that there are.
    for path in CONTRIB.rglob("*"):
        if path.is_file():
            copy = home.folder / "home/contrib" / path.relative_to(CONTRIB)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(home.typed(path.read_text()))
    stage.loaded(causes.GRACE_CONF)


def lacks():
    """Leaves where this machine has no Prometheus."""
    why = PROGRAMS / "is-missing"
    if why.exists():
        raise recipes.NotHere(why.read_text().strip())
    if shutil.which("curl") is None:
        raise recipes.NotHere("curl is missing")


def monitored(stage):
    """Types the recipe of the page up to where Prometheus runs; it asks more often than there."""
    before_with_redis_exporter(stage)
    home = stage.first
    config = home.folder / "home/contrib/prometheus.yml"
    faster = f"scrape_interval: {SCRAPED_EACH_S}s\n  evaluation_interval: {SCRAPED_EACH_S}s"
    config.write_text(config.read_text().replace("scrape_interval: 15s", faster))
    page = ROOT / "docs/operations/monitoring.md"
    [recipe] = [recipe for recipe in recipes.recipes_of(page) if recipe.heading == "With redis_exporter"]
    for block in recipe.blocks:
        if block.kind == "conf":
            home.write(block.text.split("\n")[0][2:], block.text + "\n")
        elif block.kind == "sh":
            home.must(block.text)
            if "restart" in block.text:
                return
    raise AssertionError("the recipe starts nothing")


def ask(stage, query):
    """The series that Prometheus has for a query now."""
    address = f"http://{stage.first.typed('127.0.0.1:9090')}/api/v1/query"
    with urllib.request.urlopen(f"{address}?{urllib.parse.urlencode({'query': query})}", timeout=20) as answer:
        return json.load(answer)["data"]["result"]


def until_it_has(stage, query):
    """Waits until Prometheus has something for a query."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            if found := ask(stage, query):
                return found
        except OSError as error:
            found = error
        if time.monotonic() > deadline:
            raise AssertionError(f"Prometheus has nothing for {query}: {found}")
        time.sleep(0.3)


def alerts():
    """The names of the rules, and their expressions. The limits are a hundredth: thousands of clients are too many."""
    text = (CONTRIB / "alerts.yml").read_text()
    rules = re.findall(r"- alert: (\w+)\n\s+expr:(?: >-)?(.*?)\n\s+(?:for|labels):", text, re.S)
    return {
        name: re.sub(r"> (8000|80000)$", lambda found: f"> {int(found[1]) // 100}", expr.strip())
        for name, expr in rules
    }


def of_programs():
    """The rules that the page adds, as a file."""
    page = (ROOT / "docs/operations/monitoring.md").read_text()
    return re.search(r"```yaml\n(.*?)```", page, re.S)[1]


# Nothing is wrong until the minute 20, and then all is.
OF_PROGRAMS_TEST = """
rule_files: [programs.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: redis_lock_lost_seconds_count, values: _x21 1x40}
      - {series: redis_lock_waited_seconds_count, values: 0+50x60}
      - {series: redis_lock_refused_seconds_count, values: 0+4x20 90+9x40}
      - {series: redis_memory_max_bytes, values: 100x60}
      - {series: redis_memory_used_bytes, values: 90x20 91x40}
      - {series: redis_rdb_last_bgsave_status, values: 1x60}
      - {series: redis_aof_last_write_status, values: 1x20 0x40}
      - {series: 'redis_connected_slaves{instance="a"}', values: 1x20 0x40}
      - {series: 'redis_connected_slaves{instance="b"}', values: 0x60}
      - {series: 'redis_instance_info{instance="a", role="master"}', values: 1x60}
      - {series: 'redis_instance_info{instance="b", role="slave"}', values: 1x60}
      - {series: redis_rejected_connections_total, values: 5x20 6x40}
    promql_expr_test:
      - {expr: count(ALERTS), eval_time: 20m}
      - {expr: count(ALERTS), eval_time: 23m, exp_samples: [{labels: "{}", value: 6}]}
"""


def panels():
    """The queries of the dashboard, as Grafana would send them for servers that were chosen."""
    rows = json.loads((CONTRIB / "grafana-dashboard.json").read_text())["panels"]
    for row in rows:
        for target in row.get("targets", []):
            yield row["title"], target["expr"].replace("$instance", "redis://.*").replace("$__rate_interval", "1m")


def test_every_panel_has_data_and_every_alert_fires_for_its_cause_alone():
    # What could go wrong: a panel or an alert that asks for what no exporter sends, or in a way that finds nothing.
    lacks()
    with recipes.Stage("monitoring", ["10.0.0.1"]) as stage:
        monitored(stage)
        home, rules = stage.first, alerts()
        assert set(rules) == set(causes.CAUSES), "an alert has no cause in causes.py, or a cause no alert"
        grace = rules.pop("LockGrace")
        # With rates, so that there are two scrapes at least.
        for title, query in panels():
            found = until_it_has(stage, query)
            servers = {home.shown(series["metric"]["instance"]) for series in found}
            assert servers == {"redis://127.0.0.1:6379"}, (title, query, servers)
        for name in set(re.findall(r"redis_(?!lock_)\w+", of_programs())):
            until_it_has(stage, name)
        for name, query in rules.items():
            assert ask(stage, query) == [], f"{name} fires though nothing has happened: {ask(stage, query)}"
        until_it_has(stage, grace)
        home.must("redis-cli CONFIG SET lock.grace-ms 0")
        kept = {}
        for name, query in rules.items():
            assert name == "LockBroken" or ask(stage, query) == [], f"{name} fires before its cause"
            kept[name] = causes.CAUSES[name](home)
            until_it_has(stage, query)
        deadline = time.monotonic() + PATIENCE_S
        while ask(stage, grace) and time.monotonic() < deadline:
            time.sleep(0.3)
        assert ask(stage, grace) == [], "LockGrace fires after the grace"
        # The rules themselves, as Prometheus has read them: those without `for` fire.
        for name in ("LockLapsed", "LockGuardRefused", "LockDeadlock", "LockBroken"):
            until_it_has(stage, f'ALERTS{{alertname="{name}", alertstate="firing"}}')


def test_promtool_finds_the_rules_right_and_their_tests_see_what_is_wrong():
    # What could go wrong: tests that pass whatever the rules say.
    lacks()
    with recipes.Stage("promtool", ["10.0.0.1"]) as stage:
        home = stage.first
        folder = home.folder / "home"
        (stage.folder / "bin/promtool").symlink_to(PROGRAMS / "usr/bin/promtool")
        for name in ("alerts.yml", "alerts_test.yml", "prometheus.yml"):
            shutil.copy(CONTRIB / name, folder)
        home.must("promtool check rules alerts.yml && promtool check config prometheus.yml")
        home.must("promtool test rules alerts_test.yml")
        (folder / "programs.yml").write_text(of_programs())
        (folder / "programs_test.yml").write_text(OF_PROGRAMS_TEST)
        home.must("promtool check rules programs.yml && promtool test rules programs_test.yml")
        right = (CONTRIB / "alerts.yml").read_text()
        wrong_ones = [
            right.replace(f'"{field}"', '"lock_leases"') for field in re.findall(r'key="(\w+)"\}\[10m\]\) > 0', right)
        ]
        wrong_ones += [right.replace(f"> {limit}\n", f"> {limit + 1}\n") for limit in (8000, 80000)]
        wrong_ones += [
            right.replace("0.1 *", "0.2 *"),
            right.replace("0.1 *", "0.05 *"),
            right.replace("for: 5m", "for: 9m"),
            right.replace("[1d]", "[1h]"),
            right.replace("unless", "and"),
        ]
        wrong_ones += [right.replace("ignoring (key) ", ""), right.replace('_left_ms"} > 0', '_left_ms"} >= 0')]
        for wrong in wrong_ones:
            assert wrong != right
            (folder / "alerts.yml").write_text(wrong)
            code, said = home.bash("promtool test rules alerts_test.yml")
            assert code != 0, f"the tests of the rules pass with rules that are wrong:\n{wrong}\n{said}"
