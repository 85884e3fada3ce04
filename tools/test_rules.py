#!/usr/bin/env python3
"""Shows to each rule of tools/lengths.py, tools/layers.py and tools/docs.py a file that breaks it.

It also shows one that just keeps the rule.

Shows to tools/test.py what tests say, to check how it counts them. Shows pages and output to tests/operations/recipes,
and to tools/licences.py what this repository has.
"""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import re
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import docs
import layers
import lengths
import licences
import test


class Lengths(unittest.TestCase):
    def check(self, name, text, *wrong):
        self.assertEqual(list(lengths.too_long(name, text)), [f"{name}{rest}" for rest in wrong])

    def test_a_file_of_src_with_too_many_lines_is_refused(self):
        self.check("src/a.rs", "\n" * 450)
        for name in ("src/a.rs", "crates/core/src/a.rs"):
            self.check(name, "\n" * 451, ": 451 lines, of at most 450")
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

    def test_a_cell_of_a_table_is_measured_as_its_reader_sees_it(self):
        link = f"[{'x' * 190}]({'y' * 90})"
        self.check("docs/a.md", f"| {'x' * 200} | {link} is good. |\n\n```\n| {'x' * 110} |\n```\n")
        self.check("docs/a.md", f"\n| {'x' * 201} | b |\n", ":2: a cell of 201 characters, of at most 200")
        self.check("docs/a.md", f"| a | {link} is much better |\n", ":1: a cell of 205 characters, of at most 200")

    def test_the_pages_of_docs_have_so_many_words(self):
        pages = {"docs/a.md": "word\n" * 98_000, "docs/b/c.md": "two words " * 200, "README.md": "x", "docs/a.rs": "x"}
        self.assertEqual(list(lengths.too_many_words(pages)), [])
        pages["docs/a.md"] += "more"
        self.assertEqual(list(lengths.too_many_words(pages)), ["docs: 98401 words, of at most 98400"])


