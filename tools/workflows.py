#!/usr/bin/env python3
"""Checks that .github/workflows run nothing but words of the Makefile, and that each word is there. Changes nothing.

The workflows cannot run here. make can, so all that they do has to be in it. Allowed besides are the lines that bring a
compiler and git to a fresh machine. CI has to run what .ci/run does, and Nightly what make nightly does.
"""

import re
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What may stand in a workflow besides make: it prepares the machine.
PREPARES = ("apt-get ", "curl -sSf https://sh.rustup.rs ", "echo ", "git config ")
RUN = re.compile(r"^( *)(?:- )?run: (.*)$")


def words_of_make():
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.M))


def commands(text):
    """(number, command) of each line that a workflow runs."""
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        found = RUN.match(line)
        if not found:
            continue
        indent, rest = len(found[1]), found[2]
        if rest != "|":
            yield number, rest
            continue
        for below, inner in enumerate(lines[number:], number + 1):
            if inner.strip() and len(inner) - len(inner.lstrip()) <= indent:
                break
            if inner.strip():
                yield below, inner.strip()


def matrix(text):
    """What make ${{ matrix.word }} stands for."""
    found = re.search(r"^ *word: \[(.*)\]$", text, re.M)
    return [row.strip() for row in found[1].split(",")] if found else []


def wrong_in(file, known):
    text = file.read_text()
    for number, command in commands(text):
        where = f"{file.relative_to(ROOT)}:{number}"
        if command.startswith(PREPARES):
            continue
        if not command.startswith("make "):
            yield f"{where}: runs {command}: let a word of the Makefile do it"
            continue
        every = [command.replace("${{ matrix.word }}", row) for row in matrix(text)] if "matrix.word" in command else []
        for one in every or [command]:
            words = one.split(">")[0].split()[1:]
            for word in (word for word in words if not word.startswith("-") and "=" not in word):
                if word not in known:
                    yield f"{where}: make {word} is no word of the Makefile"


def main():
    known, folder = words_of_make(), ROOT / ".github/workflows"
    lines = [line for file in sorted(folder.glob("*.yml")) for line in wrong_in(file, known)]
    steps = re.search(r"^for step in (.*); do$", (ROOT / ".ci/run").read_text(), re.M)[1].split()
    jobs = matrix((folder / "ci.yml").read_text())
    if jobs != steps:
        lines.append(f".github/workflows/ci.yml runs {' '.join(jobs)}, and .ci/run {' '.join(steps)}")
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", "")
    night = shlex.split(re.search(r"^NIGHTLY = (.*)$", makefile, re.M)[1])
    jobs = matrix((folder / "nightly.yml").read_text())
    if jobs != night:
        lines.append(f".github/workflows/nightly.yml runs {', '.join(jobs)}, and make nightly {', '.join(night)}")
    for line in lines:
        print(f"workflows: {line}")
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
