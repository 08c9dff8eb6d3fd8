#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Modules link only to modules before them, in the design's order: read from the symbols of their static libraries.

links_of_modules.py LIBRARY_FOLDER [--nm PROGRAM]
links_of_modules.py --self-test

A shared library per module would find the same faults and would compile every source a second time.
"""

import collections
import concurrent.futures
import pathlib
import subprocess
import sys

import tree
from check_includes import ORDER

PREFIX = "libhyperslab_"


def read_symbols(nm, library):
    """(defined, undefined) names of a static library."""
    shown = subprocess.run([nm, "--format=posix", str(library)], check=True, capture_output=True, text=True).stdout
    defined, undefined = set(), set()
    for line in shown.splitlines():
        words = line.split()
        if len(words) < 2 or len(words[1]) != 1:
            continue  # the name of a member
        name, kind = words[:2]
        if kind in "Uwv":
            undefined.add(name)
        elif kind.isupper() or kind == "u":
            defined.add(name)
    return defined, undefined - defined


def find_edges(symbols):
    """{(module, module it needs): a symbol}: symbols is {module: (defined, undefined)}."""
    owners = {}
    # Of an inline function that several modules emit, the first module counts as its owner.
    for module in sorted(symbols, key=lambda name: -ORDER[name]):
        owners.update(dict.fromkeys(symbols[module][0], module))
    edges = {}
    for module, (_, undefined) in symbols.items():
        for name in sorted(undefined):
            if name in owners and owners[name] != module:
                edges.setdefault((module, owners[name]), name)
    return edges


def complaints_of(symbols):
    """One line for each pair of modules that link against the order."""
    return [f"module {user} ({ORDER[user]}) needs {name} of module {owner} ({ORDER[owner]}), which is not before it"
            for (user, owner), name in sorted(find_edges(symbols).items()) if ORDER[owner] >= ORDER[user]]


def check(folder, nm):
    libraries = {path.stem.removeprefix(PREFIX): path for path in sorted(folder.glob(PREFIX + "*.a"))}
    unknown = [name for name in libraries if name not in ORDER and not name.startswith("test")]
    missing = [name for name in ORDER if name not in libraries and name != "cli"]  # cli is the program itself
    found = [f"{libraries[name]}: module '{name}' is not in the design's order" for name in unknown]
    found += [f"{folder}: there is no {PREFIX}{name}.a: build the program first" for name in missing]
    modules = [name for name in libraries if name in ORDER]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        read = list(pool.map(lambda name: read_symbols(nm, libraries[name]), modules))
    symbols = dict(zip(modules, read))
    print(f"links: {len(find_edges(symbols))} pairs of {len(modules)} modules")
    return found + complaints_of(symbols)


def self_test():
    """The order is enforced, inline functions that every module emits do not count, and equal numbers are apart."""
    Case = collections.namedtuple("Case", "symbols expected")
    clean = {"core": ({"a", "inline"}, {"malloc"}), "comm": ({"b", "inline"}, {"a"}), "ops": ({"inline"}, {"a", "b"})}
    cases = [Case(clean, 0),
             Case({**clean, "core": ({"a"}, {"b"})}, 1),
             Case({**clean, "image": ({"c"}, set()), "mesh": (set(), {"c"})}, 1),
             Case({**clean, "comm": ({"b"}, {"inline"})}, 0)]
    return [f"{case}: found {found}" for case in cases if len(found := complaints_of(case.symbols)) != case.expected]


def main():
    arguments = tree.arguments_of(__doc__, ("folder", {"nargs": "?", "type": pathlib.Path}), ("--nm", {"default": "nm"}))
    return tree.report("links", self_test() if arguments.self_test else check(arguments.folder, arguments.nm))


if __name__ == "__main__":
    sys.exit(main())