class Docs(unittest.TestCase):
    """The navigation of make docs."""

    def navigation(self, files):
        files = dict.fromkeys(docs.PARTS.values(), "") | files
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.object(docs, "ROOT", Path(folder)):
            for name, text in files.items():
                (docs.ROOT / name).parent.mkdir(parents=True, exist_ok=True)
                (docs.ROOT / name).write_text(text)
            return docs.navigation(set(files))

    def test_a_page_that_its_folder_does_not_name_is_refused(self):
        page = {"docs/guide/a.md": "", "docs/guide/README.md": "[A](a.md)"}
        self.assertEqual(self.navigation(page)[1], [])
        self.assertEqual(self.navigation({"docs/guide/a.md": ""})[1], ["docs/guide/a.md"])
        elsewhere = {"docs/guide/a.md": "", "docs/operations/README.md": "[A](../guide/a.md)"}
        self.assertEqual(self.navigation(elsewhere)[1], ["docs/guide/a.md"])
        # A link in code is none.
        for text in ("`[A](a.md)`", "```\n[A](a.md)\n```"):
            self.assertEqual(self.navigation({"docs/guide/a.md": "", "docs/guide/README.md": text})[1], list(page)[:1])

    def test_pages_stand_in_the_order_of_the_links(self):
        guide = "[B](b.md) [A](a.md#x) [Help](../../help.md) [B](b.md)"
        files = {"docs/guide/README.md": guide, "docs/guide/a.md": "", "docs/guide/b.md": "", "help.md": ""}
        parts, _ = self.navigation(files)
        expected = ["docs/guide/README.md", "docs/guide/b.md", "docs/guide/a.md", "help.md"]
        self.assertEqual(parts["Guide"], expected)

    def test_a_block_more_than_its_runner_plays_is_found(self):
        listed = "*.md | js=1 | test.rs\na.md | not this\n"
        pages = {"a.md": "```js\n1\n```\n```js\nnot this\n```\n"}
        self.assertEqual(list(docs.unknown_blocks(listed, pages, {"test.rs"})), [])
        found = list(docs.unknown_blocks(listed, {"a.md": pages["a.md"] * 2}, {"test.rs"}))
        self.assertEqual(found, ["a.md: 2 blocks of js, where test.rs plays 1"])

    def test_a_block_of_code_that_is_neither_run_nor_listed_is_found(self):
        listed = "# a comment\n*.md docs/* | js sh | test.rs\na.md | make it\n"
        pages = {"a.md": "```\nmake it work\n```\n```js\n1\n```\n", "b.md": "````sh\n```\n````\n"}
        self.assertEqual(list(docs.unknown_blocks(listed, pages, {"test.rs"})), [])
        for text in ("```\nmake that\n```", "- a list:\n  ```python\n  make it\n  ```", "```jss\n1\n```"):
            found = "\n".join(docs.unknown_blocks(listed, pages | {"c.md": text}, {"test.rs"}))
            self.assertRegex(found, "^c.md: a block of code is neither")
        for wrong in ("a.md | make that", "b.md | go | test.rs"):
            found = list(docs.unknown_blocks(f"{listed}{wrong}\n", pages, {"test.rs"}))
            self.assertEqual(found, [f"{docs.BLOCKS}: no block: {wrong}"])
        self.assertIn("there is no test.rs", "\n".join(docs.unknown_blocks(listed, pages, set())))

    def test_another_spelling_of_timeout_is_found(self):
        good = "the timeout; waits time out and timed out, at a time outside"
        for text, place in (("a Time-out", 1), ("two\nTime-outs", 2), ("\nafter the time\nout", 2)):
            found = list(docs.misspelt({"a.md": good, "b.md": text}))
            self.assertEqual([line.partition(": ")[0] for line in found], [f"b.md:{place}"])

    def test_a_word_for_which_the_search_shows_other_pages_first_is_found(self):
        if docs.node() is None:
            self.skipTest("Node.js is missing")
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.object(docs, "WORDS", Path(folder) / "words"):
            docs.WORDS.write_text("# a comment\na.md: TTL, some words\nb.md: other\n? c.md: and why\n")
            self.assertIn("# A\n\n```{index} ! TTL, ! some words\n", docs.with_words("# A\n\n", docs.words()["a.md"]))
            (Path(folder) / "_static").mkdir()
            # The search gives the best page last.
            tools = """const Search = {
                setIndex: (index) => { Search.index = index; },
                _parseQuery: (words) => [words],
                _performSearch: (words) => Search.index[words].map((page) => ["", "", "index-0", "", 0, page]),
            };"""
            for name, text in {"language_data": "", "searchtools": tools}.items():
                (Path(folder) / f"_static/{name}.js").write_text(text)
            found = {"TTL": ["d.md", "c.md", "b.md", "a.md"], "some words": ["docs/internals/x.md", "b.md", "a.md"]}
            found |= {"other": ["b.md", "a.md", "c.md", "d.md"], "and why": ["c.md", "docs/internals/x.md"]}
            index = Path(folder) / "searchindex.js"
            index.write_text(f"Search.setIndex({json.dumps(found)})")
            wrong = ["b.md: not among the first three for: other: d.md c.md a.md"]
            wrong += ["c.md: internals before others for: and why"]
            self.assertEqual(docs.unfound_words(Path(folder)), wrong)

    def test_without_node_the_search_is_not_asked_which_with_ci_set_is_a_mistake(self):
        for ci, mistakes in (("", 0), ("true", 1)):
            with (
                unittest.mock.patch.object(docs, "node", lambda: None),
                unittest.mock.patch.dict("os.environ", CI=ci),
                contextlib.redirect_stderr(io.StringIO()) as said,
            ):
                self.assertEqual(len(docs.unfound_words(Path())), mistakes)
            self.assertIn("Node.js is missing", said.getvalue())

    def test_words_of_the_index_lead_to_the_top_of_their_page(self):
        with tempfile.TemporaryDirectory() as folder:
            index = Path(folder) / "searchindex.js"
            index.write_text('Search.setIndex({"indexentries":{"ttl":[[0,"index-0",true]],"why":[[0,"x",true]]}})')
            docs.lead_to_pages(Path(folder))
            self.assertIn('"ttl":[[0,"",true]],"why":[[0,"x",true]]', index.read_text())

    def test_a_link_of_the_site_that_leads_nowhere_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            site = Path(folder).resolve()
            good = '<p id="x"><a href="#x"></a><a href="b.html#y"></a><a href="https://c"></a></p>'
            (site / "a.html").write_text(good)
            (site / "b.html").write_text('<p id="y"><img src="a.html"></p>')
            self.assertEqual(list(docs.dead_links(site)), [])
            (site / "b.html").write_text('<a href="../c.html"></a><a href="d.html"></a><a href="a.html#z"></a>')
            found = "\n".join(docs.dead_links(site))
            expected = {"b.html#y": "heading", "../c.html": "out of", "d.html": "page", "a.html#z": "heading"}
            for link, why in expected.items():
                self.assertRegex(found, f"{link}: .*{why}")


