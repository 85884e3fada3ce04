"""The bars of the helpers: what a figure of bench.py has to reach, and which of them does not."""

import statistics
from typing import NamedTuple

NOTIFY = " by NOTIFY"
# What is measured. The last one is of owners who do nothing but wait.
FREE, QUEUE, HELD = "one owner, a key that nobody else wants", "64 owners, one key", "the same, each holds it for 1 ms"
CUT = "64 owners, one key, all connections cut each 250 ms"
PLACES = "10,000 owners of one process wait for 1,000 keys"
# Driver and server are not asked at the same moment.
ERROR = 0.005
SHORT = {FREE: "one owner", QUEUE: "64 owners", HELD: "64 owners, 1 ms", CUT: "64 owners, cut", PLACES: "10,000 owners"}
FIGURES = {
    "requests": "requests a lock",
    "opened": "connections opened a lock",
    "open": "connections",
    "rate": "locks/s",
    "server": "server CPU",
    "client": "client CPU",
    "spread": "grants between best and worst owner",
    "even": "grants of worst to best owner",
    "longest": "longest wait in ms",
    "bytes": "bytes a place",
}


class Bar(NamedTuple):
    whose: str  # a language, its client library, BLOCK, NOTIFY, or several of these; none: all helpers
    case: str
    figure: str
    limit: float  # at most
    of: str = ""  # divided by the figure of this library, or of the same one by BLOCK
    least: bool = False  # at least

    def text(self):
        of = f" of {self.of}'s" if self.of else ""
        return (
            f"{self.whose or 'All'}, {SHORT[self.case]}: {FIGURES[self.figure]}, "
            f"{'≥' if self.least else '≤'} {self.limit:,g}{of}"
        )


BARS = [
    Bar("", FREE, "requests", 2),
    Bar("Node.js", FREE, "client", 1.2, "redis-semaphore"),
    Bar("Go", FREE, "client", 1.2, "bsm/redislock"),
    *(Bar("BLOCK", case, "requests", 2) for case in (QUEUE, HELD)),
    *(Bar("BLOCK", case, "opened", 0) for case in (QUEUE, HELD)),
    *(Bar("NOTIFY", case, "requests", 3.05) for case in (QUEUE, HELD)),
    Bar("NOTIFY", QUEUE, "rate", 0.5, "BLOCK", least=True),
    Bar("NOTIFY", HELD, "rate", 0.75, "BLOCK", least=True),
    Bar("Go NOTIFY", HELD, "rate", 0.85, "BLOCK", least=True),
    # A hundred times what comes of asking each 100 ms.
    Bar("NOTIFY", QUEUE, "rate", 1000, least=True),
    *(Bar("NOTIFY", case, "server", 1.7, "BLOCK") for case in (QUEUE, HELD)),
    *(
        Bar(f"{language} NOTIFY", case, "open", most)
        for language, most in (("Python", 2), ("Node.js", 2), ("Go", 6), ("Java", 2))
        for case in (QUEUE, PLACES)
    ),
    Bar("NOTIFY", PLACES, "bytes", 530),
    *(Bar("NOTIFY", case, "spread", 2) for case in (QUEUE, HELD)),
    Bar("Go", QUEUE, "spread", 5),
    Bar("Go BLOCK", HELD, "spread", 2),
    Bar("Go", HELD, "longest", 130),
    Bar("Java Lettuce", FREE, "rate", 0.83, "Redisson", least=True),
    Bar("Java Jedis", FREE, "rate", 2, "Redisson", least=True),
    Bar("Java NOTIFY", QUEUE, "rate", 2, "Redisson", least=True),
    Bar("Java BLOCK", QUEUE, "rate", 3, "Redisson", least=True),
    *(Bar("Java", case, "server", 0.65, "Redisson") for case in (FREE, QUEUE)),
    Bar("Java", QUEUE, "even", 0.9, least=True),
    Bar("Java", HELD, "longest", 0.2, "Redisson"),
    Bar("Java", CUT, "rate", 200, least=True),
]


def verdicts(helpers, runs):
    """For each bar that was measured its text, what was reached, and the verdict.

    helpers has the language and the kind of each; runs has the figures of each round, by case, language and kind.
    """
    for bar in BARS:
        reached = {}
        for language, kind in helpers:
            words = {language, kind.rpartition(", ")[2], "NOTIFY" if NOTIFY in kind else "BLOCK"}
            own = runs.get((bar.case, language, kind))
            if not own or not set(bar.whose.split()) <= words:
                continue
            values = [run[bar.figure] for run in own]
            if bar.of:
                other = kind.replace(NOTIFY, "") if bar.of == "BLOCK" else bar.of
                beside = runs.get((bar.case, language, other), [])
                values = [value / run[bar.figure] for value, run in zip(values, beside, strict=False)]
            if values:
                reached[f"{language}: {kind}"] = statistics.median(values)
        missed = {
            name: value
            for name, value in reached.items()
            if (value < bar.limit * (1 - ERROR) if bar.least else round(value, 2) > bar.limit * (1 + ERROR))
        }
        if reached:
            least, most = shown(min(reached.values())), shown(max(reached.values()))
            # By its client library, or where there is one alone by its language.
            short = {name: name.rpartition(", ")[2].partition(":")[0] for name in missed}
            names = ", ".join(f"{short[name]} {shown(value)}" for name, value in missed.items())
            verdict = f"not within: {names}" if missed else "within"
            yield bar.text(), least if least == most else f"{least} to {most}", verdict


def shown(value):
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"
