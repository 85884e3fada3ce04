#!/usr/bin/env python3
"""Prints, checks or sets the version and the address of the repository: [workspace.package] of Cargo.toml has both.

    tools/version.py                prints it: 1.0.0-rc.1
    tools/version.py --debian       as Debian writes it: 1.0.0~rc.1
    tools/version.py --notes        prints its section of CHANGELOG.md: the notes of a release
    tools/version.py --tag v1.0.0   fails unless this tag names the version, and there is an address
    tools/version.py --check        fails with one line for each place that has another version, or address
    tools/version.py --set 1.0.0    writes it to Cargo.toml and to each place that --check compares
    tools/version.py --home         prints the address of the repository, or nothing: it has none yet
    tools/version.py --home https://code.example/owner/locks
                                    writes it to all packages, to README.md and to the links of the pages that
                                    registries show, and the path of Go's modules to all that imports them

The module, the program redis-lock and the packages take the version from Cargo.toml when they are built. What is not
built by cargo repeats it: the lock files, the helpers, the pod of Kubernetes, and the changelog.
A command has the version that first had it (since). That is a release of the changelog, or the one in the making.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = r"\d+\.\d+\.\d+(?:-rc\.\d+)?"
SOURCE = ("Cargo.toml", rf'^\[workspace\.package\]\nversion = "({VERSION})"$')
HEADING = r"^## (\S+)(?: - \d{4}-\d\d-\d\d)?$"


def whole(version):
    """The release that a candidate leads to: 1.0.0 of 1.0.0-rc.1."""
    return version.split("-")[0]


def python(version):
    """As PEP 440 writes it: 1.0.0rc1."""
    return version.replace("-rc.", "rc")


def debian(version):
    """The tilde sorts a candidate before its release."""
    return version.replace("-", "~")


# The packages of the workspace that have the version, by name and folder, and those that fuzz/Cargo.lock names, too.
PACKAGES = {
    "linked": "tests/support/linked",
    "lock-core": "crates/core",
    "redis-lock": ".",
    "redis-lock-cli": "cli",
    "redis-lock-client": "clients/rust",
    "server-api": "crates/server-api",
}
JAVA = "core lettuce jedis kit micrometer shedlock spring boot agent bench curator tests".split()
FUZZED = ["linked", "lock-core", "server-api"]
# File, pattern whose first group is the version, how the version is written there.
REPEATED = [
    *(("Cargo.lock", rf'^name = "{name}"\nversion = "(.*)"$', str) for name in PACKAGES),
    *(("fuzz/Cargo.lock", rf'^name = "{name}"\nversion = "(.*)"$', str) for name in FUZZED),
    ("clients/python/redis_lock_client/__init__.py", r'^__version__ = "(.*)"$', python),
    ("clients/node/package.json", r'^  "version": "(.*)",$', str),
    ("clients/java/README.md", r"^  <version>(.*)</version>$", str),
    ("clients/java/README.md", r'redislock-lettuce:(.*)"\)', str),
    ("contrib/kubernetes/redis-lock.yaml", r"^ *image: redis-lock:(.*)$", str),
    *(
        (f"clients/java/{folder}pom.xml", r"-parent</artifactId>\n *<version>(.*)</version>$", str)
        for folder in ("", *(f"{name}/" for name in JAVA))
    ),
]
# While CHANGELOG.md has a section "Unreleased", it says which release that becomes.
BECOMES = ("CHANGELOG.md", r"this section becomes (\d+\.\d+\.\d+)\.", whole)
# File, the lines behind which the address stands, how it stands there.
HOMES = [
    ("Cargo.toml", r'^\[workspace\.package\]\nversion = ".*"\n', 'repository = "{home}"\n'),
    *(
        (f"{folder}/Cargo.toml", r'^license = "MIT"\n', "repository.workspace = true\n")
        for folder in (".", "cli", "clients/rust")
    ),
    (
        "clients/node/package.json",
        r'^  "license": "MIT",\n',
        '  "repository": {{\n    "type": "git",\n    "url": "git+{home}.git",\n'
        '    "directory": "clients/node"\n  }},\n',
    ),
    ("clients/python/pyproject.toml", r'^dynamic = \["version"\]\n', '\n[project.urls]\nRepository = "{home}"\n'),
    (
        "clients/java/pom.xml",
        r"^  <description>.*</description>\n",
        "  <url>{home}</url>\n  <scm>\n    <url>{home}</url>\n  </scm>\n",
    ),
]
# How README.md says to get the repository.
CLONE = "git clone {} redis-lock"
# What registries show of the packages. Their readers have no other file of the repository.
PAGES = [f"clients/{name}/README.md" for name in ("go", "java", "node", "python", "rust")]
# Go's modules are named by an address. Without one they have this, which leads nowhere.
NOWHERE = "https://redis-lock.example"
GO = ("README.md", "clients/bench", "clients/go", "docs", "tests/helpers")
INHERITED = [(Path(folder) / "Cargo.toml").as_posix() for folder in PACKAGES.values()]


def text_of(name):
    return (ROOT / name).read_text()


def place(name, pattern):
    """Where the version stands in a file. It must stand there once."""
    found = list(re.finditer(pattern, text_of(name), re.M))
    if len(found) != 1:
        sys.exit(f"version: {name} has {len(found)} lines like {pattern}")
    return found[0]


def version():
    return place(*SOURCE).group(1)


def home():
    """The address of the repository; None while it has none."""
    found = re.search(r'^repository = "(.*)"$', text_of("Cargo.toml"), re.M)
    return found[1] if found else None


def module_of(address):
    """The path that all modules of Go begin with."""
    return f"{address.partition('://')[2]}/clients/go"


def files_of(address):
    """What the address of each file begins with."""
    return f"{address}/blob/main/"


def with_addresses(name, address):
    """A page whose links lead to files by their addresses."""
    # They ask for the address of today.
    import docs
    import links

    lines = text_of(name).splitlines()
    for number, line in links.lines_of(ROOT / name):
        for begin, end in sorted(docs.targets_of(line), reverse=True):
            found = docs.path_of(name, line[begin:end])
            if found:
                line = line[:begin] + files_of(address) + "#".join(filter(None, found)) + line[end:]
        lines[number - 1] = line
    return "\n".join(lines) + "\n"


def importers(path):
    """The files that name a module of Go by this path."""
    for name in GO:
        for file in [ROOT / name, *sorted((ROOT / name).rglob("*"))]:
            if file.suffix in (".go", ".md", ".mod", ".rs") and path in file.read_text():
                yield file


def wrong_homes():
    """A line for each place that lacks the address."""
    address = home()
    if address is None:
        return
    for name, _, how in HOMES:
        if how.format(home=address) not in text_of(name):
            yield f"{name} lacks the address {address}"
    if CLONE.format(f"{address}.git") not in text_of("README.md"):
        yield f"README.md does not clone {address}.git"
    for name in PAGES:
        if with_addresses(name, address) != text_of(name):
            yield f"{name} has a link that leads nowhere on a registry: begin it with {files_of(address)}"
    for file in importers(module_of(NOWHERE)):
        yield f"{file.relative_to(ROOT)} names {module_of(NOWHERE)}: here that is {module_of(address)}"


def set_home(new):
    if not re.fullmatch(r"https://[\w.-]+(?:/[\w.-]+)+(?<!\.git)", new):
        sys.exit(f"version: {new} is not like https://code.example/owner/locks")
    old = home()
    pages = {name: with_addresses(name, new) for name in PAGES}
    clones = [CLONE.format(f"{address}.git" if address else "<this repository>") for address in (old, new)]
    pages["README.md"] = text_of("README.md").replace(*clones)
    for name, text in pages.items():
        (ROOT / name).write_text(text)
    for name, behind, how in HOMES:
        text, line = text_of(name), how.format(home=new)
        if old is not None:
            text = text.replace(how.format(home=old), line)
        else:
            at = place(name, behind).end()
            text = text[:at] + line + text[at:]
        (ROOT / name).write_text(text)
    path = module_of(old or NOWHERE)
    for file in importers(path):
        file.write_text(file.read_text().replace(path, module_of(new)))


def repeated():
    unreleased = re.search(BECOMES[1], text_of("CHANGELOG.md"))
    return [*REPEATED, BECOMES] if unreleased else REPEATED


def wrong():
    """A line for each place that has another version."""
    ours = version()
    for name, pattern, how in repeated():
        found = place(name, pattern).group(1)
        if found != how(ours):
            yield f"{name} says {found}, and Cargo.toml {ours}: here that is {how(ours)}"
    for name in INHERITED:
        if not re.search(r"^version\.workspace = true$", text_of(name), re.M):
            yield f"{name} has a version of its own: say version.workspace = true"
    headings = re.findall(HEADING, text_of("CHANGELOG.md"), re.M)
    if ours not in headings and "Unreleased" not in headings:
        yield f"CHANGELOG.md has neither {ours} nor Unreleased"
    # Candidates are no releases.
    released = {heading for heading in headings if re.fullmatch(r"\d+\.\d+\.\d+", heading)} | {whole(ours)}
    for file in sorted((ROOT / "src/command").glob("*.rs")):
        for since in re.findall(r'\bsince: c"(.*?)"', file.read_text()):
            if since not in released:
                yield f"{file.relative_to(ROOT)} has a command since {since}, which is no release of CHANGELOG.md"


def set_version(new):
    if not re.fullmatch(VERSION, new) or any(len(part) > 2 for part in whole(new).split(".")):
        sys.exit(f"version: {new} is not like 1.0.0 or 1.0.0-rc.1, with two digits a part at most")
    for name, pattern, how in [(*SOURCE, str), *repeated()]:
        text, found = text_of(name), place(name, pattern)
        (ROOT / name).write_text(text[: found.start(1)] + how(new) + text[found.end(1) :])


def notes():
    """The section of this version, or else of what is not released yet."""
    sections = re.split(r"^## ", text_of("CHANGELOG.md"), flags=re.M)[1:]
    by_name = {section.split()[0]: section.partition("\n")[2].strip() for section in sections}
    for name in (version(), whole(version()), "Unreleased"):
        if name in by_name:
            return by_name[name]
    sys.exit(f"version: CHANGELOG.md has neither {version()} nor Unreleased")


def main(arguments):
    word, value = (arguments + [None, None])[:2]
    if not arguments:
        print(version())
    elif arguments == ["--debian"]:
        print(debian(version()))
    elif arguments == ["--notes"]:
        print(notes())
    elif arguments == ["--check"]:
        lines = [*wrong(), *wrong_homes()]
        print("".join(f"version: {line}\n" for line in lines), end="")
        sys.exit(1 if lines else 0)
    elif word == "--tag" and len(arguments) == 2:
        if value != f"v{version()}":
            sys.exit(f"version: the tag {value} is not v{version()}, as Cargo.toml has it")
        if home() is None:
            sys.exit("version: the packages' pages have links that lead nowhere before --home has set an address")
    elif word == "--set" and len(arguments) == 2:
        set_version(value)
    elif arguments == ["--home"]:
        print(home() or "", end="\n" if home() else "")
    elif word == "--home" and len(arguments) == 2:
        set_home(value)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
