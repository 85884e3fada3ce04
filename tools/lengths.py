#!/usr/bin/env python3
"""Checks how long files and lines are, and the documents together. Changes nothing.

- A file of src or crates has at most 450 lines, tests inside included.
- A line of code has at most 120 characters. So has a line of a code block in Markdown.
- A cell of a table in Markdown has at most 200 characters, without the targets of its links.
- The pages of docs have at most 98,400 words together, as `wc -w` counts them.

Two kinds of lines may be longer, because they cannot be cut. Outside of src and crates a string may
be, such as the reply that a test expects. In Markdown a command of the server may be, because redis-cli takes it on
one line.
The prose of Markdown is not checked: the editor wraps it (.editorconfig).
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE_LINES_MAX = 450
# The code that a server loads.
LOADED = ("src/", "crates/")
LINE_MAX = 120
CELL_MAX = 200
DOCS_WORDS_MAX = 98_400

CODE = {".rs", ".py", ".sh", ".mjs"}
CODE_BY_NAME = {"Makefile", ".ci/run"}
# A comment, or a string of Rust.
TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|(?:b|c)?r(#*)".*?"\1|(?:b|c)?"(?:\\.|[^"\\])*"|b?'(?:\\[^\n]{1,8}?|[^'\\\n])'""", re.S
)
FENCE = re.compile(r"^\s*(?:>\s*)?(`{3,}|~{3,})")
# [text](target)
LINK = re.compile(r"\[([^\[\]]*)\]\([^()]*\)")
# LOCK.ACQUIRE key owner; > EVAL "..." 1 key; alice> GET text
COMMAND = re.compile(r"^(?:\w*> )?[A-Z][A-Z.]+ ")


def tracked():
    """The files of the repository in their order, also those that git does not know yet."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.split("\0")
    return sorted(name for name in set(names) if name and (ROOT / name).is_file())


def without_strings(text):
    """Rust without the contents of its strings; each line keeps its number."""

    def short(found):
        token = found.group(0)
        return token if token.startswith("/") else '"' + "\n" * token.count("\n") + '"'

    return TOKEN.sub(short, text)


def lines_to_check(name, text):
    """The lines of code, with their numbers."""
    if name.endswith(".rs") and not name.startswith(LOADED):
        text = without_strings(text)
    if not name.endswith(".md"):
        yield from enumerate(text.splitlines(), 1)
        return
    yield from ((number, line) for number, line, is_code in blocks(text) if is_code and not COMMAND.match(line))


def blocks(text):
    """The lines of Markdown with their numbers, and whether they stand in a block of code."""
    fence = None
    for number, line in enumerate(text.splitlines(), 1):
        mark = FENCE.match(line)
        if fence is None and mark:
            fence = mark[1]
        elif fence is not None and mark and mark[1].startswith(fence):
            fence = None
        else:
            yield number, line, fence is not None


def too_long(name, text):
    """What is wrong with a file, a line each."""
    count = len(text.splitlines())
    if name.startswith(LOADED) and count > FILE_LINES_MAX:
        yield f"{name}: {count} lines, of at most {FILE_LINES_MAX}"
    for number, line in lines_to_check(name, text):
        if len(line) > LINE_MAX:
            yield f"{name}:{number}: {len(line)} characters, of at most {LINE_MAX}"
    if name.endswith(".md"):
        for number, line, is_code in blocks(text):
            cells = line.strip("| ").split(" | ") if line.startswith("|") and not is_code else []
            for length in (len(LINK.sub(r"\1", cell)) for cell in cells):
                if length > CELL_MAX:
                    yield f"{name}:{number}: a cell of {length} characters, of at most {CELL_MAX}"


def too_many_words(pages):
    """What is wrong with the pages of docs together, given by their names."""
    count = sum(len(text.split()) for name, text in pages.items() if name.startswith("docs/") and name.endswith(".md"))
    if count > DOCS_WORDS_MAX:
        yield f"docs: {count} words, of at most {DOCS_WORDS_MAX}"


def main():
    if sys.argv[1:]:
        sys.exit(__doc__)
    code = [name for name in tracked() if Path(name).suffix in {*CODE, ".md"} or name in CODE_BY_NAME]
    texts = {name: (ROOT / name).read_text() for name in code}
    found = [line for name, text in texts.items() for line in too_long(name, text)]
    found += too_many_words(texts)
    for line in found:
        print(f"lengths: {line}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
