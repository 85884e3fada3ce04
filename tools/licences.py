#!/usr/bin/env python3
"""Prints the licences of the crates that the module and the program redis-lock contain. Changes nothing.

Each text stands once, below the names of the crates that have it. Some crates ship no text: they are listed with the
licence that they name. Crates that only build or test the others are left out.
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOTS = {"redis-lock", "redis-lock-cli"}
PATTERNS = ["LICEN[CS]E*", "COPYING*", "NOTICE*", "UNLICENSE*", "license*"]


def linked():
    """The packages whose code gets into the two files."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1"]
    host = subprocess.run(["rustc", "--print", "host-tuple"], check=True, stdout=subprocess.PIPE, text=True).stdout
    command += ["--filter-platform", host.strip()]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting = [package["id"] for package in metadata["packages"] if package["name"] in ROOTS]
    ours, found = set(waiting), set()
    while waiting:
        name = waiting.pop()
        macro = any("proc-macro" in target["kind"] for target in packages[name]["targets"])
        if name in found or macro:
            continue
        found.add(name)
        waiting += [
            dependency["pkg"]
            for dependency in nodes[name]["deps"]
            if any(kind["kind"] is None for kind in dependency["dep_kinds"])
        ]
    return sorted((packages[name] for name in found - ours), key=lambda package: package["id"])


def texts_of(package):
    folder = Path(package["manifest_path"]).parent
    files = {file for pattern in PATTERNS for file in folder.glob(pattern) if file.is_file()}
    return sorted(file.read_text(errors="replace").strip() for file in files)


def main():
    texts, without = {}, []
    for package in linked():
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


if __name__ == "__main__":
    sys.exit(main())