class Layers(unittest.TestCase):
    def check(self, crate, files, *wrong):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.object(layers, "ROOT", Path(folder)):
            for name, text in files.items():
                (layers.ROOT / crate / name).parent.mkdir(parents=True, exist_ok=True)
                (layers.ROOT / crate / name).write_text(text)
            self.assertEqual(list(layers.wrong(crate)), list(wrong))

    def test_a_cycle_of_imports_is_refused(self):
        b = "use super::c;\nfn f() { crate::module::a::f() }"
        files = {"module/a.rs": "use super::b::{self, f};", "module/b.rs": b, "module/c.rs": ""}
        self.check("src", files, "a cycle of imports: src/module/a.rs src/module/b.rs")
        no_import = "// use super::b;\n#[cfg(test)]\nmod tests {\nuse super::super::b;\n}"
        self.check("src", {**files, "module/a.rs": no_import})

    def test_each_program_of_a_crate_has_imports_of_its_own(self):
        program, files = "faults/src/bin/p", {"main.rs": "mod a;", "a.rs": "use super::b;", "b.rs": "use super::a;"}
        self.check(program, files, f"a cycle of imports: {program}/a.rs {program}/b.rs")
        own = {f"bin/p/{name}": text for name, text in files.items()}
        self.check("faults/src", {"a.rs": "use crate::b;", "b.rs": "", **own})

    def test_an_import_against_the_order_is_refused(self):
        manager, wait, model = ("manager/m.rs", "wait/w.rs", "model/n.rs")
        core = layers.CORE
        down = {manager: "use super::super::wait::w;", wait: "use crate::model::n;", model: ""}
        self.check(core, down)
        up = {manager: "", wait: "use crate::manager::m;", model: "use crate::wait::w;"}
        self.check(
            core,
            up,
            f"{core}/{model} imports {core}/{wait}, which comes after it",
            f"{core}/{wait} imports {core}/{manager}, which comes after it",
        )
        module = {"module/a.rs": "use crate::command::b;", "command/b.rs": ""}
        self.check("src", module, "src/module/a.rs imports src/command/b.rs, which comes after it")

    def test_a_static_of_the_core_is_refused(self):
        for text in ("static A: u8 = 0;", "pub static A: u8 = 0;", "thread_local! { static A: u8 = 0 }"):
            self.check(layers.CORE, {"a.rs": text}, f"{layers.CORE}/a.rs has a static")
            self.check("src", {"a.rs": text})
        self.check(layers.CORE, {"a.rs": "// A static\nfn f(text: &'static str) {}"})

    def test_unsafe_code_is_refused_but_in_one_crate(self):
        for text in ("unsafe fn f() {}", "fn f() { unsafe { g() } }", "#![allow(unsafe_code)]"):
            self.check("src", {"a.rs": text}, f"src/a.rs has unsafe code, which is for {layers.UNSAFE}")
            self.check(layers.UNSAFE, {"a.rs": text})

    def test_a_folder_without_code_is_refused(self):
        self.check("src", {"a.txt": ""}, "src has no code")


