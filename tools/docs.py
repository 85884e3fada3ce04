#!/usr/bin/env python3
"""Builds the documents as a site with search, checks every link in it, and asks the search what people type.

    tools/docs.py [FOLDER]  builds target/docs, or the folder. Needs what tools/install.sh docs brings
    tools/docs.py --check   builds nothing: fails if a page of docs is missing in the navigation, or a block of code in
                            tools/docs/blocks.txt, or if a page spells timeout otherwise

The site has the Markdown files of docs, and all others that they link to. Their order is that of the tables in the
README.md of each folder. A file of another kind, such as redis.conf, becomes a page with its text. A folder becomes a
page with the names of its files. So no link leads out of the site, except to addresses on the network.
"""

import collections
import fnmatch
import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path, PurePosixPath

import lengths
import links

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "target/docs-source"
BLOCKS = "tools/docs/blocks.txt"
WORDS = ROOT / "tools/docs/words.txt"
# Where tools/install.sh puts Node.js.
NODE = ROOT / "target/node/bin"
# The first page. The parts of the navigation, each with the page that links to its pages in their order. A page
# outside of docs stands in the first part that links to it, or at the end.
HOME = "docs/README.md"
PARTS = {
    "Guide": "docs/guide/README.md",
    "Commands": "docs/commands/README.md",
    "Reference": "docs/reference/README.md",
    "Operations": "docs/operations/README.md",
    "What to rely on": HOME,
    "Internals": "docs/internals/architecture.md",
}
OTHERS = "The project"
PICTURES = {".png", ".svg"}
# What Pygments calls the languages of files without a telling name.
LANGUAGES = {".rs": "rust", ".py": "python", ".sh": "bash", ".lua": "lua", ".json": "json", ".yml": "yaml", ".js": "js"}
LANGUAGES |= {".mjs": "js", ".toml": "toml", ".ts": "ts", ".go": "go", ".css": "css", ".html": "html"}


# --- which pages there are, and in which order ---


def targets_of(line):
    """The links of a line of Markdown: where each target begins and ends. Code is none."""
    masked = links.CODE.sub(lambda code: "`" * len(code.group(0)), line)
    for pattern in (links.LINK, links.REFERENCE):
        for found in pattern.finditer(masked):
            yield found.span(1)


def path_of(name, target):
    """The path that a link in this file leads to, and its anchor; None if it leads to the network, or to a heading."""
    target = links.inside(target)
    if re.match(r"^[a-z][a-z0-9+.\-]*:", target) or target.startswith("#"):
        return None
    path, _, anchor = target.partition("#")
    base = "" if path.startswith("/") else str(PurePosixPath(name).parent)
    return os.path.normpath(os.path.join(base, urllib.parse.unquote(path).lstrip("/"))), anchor


def linked_from(name):
    """The paths that a file links to, in their order."""
    for _, line in links.lines_of(ROOT / name):
        for begin, end in targets_of(line):
            found = path_of(name, line[begin:end])
            if found:
                yield found[0]


def as_page(path, files):
    """A folder with a README.md is that."""
    readme = f"{path}/README.md"
    return readme if readme in files else path


def collect(files):
    """All pages: Markdown files of docs, and whatever is linked from a page. Paths of files and folders."""
    pages = {name for name in files if name.startswith("docs/") and name.endswith(".md")}
    new = set(pages)
    while new:
        found = {as_page(path, files) for name in new for path in linked_from(name)}
        new = {path for path in found - pages if path.endswith(".md") and path in files}
        pages |= found
    return pages


def navigation(files):
    """The pages of each part, in order, and the pages of docs that no part has."""
    pages = sorted(name for name in collect(files) if name.endswith(".md") and name in files)
    left = [name for name in pages if name != HOME]
    parts = {}
    for title, index in PARTS.items():
        folder = str(PurePosixPath(index).parent)
        # Pages of other folders of docs are in other parts. The home page links to all sorts.
        parts[title] = [
            name
            for name in dict.fromkeys([index, *linked_from(index)])
            if name in left
            and (str(PurePosixPath(name).parent) == folder or (index != HOME and not name.startswith("docs/")))
        ]
        left = [name for name in left if name not in parts[title]]
    # Those of docs among them are a mistake, which --check reports. A reader finds them all the same.
    parts[OTHERS] = left
    return parts, [name for name in left if name.startswith("docs/")]


# --- blocks of code ---


def blocks_of(text):
    """The language behind each fence of a page, "-" if there is none, and the first line of the block."""
    fence = None
    lines = text.splitlines()
    for number, line in enumerate(lines):
        mark = re.match(r"\s*(`{3,})(.*)$", line)
        if mark and fence is None:
            fence = mark[1]
            yield (mark[2].split() or ["-"])[0], lines[number + 1].strip()
        elif mark and mark[1] == fence and not mark[2]:
            fence = None


