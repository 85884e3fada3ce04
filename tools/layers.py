#!/usr/bin/env python3
"""Checks what no compiler checks of the imports of crates, and of the code that a server loads. Changes nothing.

    tools/layers.py          fails if files of a crate import each other in a cycle; of what a server loads also if they
                             do against the order of folders, if the core has a static, or if a crate but server-api
                             has unsafe code
    tools/layers.py --list   prints what each file imports

Cargo.toml of each crate says which other crates it may use.

An import is a path in code that begins with crate, super, self or a module of the file. Tests do not count, and a
declaration (mod x;) is no import.
"""

import graphlib
import re
import sys
from pathlib import Path

from lengths import TOKEN

ROOT = Path(__file__).resolve().parent.parent
# The crates that a server loads, by the folder of their code. A folder of it may import itself and those before it.
CORE = "crates/core/src"
CRATES = {
    CORE: ["collections", "model", "wait", "manager"],
    "crates/server-api/src": [],
    "src": ["module", "command"],
}
# The others. Of their files it is asked alone that no imports are a cycle.
OTHERS = [
    *("cli/src", "clients/rust/src", "faults/src", "bench/server/src", "bench/core/world"),
    *("tests/support/testbed/src", "tests/model/src", "tests/server", "tests/helpers", "cli/tests/program"),
]
# Points in time are numbers with a name: every folder may use them.
FREE = {f"{CORE}/model/time.rs"}
# The crate that may do what the others may not.
UNSAFE = "crates/server-api/src"

TESTS = re.compile(r"#\[cfg\(test\)\]\s*mod \w+ \{")
USE = re.compile(r"^[ \t]*(?:pub(?:\([^)]*\))? )?use ([^;]+);", re.M)
INLINE = re.compile(r"(?<![\w:])((?:crate|self|super)(?:::\w+)+)")
STATIC = re.compile(r"^\s*(?:pub(?:\([^)]*\))? )?static |thread_local!", re.M)
ALLOWED = re.compile(r"allow\(unsafe_code|unsafe (?:fn|impl|extern)|unsafe \{")


def code_of(file):
    """The text without comments, strings and tests."""
    text = TOKEN.sub(" ", file.read_text())
    while found := TESTS.search(text):
        depth, at = 1, found.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        text = text[: found.start()] + text[at:]
    return text


def module_of(file, folder):
    """crate::wait::table of wait/table.rs in the folder of a crate."""
    parts = list(file.relative_to(folder).with_suffix("").parts)
    return ("crate", *(parts[:-1] if parts[-1] in ("mod", "lib", "main") else parts))


def branches(tree):
    """The paths of a use with braces."""
    tree = tree.strip()
    brace = tree.find("{")
    if brace < 0:
        yield tree.split(" as ")[0].strip()
        return
    head, depth, start = tree[:brace], 0, brace + 1
    for at in range(brace, len(tree)):
        if tree[at] == "{":
            depth += 1
        elif tree[at] == "}":
            depth -= 1
        if (tree[at] == "," and depth == 1) or depth == 0:
            if tree[start:at].strip():
                yield from (head + branch for branch in branches(tree[start:at]))
            start = at + 1
        if depth == 0:
            return


def absolute(path, module, modules):
    """A path as one that begins with crate; None if it is of another crate."""
    words = [word.strip() for word in path.split("::")]
    if words[0] == "self":
        words = [*module, *words[1:]]
    elif words[0] == "super":
        up = 0
        while words[up : up + 1] == ["super"]:
            up += 1
        words = [*module[: len(module) - up], *words[up:]]
    elif words[0] != "crate":
        if (*module, words[0]) not in modules:
            return None
        words = [*module, *words]
    return tuple(word for word in words if word != "self")


def imports(crate):
    """Of each file of a crate, by its path from the top, the files that it imports."""
    found, folder = {}, ROOT / crate
    files = [file for file in sorted(folder.rglob("*.rs")) if file.relative_to(folder).parts[0] != "bin"]
    modules = {module_of(file, folder): file for file in files}
    for module, file in modules.items():
        code = code_of(file)
        paths = [path for tree in USE.findall(code) for path in branches(tree)]
        paths += INLINE.findall(USE.sub(" ", code))
        targets = set()
        for path in paths:
            words = absolute(path, module, modules)
            while words and words not in modules:
                words = words[:-1]
            # What only lib.rs has is a macro, or comes from another crate.
            if words and words != module and words != ("crate",):
                targets.add(modules[words].relative_to(ROOT).as_posix())
        found[file.relative_to(ROOT).as_posix()] = targets
    return found


def programs():
    """The folders of programs with several files: each is a crate of its own."""
    mains = [main for crate in OTHERS for main in sorted((ROOT / crate).glob("bin/*/main.rs"))]
    return [main.parent.relative_to(ROOT).as_posix() for main in mains]


def cycles(graph):
    """A set of files that import each other in a cycle, if there is one."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        yield set(error.args[1])


def rank(file, crate):
    """The position of a file's folder in the order of its crate; None if it has none."""
    return next((at for at, folder in enumerate(CRATES[crate]) if file.startswith(f"{crate}/{folder}/")), None)


def against_the_order(crate, graph):
    """The imports that the order of folders forbids, a line each."""
    for file, targets in sorted(graph.items()):
        for target in sorted(targets - FREE):
            here, there = rank(file, crate), rank(target, crate)
            if here is not None and there is not None and here < there:
                yield f"{file} imports {target}, which comes after it"


def wrong(crate):
    """All that is wrong with a crate, a line each."""
    graph = imports(crate)
    if not graph:
        yield f"{crate} has no code"
    for cycle in cycles(graph):
        yield f"a cycle of imports: {' '.join(sorted(cycle))}"
    if crate not in CRATES:
        return
    yield from against_the_order(crate, graph)
    for file in graph:
        code = code_of(ROOT / file)
        if crate == CORE and STATIC.search(code):
            yield f"{file} has a static"
        if crate != UNSAFE and ALLOWED.search(code):
            yield f"{file} has unsafe code, which is for {UNSAFE}"


def main():
    if sys.argv[1:] not in ([], ["--list"]):
        sys.exit(__doc__)
    crates = [*CRATES, *OTHERS, *programs()]
    if sys.argv[1:]:
        for crate in crates:
            for file, targets in sorted(imports(crate).items()):
                print(f"{file}: {' '.join(sorted(targets))}")
        return
    found = [line for crate in crates for line in wrong(crate)]
    for line in found:
        print(f"layers: {line}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