# What cargo-nextest says of four tests.
REPORT = """<testsuites><testsuite name="x">
<testcase name="a::passes"/>
<testcase name="a::fails"><failure>once</failure><rerunFailure>twice</rerunFailure><system-err>
thread 'a::fails' panicked at a.rs:1:2:
the runner ended with 1
[ERROR] Tests run: 2
[ERROR]   ATest.fails:3 Timeout
</system-err></testcase>
<testcase name="a::passes_when_repeated"><flakyFailure>once</flakyFailure></testcase>
<testcase name="a::leaves_itself_out"><system-out>12 histories
1 histories
</system-out></testcase>
</testsuite></testsuites>"""

# Prints what a program of tests does.
PROGRAM = """#!/bin/sh
echo 'a::c: no such server' >> "$REDIS_LOCK_NOT_RUN"
printf 'test a::b ... FAILED\\ntest a::c ... ok\\n\\nfailures:\\n\\n---- a::b stdout ----\\n    x\\n'
printf '\\nfailures:\\n    a::b\\n\\ntest result: FAILED. 2 passed; 1 failed; 0 ignored; \\n'
exit 101
"""


class Counted(unittest.TestCase):
    def test_what_passes_only_when_it_is_repeated_is_named(self):
        count = test.Count()
        test.count_report(count, REPORT)
        self.assertEqual((count.passed, count.failed), (3, ["a::fails"]))
        self.assertEqual((count.repeated, count.histories), (["a::passes_when_repeated"], 13))
        self.assertIn("passed only when repeated 1", count.line())

    def test_the_reasons_of_a_failure_are_in_the_summary(self):
        count = test.Count()
        test.count_report(count, REPORT)
        with contextlib.redirect_stdout(io.StringIO()) as said, self.assertRaises(SystemExit):
            test.end(count, "test")
        lines = said.getvalue().splitlines()
        at = lines.index("failed: a::fails")
        reasons = [
            "thread 'a::fails' panicked at a.rs:1:2:",
            "the runner ended with 1",
            "[ERROR]   ATest.fails:3 Timeout",
        ]
        self.assertEqual(lines[at + 1 : at + 4], [f"    {line}" for line in reasons])

    def play(self, text):
        """What is counted of a program, and of what it says it has not run."""
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            file = Path(folder) / "program"
            file.write_text(text)
            file.chmod(0o755)
            with open(Path(folder) / "left", "w+b") as left_out, test.Log(Path(folder) / "log") as log:
                count = test.play_program([file], folder, log, REDIS_LOCK_NOT_RUN=left_out.name)
                test.note_not_run(count, left_out)
        return count.passed, count.failed, count.not_run

    def test_a_program_of_tests_is_counted_by_its_result(self):
        self.assertEqual(self.play(PROGRAM), (1, ["a::b"], {"a::c": "no such server"}))

    def test_a_program_that_breaks_off_has_failed(self):
        for text in ("#!/bin/sh\nexit 3\n", "#!/bin/sh\nkill -9 $$\n"):
            passed, failed, _ = self.play(text)
            self.assertEqual((passed, len(failed)), (0, 1))
            self.assertIn("before its result", failed[0])

    def test_both_ways_to_run_tests_choose_the_same(self):
        choice = test.Choice([], skipped=["a::b", "c::"], name="x", packages=["p", "o"])
        of_server = "not (binary(=server) & test(/^(a::b|c::)/))"
        self.assertEqual(choice.expression(), f"(package(=p)|package(=o)) & {of_server} & test(x)")
        for program, name, has in (
            ("server", "a::x", True),
            ("server", "a::bx", False),
            ("server", "c::x", False),
            ("model", "c::x", True),
            ("model", "c::y", False),
        ):
            self.assertIs(choice.has("p", program, name), has, (program, name))
        self.assertFalse(choice.has("q", "model", "x"))
        only = test.Choice([], only=["a::"])
        self.assertEqual(only.expression(), "(not binary(=server) | test(/^(a::)/))")
        self.assertEqual([only.has("p", *which) for which in (("server", "b"), ("guide", "b"))], [False, True])

    def test_what_may_be_repeated_is_a_test(self):
        words = set()
        for folder in ("tests", "cli/tests", "clients/rust/tests"):
            for file in (test.ROOT / folder).rglob("*.rs"):
                words.update(re.findall(r"\w+", file.read_text()))
        named = test.named_in_config()
        self.assertGreater(len(named), 20)
        self.assertEqual([name for name in named if name.rsplit("::", 1)[1] not in words], [])


