#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The program's build must not grow by more than 10 %: bytes that the compiler reads, which take most of its time.

build_cost.py BUILD [--record]
build_cost.py --self-test

BUILD is a folder that Ninja built in. Its notes on headers are summed over the objects of the program, and compared with
analysis/results/build.json, which --record writes. Another compiler reads other headers: then nothing is compared.
"""

import collections
import json
import pathlib
import re
import subprocess
import sys

import tree

RECORD = tree.ROOT / "analysis/results/build.json"
ALLOWED = 1.10
_OBJECT = re.compile(r"^((?:src|parallel|io)/\S*CMakeFiles/hyperslab(_\w+)?\.dir/\S+\.o): #deps ")


def program_objects(text):
    """{object: its files} of the program, from what `ninja -t deps` prints."""
    objects, files = {}, None
    for line in text.splitlines():
        if line and not line.startswith(" "):
            found = _OBJECT.match(line)
            files = objects.setdefault(found[1], []) if found and "(VALID)" in line else None
        elif files is not None and line.strip():
            files.append(line.strip())
    return {name: files for name, files in objects.items() if "verify_interface" not in name}


def bytes_by_module(objects, size):
    """Bytes that the objects of each folder read; size(path) is the size of a file."""
    total = collections.Counter()
    for name, files in objects.items():
        total[name.split("/CMakeFiles/")[0]] += sum(size(path) for path in files)
    return dict(sorted(total.items()))


def complaints_of(now, before):
    """One line that names the folders that grew most, if the sum grew by more than is allowed."""
    growth = sum(now.values()) / sum(before.values())
    if growth <= ALLOWED:
        return []
    most = sorted(now, key=lambda name: before.get(name, 0) - now[name])[:3]
    rows = ", ".join(f"{name} from {before.get(name, 0) / 1e6:.0f} to {now[name] / 1e6:.0f} MB" for name in most)
    return [f"the build of the program reads {growth:.2f} times the bytes on record (at most {ALLOWED:.2f}): {rows}. Include less in "
            "headers (forward declarations, json_fwd.hpp), or record it with --record and say why in the commit"]


def self_test():
    """The sum decides; other objects and stale notes do not count."""
    text = ("src/cli/CMakeFiles/hyperslab.dir/a.cpp.o: #deps 2, deps mtime 1 (VALID)\n    a.cpp\n    b.hpp\n\n"
            "io/deck/CMakeFiles/hyperslab_deck.dir/b.cpp.o: #deps 1, deps mtime 1 (VALID)\n    b.hpp\n\n"
            "tests/core/CMakeFiles/core_test.dir/c.cpp.o: #deps 1, deps mtime 1 (VALID)\n    c.cpp\n\n"
            "io/deck/CMakeFiles/hyperslab_deck.dir/d.cpp.o: #deps 1, deps mtime 1 (STALE)\n    b.hpp\n")
    found = bytes_by_module(program_objects(text), {"a.cpp": 10, "b.hpp": 100, "c.cpp": 1000}.get)
    faults = [] if found == {"io/deck": 100, "src/cli": 110} else [f"found {found}"]
    faults += complaints_of(found, {"io/deck": 100, "src/cli": 92})
    if len(complaints_of(found, {"io/deck": 100, "src/cli": 90})) != 1:
        faults.append("a growth of 10.5 % is not found")
    return faults


def check(build, record):
    """Compares with the record, or writes it."""
    def ask(*words):
        return subprocess.run(["ninja", "-C", build, "-t", *words], capture_output=True, text=True, check=True).stdout

    # Notes of earlier configurations stay; the objects of this one are its targets.
    targets = {line.split(": ")[0] for line in ask("targets", "all").splitlines()}
    objects = {name: files for name, files in program_objects(ask("deps")).items() if name in targets}
    cache = (pathlib.Path(build) / "CMakeCache.txt").read_text(encoding="utf-8")
    compiler = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.*)$", cache, re.MULTILINE)[1]
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    sizes = {}

    def size(path):
        if path not in sizes:
            sizes[path] = (pathlib.Path(build) / path).stat().st_size
        return sizes[path]

    now = bytes_by_module(objects, size)
    print(f"build: the compiler reads {sum(now.values()) / 1e6:.0f} MB for the program")
    if record:
        text = json.dumps({"compiler": version, "bytes_read": now}, indent=1) + "\n"
        RECORD.write_text(text, encoding="utf-8")
        return []
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    if recorded["compiler"] != version:
        print(f"build: not compared, the record is of {recorded['compiler']}, here is {version}")
        return []
    return complaints_of(now, recorded["bytes_read"])


def main():
    arguments = tree.arguments_of(__doc__, ("build", {"nargs": "?"}), ("--record", {"action": "store_true"}))
    return tree.report("build", self_test() if arguments.self_test else check(arguments.build, arguments.record))


if __name__ == "__main__":
    sys.exit(main())
