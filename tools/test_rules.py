#!/usr/bin/env python3
"""Shows to each rule of tools/lengths.py and tools/layers.py a file that breaks it, and one that just keeps it."""

import tempfile
import unittest
from pathlib import Path

import layers
import lengths


class Lengths(unittest.TestCase):
    def check(self, name, text, *wrong):
        self.assertEqual(list(lengths.too_long(name, text)), [f"{name}{rest}" for rest in wrong])

    def test_a_file_of_src_with_too_many_lines_is_refused(self):
        self.check("src/a.rs", "\n" * 450)
        self.check("src/a.rs", "\n" * 451, ": 451 lines, of at most 450")
        self.check("tests/a.rs", "\n" * 451)

    def test_a_line_of_code_that_is_too_long_is_refused(self):
        for name in ("src/a.rs", "tests/a.rs", "tools/a.py", "tools/a.sh", "Makefile"):
            self.check(name, "\n" + "x" * 120)
            self.check(name, "\n" + "x" * 121, ":2: 121 characters, of at most 120")
        self.check("src/a.rs", "// " + "é" * 117)

    def test_a_long_string_is_refused_in_src_alone(self):
        for text in ('"' + "x" * 130 + '",', 'r#"' + "x" * 128 + '"#', '"a\n' + "x" * 131 + '"'):
            last = text.count("\n") + 1
            self.check("tests/a.rs", text)
            self.check("src/a.rs", text, f":{last}: {len(text.splitlines()[-1])} characters, of at most 120")
        comment = f'// "{"x" * 130}"'
        self.check("tests/a.rs", comment, ":1: 135 characters, of at most 120")

    def test_in_markdown_code_is_refused_and_prose_and_commands_are_not(self):
        long = "x" * 121
        self.check("docs/a.md", f"{long}\n```\nLOCK.ACQUIRE {long}\n> EVAL {long}\n```\n{long}\n")
        self.check("docs/a.md", f"```python\n{long}\n```\n", ":2: 121 characters, of at most 120")


class Layers(unittest.TestCase):
    def check(self, files, *wrong):
        with tempfile.TemporaryDirectory() as folder:
            layers.SRC = Path(folder)
            for name, text in files.items():
                (layers.SRC / name).parent.mkdir(parents=True, exist_ok=True)
                (layers.SRC / name).write_text(text)
            graph = layers.imports({layers.module_of(file): file for file in sorted(layers.SRC.rglob("*.rs"))})
            self.assertEqual(layers.wrong(graph), list(wrong))

    def test_a_circle_of_imports_is_refused(self):
        b = "use super::c;\nfn f() { crate::module::a::f() }"
        files = {"module/a.rs": "use super::b::{self, f};", "module/b.rs": b, "module/c.rs": ""}
        self.check(files, "a circle of imports: src/module/a.rs src/module/b.rs")
        self.check({**files, "module/a.rs": "// use super::b;\n#[cfg(test)]\nmod tests {\nuse super::super::b;\n}"})

    def test_an_import_against_the_order_is_refused(self):
        manager, wait, model = ("lock/manager/m.rs", "lock/wait/w.rs", "lock/model/n.rs")
        down = {manager: "use super::super::wait::w;", wait: "use crate::lock::model::n;", model: ""}
        self.check(down)
        up = {manager: "", wait: "use crate::lock::manager::m;", model: "use crate::lock::wait::w;"}
        self.check(
            up,
            f"src/{model} imports src/{wait}, which comes after it",
            f"src/{wait} imports src/{manager}, which comes after it",
        )

    def test_lock_and_ffi_may_not_know_each_other(self):
        files = {"lock/a.rs": "use crate::ffi::b;", "ffi/b.rs": ""}
        self.check(files, "src/lock/a.rs imports src/ffi/b.rs, and the two folders may not know each other")


if __name__ == "__main__":
    unittest.main()
