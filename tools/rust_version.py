#!/usr/bin/env python3
"""Checks that rust-version in Cargo.toml is at least what each locked dependency needs. Changes nothing.

Fails with one line for each dependency that needs a newer compiler. If the code itself needs a newer one, clippy
tells (incompatible_msrv).
"""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The first compilers that know each edition, for packages that name no version.
EDITIONS = {"2015": (1, 0), "2018": (1, 31), "2021": (1, 56), "2024": (1, 85)}


def number(version):
    """(1, 88) of 1.88 and of 1.88.0."""
    parts = [int(part) for part in version.split(".")]
    return tuple(parts if any(parts[2:]) else parts[:2])


def main():
    command = ["cargo", "metadata", "--locked", "--format-version", "1"]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    ours = set(metadata["workspace_members"])
    [said] = [package["rust_version"] for package in metadata["packages"] if package["name"] == "redis-lock"]
    needed = {}
    for package in metadata["packages"]:
        if package["id"] not in ours:
            of_package = number(package["rust_version"] or "1.0")
            needed[f"{package['name']} {package['version']}"] = max(of_package, EDITIONS[package["edition"]])
    wrong = [name for name, version in sorted(needed.items()) if version > number(said)]
    for name in wrong:
        print(f"rust-version: Cargo.toml says {said}, but {name} needs {'.'.join(map(str, needed[name]))}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