def counts_of(row, name):
    """The languages of a page that are run as this row says, each with the number of its blocks, or an empty text."""
    if len(row) < 3 or not any(fnmatch.fnmatchcase(name, page) for page in row[0].split()):
        return {}
    return dict(word.partition("=")[::2] for word in row[1].split())


def unknown_blocks(listed, pages, files):
    """A line for each block of these pages that the list has not, and for each line of the list that is wrong."""
    rows = [tuple(cell.strip() for cell in line.split("|")) for line in listed.splitlines() if line and line[0] != "#"]
    unused = set(rows)
    for name, text in sorted(pages.items()):
        played = collections.Counter()
        for language, first in blocks_of(text):

            def has(row, name=name, language=language, first=first):
                page, what, *runner = row
                if not runner:
                    return name == page and first.startswith(what)
                return language in counts_of(row, name)

            found = {row for row in rows if has(row)}
            unused -= found
            played[language] += all(len(row) > 2 for row in found)
            if not found:
                yield f"{name}: a block of code is neither run nor listed as not run in {BLOCKS}: {language}: {first}"
        for row in rows:
            for language, count in counts_of(row, name).items():
                if count and played[language] != int(count):
                    yield f"{name}: {played[language]} blocks of {language}, where {row[2]} plays {count}"
    yield from (f"{BLOCKS}: no block: {' | '.join(row)}" for row in rows if row in unused)
    yield from (f"{BLOCKS}: there is no {row[2]}" for row in rows if len(row) > 2 and row[2] not in files)


# --- words ---

# A wait may time out: then it is a verb.
OTHER_TIMEOUT = re.compile(
    r"\btime-outs?\b|\b(?:an?|the|this|its|each|every|no|of|with|without|by|after|before|until) time\s+outs?\b", re.I
)


def misspelt(pages):
    """A line for each place that spells timeout in another way than the glossary."""
    for name, text in sorted(pages.items()):
        for found in OTHER_TIMEOUT.finditer(text):
            number = text.count("\n", 0, found.start()) + 1
            yield f"{name}:{number}: {' '.join(found[0].split())}: the word is timeout"


# --- the sources of the site ---


def page_name(path, files):
    """The file of a page, among the sources of the site."""
    if path == HOME:
        return "index.md"
    if path in files and (path.endswith(".md") or PurePosixPath(path).suffix in PICTURES):
        return path
    return f"{path}/files.md" if (ROOT / path).is_dir() else f"{path}.md"


def rewritten(name, files):
    """A page whose links lead to pages of the site."""
    text = (ROOT / name).read_text()
    lines = text.splitlines()
    here = PurePosixPath(page_name(name, files)).parent
    for number, line in links.lines_of(ROOT / name):
        for begin, end in sorted(targets_of(line), reverse=True):
            found = path_of(name, line[begin:end])
            if not found:
                continue
            to = os.path.relpath(page_name(as_page(found[0], files), files), here)
            # An anchor of a file that is no Markdown names a line, and there are no lines.
            anchor = f"#{found[1]}" if found[1] and found[0].endswith(".md") else ""
            line = line[:begin] + urllib.parse.quote(to) + anchor + line[end:]
        lines[number - 1] = line
    return "\n".join(lines) + "\n"


def words(questions=False):
    """What people search for, page by page: words, which the index has, or questions."""
    found = {}
    for line in WORDS.read_text().splitlines():
        if line and line[0] != "#" and line.startswith("? ") == questions:
            page, _, listed = line.removeprefix("? ").partition(": ")
            found.setdefault(page, []).extend(word.strip() for word in listed.split(","))
    return found


def with_words(text, listed):
    """A page with these words in the index of the site: below its title, since a page must begin with that."""
    entries = ", ".join(f"! {word}" for word in listed)
    title, _, rest = text.partition("\n")
    return f"{title}\n\n```{{index}} {entries}\n```\n{rest}" if listed else text


def text_page(path):
    """A file that is no Markdown, as a page. It stands in no navigation, and the search does not find it."""
    text = (ROOT / path).read_text(errors="replace")
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall(r"`+", text))])
    language = LANGUAGES.get(PurePosixPath(path).suffix, "text")
    return f"# {path}\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n"


def folder_page(path, files, pages):
    """The files of a folder, with links to those that are pages."""
    inside = sorted(name for name in files if name.startswith(f"{path}/"))
    rows = []
    for name in inside:
        short = name.removeprefix(f"{path}/")
        to = os.path.relpath(page_name(name, files), path)
        rows.append(f"- [`{short}`]({urllib.parse.quote(to)})" if name in pages else f"- `{short}`")
    return f"# {path}/\n\nThe files of this folder:\n\n" + "\n".join(rows) + "\n"


