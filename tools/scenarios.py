#!/usr/bin/env python3
"""The tables of clients/scenarios.md: which scenario was played in which language, and what came of it.

    tools/scenarios.py             each row names a test of the code, and each test of tests/helpers has a row;
                                   and each call that the table of clients/README.md names is in the code

tools/test.py writes the tables from a whole run of make test-clients, or compares them with it.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "clients/scenarios.md"
HELPERS = ROOT / "tests/helpers/main.rs"
README = ROOT / "clients/README.md"
BEGIN, END = "<!-- played: {} -->", "<!-- end of played -->"
# The modules of tests/helpers, by their column.
LANGUAGES = {
    "Python": "python",
    "asyncio": "python_asyncio",
    "node-redis": "node_redis",
    "ioredis": "ioredis",
    "go-redis": "go_redis",
    "rueidis": "rueidis",
    "redigo": "redigo",
    "Rust": "rust",
    "tokio": "rust_tokio",
    "Lettuce": "lettuce",
    "Jedis": "jedis",
}
# Where a language has tests of its own, how one is written there, and the tests of a run that play them all.
OWN = {
    "Python": (
        "clients/python/tests/*.py",
        "def {}(",
        [
            "own::the_tests_of_the_helper_for_python_pass",
            "own::the_quorum_of_the_helper_for_python_passes",
            "own::the_helper_for_python_bears_bad_networks_and_servers",
            "own::the_helper_for_python_waits_by_messages",
        ],
    ),
    "Node.js": (
        "clients/node/tests/*.mjs",
        "('{}'",
        [
            "own::the_tests_of_the_helper_for_node_pass",
            "own::the_helper_for_node_bears_bad_networks_and_servers",
            "own::the_helper_for_node_waits_by_messages",
        ],
    ),
    "Go": ("clients/go/tests/*_test.go", "func {}(", ["own::the_tests_of_the_helper_for_go_pass"]),
    "Rust": ("clients/rust/tests/locks/*.rs", "fn {}(", None),
}
NO_CLOCK = "not run: no test can set its clock"
# Each scenario, with its test in each language, or why there is none.
PLAYED_APART = {
    "many locks of a far server": (
        "test_many_locks_of_a_far_server_are_kept_by_threads",
        "keeps 450 locks of a server that is far away, and renews them together",
        "TestManyLocksOfAFarServerAreKept",
        "many_locks_at_a_far_server_are_kept",
    ),
    "all connections die without a word, and new ones are well": (
        "test_connections_that_died_together_without_a_word_cost_no_lock",
        "goes on over new connections when all die without a word",
        "TestConnectionsThatDieWithoutAWordCostNoLock",
        "renewals_go_on_over_a_new_connection_when_old_ones_died_without_a_word",
    ),
    "the server has no connection left": (
        "test_a_held_lock_outlives_the_servers_last_connection",
        "holds and waits where no more connections can be had",
        "TestNoLockIsLostWhileTheServerTakesNoMoreConnections",
        "no_lock_is_lost_while_the_server_takes_no_more_connections",
    ),
    "the process has no descriptor left": (
        "test_a_held_lock_outlives_the_last_descriptor",
        "not run: it cannot set its limit",
        "not run: its tests share a process",
        "not run: its tests share a process",
    ),
    "a burst of locks, then one: how many connections": (
        "test_a_burst_leaves_few_connections",
        "has few connections for many waits, and keeps fewer",
        "TestABurstOfWaitsLeavesFewConnections",
        "more_waits_than_connections_are_all_served_and_what_is_idle_is_closed",
    ),
    "more waits than may block": (
        "test_more_waits_than_may_block_take_turns_over_few_connections",
        "has few connections for many waits, and keeps fewer",
        "TestWaitsOpenNoMoreConnectionsThanTheyMay",
        "more_waits_than_connections_are_all_served_and_what_is_idle_is_closed",
    ),
    "the program ends while a lock is held, returns or raises": (
        "test_a_program_ends_although_a_lock_is_held",
        "keeps a process alive while it waits, and not while it holds",
        "not run: goroutines keep no program",
        "a_guard_that_is_dropped_releases_and_so_does_a_panic",
    ),
    "a clock jumps, and timers do not": (
        "test_a_loss_is_told_within_a_second_although_a_clock_jumps",
        "is lost when the machine slept for longer than the lease",
        "TestALossIsToldWithinASecondWhenTheClockJumps",
        NO_CLOCK,
    ),
    "memory is full": (
        "test_memory_that_is_full_is_waited_for_in_the_place",
        "waits while memory is full, and says so once",
        "TestAWaitBearsAServerWithoutMemory",
        "full_memory_is_waited_out_in_place",
    ),
    "a callback fails": (
        "test_a_callback_that_raises_or_takes_its_time_harms_nothing",
        "tells of losses and of renewals that fail, and a callback that fails harms nothing",
        "TestAFunctionOfTheApplicationThatPanicsHarmsNothing",
        "a_callback_that_panics_at_a_renewal_ends_no_other_renewal",
    ),
    "a server hangs in a try": (
        "test_to_try_once_at_a_server_that_hangs_takes_one_time_for_an_answer",
        "leaves nothing behind when a server hangs in a try",
        "TestAServerThatHangsHoldsUpItsCallersForAShortTime",
        "an_attempt_at_a_server_that_hangs_is_answered_in_time_and_leaves_nothing",
    ),
    "a server hangs in a wait": (
        "test_a_wait_that_ends_while_the_server_hangs_is_released_later",
        "leaves nothing behind when a server hangs in a wait",
        "TestACancelWhileTheServerHangsLeavesNothing",
        "a_cancel_is_prompt_and_leaves_nothing_though_the_server_hangs",
    ),
    "a server hangs in a release": (
        "test_a_release_without_an_answer_is_repeated",
        "repeats a release that had no answer until it has one",
        "TestAReleaseWithoutAnAnswerIsRepeated",
        "a_release_without_an_answer_is_repeated_until_there_is_one",
    ),
    "a server hangs in a renewal": (
        "test_what_goes_on_when_a_server_hangs_is_the_renewal_of_other_servers",
        "renews on one server while another hangs",
        "TestANodeThatHangsDelaysNoRenewalOfOthers",
        "a_server_that_hangs_does_not_delay_the_renewal_on_others",
    ),
    "a wrong port": (
        "test_a_wrong_port_is_told_at_the_first_failed_attempt",
        "says at the first attempt that there is no server, no module, or no right",
        "TestTroubleIsToldAtOnce",
        "what_goes_wrong_is_told_at_the_first_attempt",
    ),
    "no module, or no right": (
        "test_a_server_without_the_module_is_told_in_a_sentence",
        "says at the first attempt that there is no server, no module, or no right",
        "TestAServerThatGivesNoLocksIsTold",
        "what_goes_wrong_is_told_at_the_first_attempt",
    ),
    "a key prefix of the client": (
        "not run: redis-py has none",
        "has fences as numbers, whatever the client makes of numbers",
        "not run: its libraries have none",
        "not run: its library has none",
    ),
    "a key that is bytes": (
        "test_a_key_may_be_anything_like_bytes",
        "not run: keys are strings",
        "not run: a string has any bytes",
        "not run: all keys are bytes",
    ),
    "a fork while a lock is held": (
        "test_a_child_of_a_fork_shares_no_connection_with_its_parent",
        "not run: Node.js has no fork",
        "not run: a program in Go does not fork",
        "not run: a safe program has no fork",
    ),
}


def scenarios():
    """The names of the scenarios that each language plays, in their order."""
    block = re.search(r"in_each_language! \{\n    python = (.*?)\n\}", HELPERS.read_text(), re.S).group(1)
    return re.findall(r"^            (\w+)[,;]$", block, re.M)


def name_of(title):
    return re.sub(r" +", "_", re.sub(r"[^a-z0-9 ]", "", title.lower().replace("-", " ").split(" (")[0]))


def rows_of(text, table):
    """The rows of a table between its marks: lists of cells. A row with one cell is a heading."""
    _, _, rest = text.partition(BEGIN.format(table) + "\n")
    body, end, _ = rest.partition(END)
    if not end:
        sys.exit(f"{PAGE.name}: no marks for {table}")
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in body.strip().splitlines()[2:]]


def outcome(names, count):
    """What a run says of these tests; None if it did not play them."""
    if any(name in count.failed for name in names):
        return "failed"
    why = [count.not_run[name] for name in names if name in count.not_run]
    if why:
        return f"not run: {why[0]}"
    return "passed" if all(name in count.ran for name in names) else None


def written(text, count):
    """The page as this run writes it."""
    rows = []
    for title, wrong, *_ in rows_of(text, "in each language"):
        names = [f"{module}::{name_of(title)}" for module in LANGUAGES.values()]
        cells = [""] * len(LANGUAGES) if not wrong else [outcome([name], count) or "no test" for name in names]
        rows.append([title, wrong, *cells])
    text = with_table(text, "in each language", ["scenario", "what would be wrong", *LANGUAGES], rows)
    wrongs = {title: wrong for title, wrong, *_ in rows_of(text, "apart")}
    rows = []
    for title, tests in PLAYED_APART.items():
        cells = []
        for test, (_, _, players) in zip(tests, OWN.values(), strict=True):
            played = "in make test" if players is None else outcome(players, count)
            cells.append(test if test.startswith("not run: ") else played or "no test")
        rows.append([title, wrongs.get(title, ""), *cells])
    return with_table(text, "apart", ["scenario", "what would be wrong", *OWN], rows)


def with_table(text, table, head, rows):
    lines = [head, ["---"] * len(head), *rows]
    body = "".join(f"| {' | '.join(cells)} |\n".replace("|  |", "| |").replace("|  |", "| |") for cells in lines)
    begin, end = text.index(BEGIN.format(table)), text.index(END, text.index(BEGIN.format(table)))
    return f"{text[:begin]}{BEGIN.format(table)}\n{body}{text[end:]}"


# Where the calls of a language are, and how one is written there.
CALLS = {
    "Python": ("clients/python/redis_lock_client/**/*.py", r"(?:def|class) {0}\b|\b{0}: "),
    "Node.js": (
        "clients/node/*.ts clients/node/engine/terms.ts clients/node/engine/figures.ts clients/node/testing/*.ts",
        r"\b{0}\??[(:<]|class {0}\b",
    ),
    "Go": ("clients/go/redislock*/*.go clients/go/lockotel/*.go", r"^func (?:\([^)]*\) )?{0}\(|^package {0}\b"),
    "Java": ("clients/java/*/src/main/java/**/*.java", r"\b{0}\(|(?:class|interface) {0}\b"),
    "Rust": ("clients/rust/src/**/*.rs", r"fn {0}\b|(?:struct|trait) {0}\b"),
}


def missing_calls(text=None):
    """What the table of calls names and the code of that language has not."""
    text = README.read_text() if text is None else text
    table = text.partition("<!-- calls -->")[2].partition("<!-- end of calls -->")[0].strip().splitlines()
    head, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table if "---" not in line]
    if head[1:] != list(CALLS):
        return [f"the table of calls is not of {', '.join(CALLS)}"]
    code = {
        language: "\n".join(path.read_text() for pattern in files.split() for path in sorted(ROOT.glob(pattern)))
        for language, (files, _) in CALLS.items()
    }
    return [
        f"{language} has no {name}: {what}"
        for what, *cells in rows
        for language, cell in zip(CALLS, cells, strict=True)
        for name in re.findall(r"`(\w+)`", cell)
        if not re.search(CALLS[language][1].format(re.escape(name)), code[language], re.MULTILINE)
    ]


def problems(text=None):
    """What of the page has no test in the code, and the other way round."""
    text = PAGE.read_text() if text is None else text
    listed = [name_of(title) for title, wrong, *_ in rows_of(text, "in each language") if wrong]
    played = scenarios()
    found = [f"no scenario: {name}" for name in listed if name not in played]
    found += [f"no row: {name}" for name in played if name not in listed]
    titles = [row[0] for row in rows_of(text, "apart")]
    found += [f"no row, or no test: {title}" for title in set(titles) ^ set(PLAYED_APART)]
    for title, tests in PLAYED_APART.items():
        for test, (language, (files, form, _)) in zip(tests, OWN.items(), strict=True):
            paths = [path for pattern in files.split() for path in ROOT.glob(pattern)]
            if not test.startswith("not run: ") and not any(form.format(test) in path.read_text() for path in paths):
                found.append(f"{title}: {language} has no test {test}")
    return found


def differences(count):
    """Where the page says something else than this run. What this machine cannot run counts as on the page."""
    text = PAGE.read_text()
    found = problems(text)
    now = written(text, count)
    for table in ("in each language", "apart"):
        for said, is_so in zip(rows_of(text, table), rows_of(now, table), strict=True):
            found += [
                f"{said[0]}: {old}, and in this run {new}"
                for old, new in zip(said, is_so, strict=True)
                if old != new and not (new.startswith("not run: ") and old == "passed")
            ]
    return [f"(clients/scenarios.md: {what}; make test-clients RECORD=1 writes its tables)" for what in found]


def write(count):
    PAGE.write_text(written(PAGE.read_text(), count))


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(__doc__)
    for problem in (found := problems() + missing_calls()):
        print(f"scenarios: {problem}")
    sys.exit(1 if found else 0)
