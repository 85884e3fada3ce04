"""The figures of docs/operations/sizing.md, measured with fewer locks."""

import subprocess
import sys
from pathlib import Path

import machine

PROGRAM = Path(__file__).resolve().parents[3] / "tools/sizing.py"


def before_memory(stage):
    stage.loaded("maxmemory-policy noeviction\n")


def test_the_table_of_memory_is_right():
    # What could go wrong: a lock grows, and an operator's server is too small.
    words = [sys.executable, PROGRAM, "--quick", "--compare", machine.real_server()[0]]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
