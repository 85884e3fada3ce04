#!/usr/bin/env python3
"""Prints the licences of the crates that the module and the program redis-lock contain. Changes nothing.

    tools/licences.py            prints them: each text stands once, below the names of the crates that have it. Some
                                 crates ship no text: they are listed with the licence that they name
    tools/licences.py --check    fails with one line for each thing that clients/rust/THIRD-PARTY.md says otherwise than
                                 the crate's dependencies do

Crates that only build or test the others are left out.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CRATE = "redis-lock-client"
PAGE = "clients/rust/THIRD-PARTY.md"
PATTERNS = ["LICEN[CS]E*", "COPYING*", "NOTICE*", "UNLICENSE*", "license*"]


def cargo(*words):
    command = ["cargo", *words, "--locked"]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def metadata():
    return json.loads(cargo("metadata", "--format-version", "1"))["packages"]


def linked(packages, *words):
    """Others' packages whose code gets into what this builds. cargo metadata has the features of tests as well."""
    lines = cargo("tree", "--edges", "normal,no-proc-macro", "--prefix", "none", *words).splitlines()
    # "redis v1.8.1 (*)"
    named = {tuple(line.split()[:2]) for line in lines if line}
    return [
        package for package in packages if package["source"] and (package["name"], f"v{package['version']}") in named
    ]


def texts_of(package):
    folder = Path(package["manifest_path"]).parent
    files = {file for pattern in PATTERNS for file in folder.glob(pattern) if file.is_file()}
    return sorted(file.read_text(errors="replace").strip() for file in files)


def write():
    texts, without = {}, []
    for package in linked(metadata(), "--package", "redis-lock", "--package", "redis-lock-cli"):
        name = f"{package['name']} {package['version']} ({package['license']})"
        found = texts_of(package)
        for text in found:
            texts.setdefault(text, []).append(name)
        if not found:
            without.append(name)
    print("redis-lock contains the standard library of Rust (MIT OR Apache-2.0) and these crates:\n")
    for text, names in sorted(texts.items(), key=lambda row: row[1]):
        print("=" * 80, *names, "", text, "", sep="\n")
    if without:
        print("=" * 80, "Without a text of their own:", *without, sep="\n")


def problems(page):
    """What the page of the crate's dependencies has not, or has without need."""
    packages = metadata()
    [crate] = [package for package in packages if package["name"] == CRATE]
    direct = {dependency["name"] for dependency in crate["dependencies"] if dependency["kind"] is None}
    needed = linked(packages, "--package", CRATE, "--all-features")
    rows = {tuple(cell.strip(" `") for cell in line.split("|")[1:4:2]) for line in page.splitlines() if "`" in line}
    real = {(package["name"], package["license"]) for package in needed if package["name"] in direct}
    said = {line[2:] for line in page.splitlines() if line.startswith("- ")}
    others = {package["license"] for package in needed if package["name"] not in direct}
    return [
        *(f"no row: {' | '.join(row)}" for row in sorted(real - rows)),
        *(f"a row too many: {' | '.join(row)}" for row in sorted(rows - real)),
        *(f"not listed, or without need: {licence}" for licence in sorted(said ^ others)),
    ]


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    if not sys.argv[1:]:
        return write()
    found = problems((ROOT / PAGE).read_text())
    for problem in found:
        print(f"licences: {PAGE}: {problem}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