def write_sources(files):
    pages = collect(files)
    parts, _ = navigation(files)
    shown = {HOME, *(name for part in parts.values() for name in part)}
    found = words()
    shutil.rmtree(SOURCE, ignore_errors=True)
    for path in pages:
        place = SOURCE / page_name(path, files)
        place.parent.mkdir(parents=True, exist_ok=True)
        if PurePosixPath(path).suffix in PICTURES:
            shutil.copy(ROOT / path, place)
        elif path in shown:
            place.write_text(with_words(rewritten(path, files), found.get(path, [])))
        else:
            text = text_page(path) if path in files else folder_page(path, files, pages)
            place.write_text(f"---\norphan: true\nnosearch: true\n---\n\n{text}")
    with open(SOURCE / "index.md", "a") as home:
        for title, names in parts.items():
            rows = [name[:-3] for name in names]
            home.write(f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(rows) + "\n```\n")


# What a screen reader misses in the pages of the theme.
NAMES = {
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="All pages">',
    '<aside class="toc-drawer">': '<aside class="toc-drawer" aria-label="This page">',
}


def name_parts(site):
    """Completes the roles and names of parts of the pages."""
    for file in site.rglob("*.html"):
        text = file.read_text()
        for without, complete in NAMES.items():
            text = text.replace(without, complete)
        file.write_text(text)


# --- the links of the site ---


class Page(html.parser.HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.add(value)


def dead_links(site):
    """A line for each link of the site that leads nowhere."""
    pages = {file: Page(file.read_text()) for file in sorted(site.rglob("*.html"))}
    for file, page in pages.items():
        for link in sorted(page.links):
            if re.match(r"^[a-z][a-z0-9+.\-]*:", link) or link.startswith("//"):
                continue
            path, _, anchor = link.partition("#")
            place = (file.parent / urllib.parse.unquote(path.partition("?")[0])).resolve() if path else file
            if site not in place.parents:
                yield f"{file.relative_to(site)}: {link}: leads out of the site"
            elif not place.is_file():
                yield f"{file.relative_to(site)}: {link}: there is no such page"
            elif anchor and place in pages and urllib.parse.unquote(anchor) not in pages[place].anchors:
                yield f"{file.relative_to(site)}: {link}: there is no such heading"


def mistakes(files):
    """A line for each mistake that can be seen without building the site."""
    _, missing = navigation(files)
    for name in missing:
        yield f"{name}: the README.md of its folder has no link to it, so it is missing in the navigation"
    yield from (f"{WORDS.name}: there is no {page}" for page in [*words(), *words(questions=True)] if page not in files)
    pages = {name: (ROOT / name).read_text() for name in files if name.endswith(".md")}
    yield from unknown_blocks((ROOT / BLOCKS).read_text(), pages, files)
    yield from misspelt(pages)


def lead_to_pages(site):
    """Lets the words of the index lead to the top of their page, as its text does: the search shows a page once."""
    index = site / "searchindex.js"
    index.write_text(re.sub(r'"index-\d+"', '""', index.read_text()))


def node():
    """Node.js, where there is one."""
    named = shutil.which(os.environ.get("REDIS_LOCK_NODE", ""))
    return named or shutil.which("node", path=f"{NODE}:{os.environ['PATH']}")


def unfound_words(site):
    """A line for each word or question for which the search of the site does not show its page first."""
    rows = [[page, word] for kind in (False, True) for page, listed in words(kind).items() for word in listed]
    if node() is None:
        why = "docs: Node.js is missing, so nothing was asked of the search"
        print(why, file=sys.stderr)
        return [why] if os.environ.get("CI") else []
    search = [node(), str(ROOT / "tools/docs/search.mjs"), str(site)]
    asked = subprocess.run(search, input=json.dumps(rows), check=True, stdout=subprocess.PIPE, text=True)
    return asked.stdout.splitlines()


def build(site):
    found = list(mistakes(set(lengths.tracked())))
    if found:
        sys.exit("\n".join(found))
    try:
        from sphinx.cmd.build import main as sphinx
    except ImportError:
        sys.exit("docs: Sphinx is missing: tools/install.sh docs brings it into target/venv")
    write_sources(set(lengths.tracked()))
    shutil.rmtree(site, ignore_errors=True)
    # -W: a warning fails the build. The doctrees are of no use to a reader, so they stay outside.
    options = ["-q", "-W", "--keep-going", "-E", "-b", "html", "-c", str(ROOT / "tools/docs")]
    if sphinx([*options, "-d", str(SOURCE / ".doctrees"), str(SOURCE), str(site)]):
        sys.exit("docs: the site was not built")
    for unused in (".buildinfo", "objects.inv"):
        (site / unused).unlink(missing_ok=True)
    name_parts(site)
    lead_to_pages(site)
    found = [*dead_links(site), *unfound_words(site)]
    for line in found:
        print(line)
    if found:
        sys.exit(f"docs: {len(found)} mistakes in the site")
    print(f"{site}/index.html")


def main():
    if sys.argv[1:] == ["--check"]:
        sys.exit(1 if list(map(print, mistakes(set(lengths.tracked())))) else 0)
    if len(sys.argv) > 2 or sys.argv[1:] and sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    build(Path(sys.argv[1]).resolve() if sys.argv[1:] else ROOT / "target/docs")


if __name__ == "__main__":
    main()
