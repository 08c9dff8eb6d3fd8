#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests lie in the folder of the module that they test, CMake comes to them, and they include no
private header of another module.

check_tests.py [--self-test]
"""

import os
import pathlib
import re
import sys

import check_includes
import tree

# The sources of deck are io/deck, and so its tests are tests/io/deck.
MODULES = set(check_includes.ORDER) - {"deck"}
WHOLE_PROGRAM = {"data", "devices", "docs", "e2e", "fault", "fuzz", "golden", "gpu", "install", "repository", "support"}
# Fuzz targets give bytes to the parser itself, which may be private, and tests on GPUs launch rows of the tables of kernels.
BESIDE_MODULES = {
    pathlib.PurePosixPath("tests/fuzz"): [pathlib.PurePosixPath(top) for top in ("io", "src/interop", "src/serve")],
    pathlib.PurePosixPath("tests/gpu"): [pathlib.PurePosixPath("src/ops")]}
_TESTS = pathlib.PurePosixPath("tests")


def sources_of(root, folder):
    """The sources that a folder of tests is about, or None: 'io/deck' for 'tests/io/deck'."""
    path = folder.relative_to(_TESTS)
    if path.parts[0] not in MODULES:
        return None
    tops = [pathlib.PurePosixPath(top) / path for top in ("src", "parallel")]
    if path.parts[0] == "io":
        tops = [path]
    return next((top for top in tops if (root / top).is_dir()), None)


def check_folder(root, folder):
    """The complaint about one folder of tests, or None."""
    name = folder.parts[1]
    if name in WHOLE_PROGRAM or sources_of(root, folder):
        return None
    if name not in MODULES:
        return (f"{folder}: no module of this name; tests lie in the folder of the module that they test, "
                f"those of the whole program in {', '.join(sorted(WHOLE_PROGRAM))}")
    return f"{folder}: no folder of module {name}'s sources has this name"


def private_folder(root, folder):
    """Whose headers tests of this folder may include without 'hyperslab/', or None."""
    sources = sources_of(root, folder)
    return sources and check_includes.module_of(sources / "any.hpp")[1]


def check_include(root, path, line, name):
    """The complaint about one quoted include that is not a public header, or None."""
    private = private_folder(root, path.parent)
    folders = BESIDE_MODULES.get(path.parent, [private] if private else [])
    for folder in (path.parent, _TESTS, *folders):
        header = pathlib.PurePosixPath(os.path.normpath(folder / name))
        if (root / header).is_file() and any(header.is_relative_to(top) for top in (_TESTS, *folders)):
            return None
    allowed = " or ".join(f"{top}/" for top in (_TESTS, *folders))
    return f"{path}:{line}: '{name}' is no header of {allowed} (of other modules: their public headers)"


def check_includes_of(root, path):
    """The complaints about a test's includes of headers that are not public."""
    return [found for line, quote, name in check_includes.includes(root, path)
            if quote == '"' and not name.startswith("hyperslab/")
            and (found := check_include(root, path, line, name))]


def check_listed(root, folder):
    """The complaint about a folder that CMake never comes to, or None."""
    lists = folder.parent / "CMakeLists.txt"
    text = (root / lists).read_text(encoding="utf-8") if (root / lists).is_file() else ""
    named = re.search(rf"^[^#]*\b{folder.name}\b", text, re.MULTILINE)
    return None if named else f"{folder}: is not named in {lists}"


def check(root):
    """All complaints about the tests below root."""
    complaints, accepted = [], {}
    for path in tree.files(root):
        if path.parts[0] != "tests" or path in (_TESTS / "CMakeLists.txt", _TESTS / ".clang-tidy"):
            continue
        if path.parent == _TESTS:
            complaints.append(f"{path}: belongs into a folder of tests/")
            continue
        if path.parent not in accepted:
            found = check_folder(root, path.parent)
            accepted[path.parent] = found is None
            complaints += [found] if found else []
        if accepted[path.parent] and path.name == "CMakeLists.txt":
            complaints += [found] if (found := check_listed(root, path.parent)) else []
        if accepted[path.parent] and path.suffix in (".cpp", ".hpp"):
            complaints += check_includes_of(root, path)
    return complaints


CLEAN = {
    "include/hyperslab/comm/world.hpp": "#pragma once\n",
    "parallel/comm/link.hpp": "#pragma once\n",
    "src/run/lock.hpp": "#pragma once\n",
    "src/ops/cpu/loops.hpp": "#pragma once\n",
    "io/files/storage.hpp": "#pragma once\n",
    "io/dataset/mapped.hpp": "#pragma once\n",
    "io/deck/rules.hpp": "#pragma once\n",
    "tests/CMakeLists.txt": "add_subdirectory(comm)\n",
    "tests/comm/CMakeLists.txt": "\n",
    "tests/support/values.hpp": "#pragma once\n",
    "tests/comm/case.hpp": '#include "support/values.hpp"\n',
    "tests/comm/link_test.cpp": '#include "link.hpp"\n#include "case.hpp"\n',
    "tests/comm/world_test.cpp": '#include "hyperslab/comm/world.hpp"\n',
    "tests/ops/cpu/loops_test.cpp": '#include "cpu/loops.hpp"\n',
    "tests/io/dataset/mapped_test.cpp": '#include "dataset/mapped.hpp"\n#include "files/storage.hpp"\n',
    "tests/io/deck/rules_test.cpp": '#include "rules.hpp"\n',
    "tests/gpu/comm_test.cpp": '#include "comm/case.hpp"\n#include <cuda.h>\n',
    "tests/golden/values/a.csv": "1\n",
    "tests/fuzz/manifest.cpp": '#include "files/storage.hpp"\n#include "support/values.hpp"\n',
    "src/interop/config.hpp": "#pragma once\n",
    "tests/fuzz/config.cpp": '#include "config.hpp"\n',
}

# (a file that must be refused, its text, what the complaint says)
BROKEN = [
    ("tests/mpi/world_test.cpp", '#include "link.hpp"\n', "tests/mpi: no module of this name"),
    ("tests/unit/comm/CMakeLists.txt", "\n", "tests/unit/comm: no module of this name"),
    ("tests/deck/deck_test.cpp", "\n", "tests/deck: no module of this name"),
    ("tests/comm/mpi/world_test.cpp", "\n", "tests/comm/mpi: no folder of module comm's sources"),
    ("tests/io/tokens/a_test.cpp", "\n", "tests/io/tokens: no folder of module io's sources"),
    ("tests/run/CMakeLists.txt", "\n", "tests/run: is not named in tests/CMakeLists.txt"),
    ("tests/world_test.cpp", "\n", "tests/world_test.cpp: belongs into a folder"),
    ("tests/run/a_test.cpp", '#include "link.hpp"\n', "a_test.cpp:1: 'link.hpp' is no header of tests/ or"),
    ("tests/run/b_test.cpp", '#include "../../parallel/comm/link.hpp"\n', "is no header of tests/ or src/run/"),
    ("tests/io/deck/b_test.cpp", '#include "files/storage.hpp"\n', "is no header of tests/ or io/deck/"),
    ("tests/fuzz/lock.cpp", '#include "lock.hpp"\n', "is no header of tests/ or io/ or src/interop/"),
    ("tests/golden/lock_test.cpp", '\n#include "lock.hpp"\n', "_test.cpp:2: 'lock.hpp' is no header of tests/ ("),
]


if __name__ == "__main__":
    sys.exit(tree.main("tests", check, CLEAN, BROKEN))
