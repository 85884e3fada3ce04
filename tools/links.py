#!/usr/bin/env python3
"""Checks the links of every Markdown file of the repository: relative ones, and anchors.

    tools/links.py           each link names a file, a folder or a heading that is there
    tools/links.py --paths   also each path in backticks: `src/lib.rs` must be there

The address of a file of the repository, as tools/version.py --home writes it, is checked as a relative link. No address
of another machine is opened. Fails with one line for each dead link.
"""

import re
import sys
import urllib.parse
from pathlib import Path

import lengths
import version

ROOT = Path(__file__).resolve().parent.parent
# [text](target), [text](target "title"), ![alt](target); the text may contain brackets, as of an image.
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^()\s<>]+(?:\([^()\s]*\))?)>?(?:\s+\"[^\"]*\")?\s*\)")
# [text]: target
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s+<?(\S+?)>?(?:\s|$)")
CODE = re.compile(r"(`+)(?:(?!\1).)+?\1")
HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$")
ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")
# What the address of each file of the repository begins with, once it has one: those are checked, too.
FILES = version.files_of(version.home() or version.NOWHERE)
# Words in backticks that begin with a folder of the repository are paths.
PATH = re.compile(r"^(?:src|tests|tools|docs|bench|fuzz|faults|contrib|\.ci)(?:/[\w.\-]+)*/?$")


def lines_of(file):
    """The lines outside of code blocks, with their numbers."""
    return ((number, line) for number, line, is_code in lengths.blocks(file.read_text()) if not is_code)


def anchors_of(file, known={}):
    """The anchors of the headings of this file, as the usual hosts make them."""
    if file not in known:
        found, count = set(), {}
        for _, line in lines_of(file):
            found.update(ANCHOR.findall(line))
            heading = HEADING.match(line)
            if heading:
                text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[2])
                text = re.sub(r"[^\w\- ]", "", text.lower().replace("`", "")).replace(" ", "-")
                count[text] = count.get(text, -1) + 1
                found.add(text if count[text] == 0 else f"{text}-{count[text]}")
        known[file] = found
    return known[file]


def inside(target):
    """A link to a file of the repository, by its address, as one from the root."""
    return "/" + target.removeprefix(FILES) if target.startswith(FILES) else target


def dead(file, target):
    """Why a link is dead; None if it is not."""
    target = inside(target)
    if re.match(r"^[a-z][a-z0-9+.\-]*:", target) or target.startswith("//"):
        return None
    path, _, anchor = target.partition("#")
    base = ROOT if path.startswith("/") else file.parent
    place = (base / urllib.parse.unquote(path.lstrip("/"))).resolve() if path else file
    if ROOT not in place.parents and place != ROOT:
        return "leads out of the repository"
    if not place.exists():
        return "there is no such file"
    if anchor and place.suffix == ".md" and urllib.parse.unquote(anchor) not in anchors_of(place):
        return "there is no such heading"
    return None


def check(file, with_paths):
    for number, line in lines_of(file):
        targets = [(target, dead(file, target)) for target in LINK.findall(CODE.sub("``", line))]
        targets += [(target, dead(file, target)) for target in REFERENCE.findall(line)]
        if with_paths:
            words = (code.group(0).strip("`").strip() for code in CODE.finditer(line))
            paths = [word for word in words if PATH.match(word)]
            targets += [(path, None if (ROOT / path).exists() else "there is no such path") for path in paths]
        for target, why in targets:
            if why:
                yield f"{file.relative_to(ROOT)}:{number}: {target}: {why}"


def main():
    if sys.argv[1:] not in ([], ["--paths"]):
        sys.exit(__doc__)
    files = [ROOT / name for name in lengths.tracked() if name.endswith(".md")]
    found = [line for file in files for line in check(file, with_paths="--paths" in sys.argv)]
    for line in found:
        print(line)
    if found:
        sys.exit(f"links: {len(found)} dead")


if __name__ == "__main__":
    main()