def recipes():
    """tests/operations/recipes as a module."""
    loader = importlib.machinery.SourceFileLoader("recipes", str(test.RECIPES))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("recipes", loader))
    loader.exec_module(module)
    return module


PAGE = """# Page
Text about `10.0.0.9`.
## One
On `10.0.0.2` and `10.0.0.3`:
```sh
a
b
```
It prints, until it prints it:
```text
c
```
Text. Then on `10.0.0.1` type, and repeat this until 10.0.0.4 does it:
```sh
d
```
## Two
```redis
> PING
```
"""


class Recipes(unittest.TestCase):
    def test_a_page_is_read_as_its_reader_does(self):
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "page.md"
            page.write_text(PAGE)
            [recipe] = recipes().recipes_of(page)
        self.assertEqual(recipe.name, "operations::page::one")
        kinds = [(block.kind, block.text, block.machines()) for block in recipe.blocks]
        first = ("sh", "a\nb", ["10.0.0.2", "10.0.0.3"])
        self.assertEqual(kinds, [first, ("text", "c", []), ("sh", "d", ["10.0.0.1"])])

    def test_what_is_printed_must_be_what_is_shown(self):
        agrees = recipes().agrees
        for shown, said in (
            ("a\nb", "a\nb\n"),
            ("...\nb", "b"),
            ("...\nb", "x\ny\nb"),
            ("a ... z", "a b c z"),
            ("left 12345", "left 987654"),
            ("1795254138291343\n1795254138291343", "1795254138299999\n1795254138299999"),
            ("a", "a\n(0.72s)"),
        ):
            self.assertTrue(agrees(shown, said, {}), (shown, said))
        for shown, said in (
            ("a\nb", "a"),
            ("a", "a\nb"),
            ("...\nb", "x\nbb"),
            ("a.c", "abc"),
            ("left 12345", "left 0"),
            ("left 1234", "left 1235"),
            ("1795254138291343\n1795254138291343", "1795254138299999\n1795254138299998"),
        ):
            self.assertFalse(agrees(shown, said, {}), (shown, said))
        # A fence stays the same from one block to the next.
        fences = {}
        self.assertTrue(agrees("1795254138291343", "1795254138299999", fences))
        self.assertFalse(agrees("1795254138291343", "1795254138299998", fences))


class Licences(unittest.TestCase):
    def test_what_only_tests_need_is_in_no_program(self):
        linked = licences.linked(licences.metadata(), "--package", "redis-lock", "--package", "redis-lock-cli")
        names = {package["name"] for package in linked}
        self.assertIn("redis", names)
        self.assertEqual(names & {"log", "opentelemetry", "proptest", "tokio"}, {"log"})

    def test_the_page_of_the_crate_for_rust_has_all_that_it_needs_and_no_more(self):
        page = (licences.ROOT / licences.PAGE).read_text()
        row = "| `tokio` | the feature `tokio` | MIT |"
        for now, problem in (
            (page.replace(row, ""), "no row: tokio | MIT"),
            (page.replace(row, row.replace("MIT", "GPL")), "a row too many: tokio | GPL"),
            (page.replace("- ISC\n", ""), "not listed, or without need: ISC"),
        ):
            self.assertIn(problem, licences.problems(now))
        self.assertEqual(licences.problems(page), [])


if __name__ == "__main__":
    unittest.main()
