#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who includes what: modules in the design's order, and each library in its one module.

check_includes.py [--self-test]
"""

import os
import pathlib
import re
import sys

import tree

# A module includes itself and those of a lower number; equal numbers do not know each other.
ORDER = {"core": 1, "comm": 2, "ops": 3, "image": 4, "mesh": 4, "layout": 4.5, "param": 5, "optim": 6, "sharding": 7,
         "nn": 8, "model": 9, "pipeline": 10, "io": 11, "train": 12, "tasks": 13, "plan": 13, "eval": 14, "generate": 14,
         "quantize": 14, "bench": 14, "parity": 14, "interop": 14, "run": 15, "serve": 15, "deck": 15, "cli": 16}

# Library headers, and the modules whose sources may include them.
OWNERS = [(re.compile(r"(mpi|mpi-ext|nccl)\.h$"), {"comm"}),
          (re.compile(r"hdf5(_hl)?\.h$|H5\w*\.h$"), {"io"}),
          (re.compile(r"yaml-cpp/"), {"deck"}),
          (re.compile(r"boost/(asio|beast)/"), {"serve"})]
NOT_IN_DEVICE_CODE = re.compile(r"(fmt|spdlog)/")

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
_SOURCES = {".cpp", ".hpp", ".cu", ".cuh", ".h", ".c", ".inc"}


def module_of(path):
    """(module, folder of its private headers) of a file of the program, else None."""
    parts = path.parts
    if parts[:2] == ("include", "hyperslab") and len(parts) > 3:
        return parts[2], None
    if parts[0] in ("src", "parallel") and len(parts) > 2:
        return parts[1], pathlib.PurePosixPath(*parts[:2])
    if parts[:2] == ("io", "deck"):
        return "deck", pathlib.PurePosixPath("io/deck")
    if parts[0] == "io" and len(parts) > 1:
        return "io", pathlib.PurePosixPath("io")
    return None


def private_header(root, path, name):
    """The file a quoted include means: beside the file or in a folder above it, in its module."""
    module, top = module_of(path)
    folder = path.parent
    while True:
        found = pathlib.PurePosixPath(os.path.normpath(folder / name))
        if (root / found).is_file():
            return found if module_of(found) and module_of(found)[0] == module else None
        if top is None or folder == top:
            return None
        folder = folder.parent


def check_one(root, path, line, quote, name):
    """The complaint about one include, or None."""
    module, _ = module_of(path)
    if name.startswith("hyperslab/"):
        other = name.split("/")[1]
        if other not in ORDER:
            return f"{path}:{line}: '{name}': no module '{other}' in the design's order"
        later = ORDER[other] > ORDER[module]
        if later or (ORDER[other] == ORDER[module] and other != module):
            return f"{path}:{line}: module {module} ({ORDER[module]}) includes {other} ({ORDER[other]})"
        return None
    for pattern, modules in OWNERS:
        if pattern.match(name) and (module not in modules or path.parts[0] == "include"):
            return f"{path}:{line}: '{name}' belongs into the sources of {', '.join(modules)} alone"
    if quote == '"' and private_header(root, path, name) is None:
        return f"{path}:{line}: '{name}' is no header of module {module} (libraries: <{name}>)"
    return None


def includes(root, path):
    """(line, quote, name) of every include of a file."""
    text = (root / path).read_text(encoding="utf-8")
    return [(text.count("\n", 0, m.start()) + 1, m[1], m[2]) for m in _INCLUDE.finditer(text)]


def reached(root, path, seen):
    """Library includes that a file reaches through headers of the project."""
    names = []
    for line, _, name in includes(root, path):
        if name.startswith("hyperslab/"):
            header = pathlib.PurePosixPath("include") / name
        else:
            header = private_header(root, path, name)
        if header is None:
            names.append((path, line, name))
        elif header not in seen and (root / header).is_file():
            seen.add(header)
            names += reached(root, header, seen)
    return names


def check(root):
    """All complaints about the tree at root."""
    complaints = []
    for path in tree.files(root):
        if path.suffix not in _SOURCES or module_of(path) is None:
            continue
        if module_of(path)[0] not in ORDER:
            complaints.append(f"{path}:1: module '{module_of(path)[0]}' is not in the design's order")
            continue
        complaints += [c for include in includes(root, path) if (c := check_one(root, path, *include))]
        if path.suffix in (".cu", ".cuh"):
            complaints += [f"{source}:{line}: '{name}' is reached from {path}"
                           for source, line, name in reached(root, path, {path})
                           if NOT_IN_DEVICE_CODE.match(name)]
    return complaints


CLEAN = {
    "include/hyperslab/core/view.hpp": "#pragma once\n",
    "include/hyperslab/comm/communicator.hpp": '#include "hyperslab/core/view.hpp"\n',
    "include/hyperslab/train/config.hpp": '#include "hyperslab/core/view.hpp"\n',
    "src/ops/cuda/norm.cu": '#include "hyperslab/core/view.hpp"\n#include "cuda/tools.cuh"\n',
    "src/ops/cuda/tools.cuh": "#include <cuda_runtime.h>\n",
    "parallel/comm/mpi.cpp": "#include <mpi.h>\n",
    "io/hdf5/handles.hpp": "#include <hdf5.h>\n",
    "io/checkpoint/writer.cpp": '#include "hdf5/handles.hpp"\n',
    "io/deck/read.cpp": '#include <yaml-cpp/yaml.h>\n#include "hyperslab/train/config.hpp"\n',
    "tests/comm/world.cpp": "#include <mpi.h>\n",
}

# (a file that must be refused, its text, what the complaint says)
BROKEN = [
    ("src/core/a.cpp", '#include "hyperslab/comm/communicator.hpp"\n', "includes comm"),
    ("parallel/sharding/a.cpp", '#include "hyperslab/pipeline/plan.hpp"\n', "includes pipeline"),
    ("io/dataset/a.cpp", "#include <hyperslab/deck/deck.hpp>\n", "includes deck"),
    ("src/nn/a.cpp", '#include "hyperslab/magic/a.hpp"\n', "no module 'magic'"),
    ("src/magic/a.cpp", "\n", "not in the design's order"),
    ("src/eval/a.cpp", '#include "hyperslab/bench/bench.hpp"\n', "includes bench"),
    ("src/ops/a.cpp", "#include <mpi.h>\n", "'mpi.h' belongs"),
    ("src/ops/b.cpp", "# include <nccl.h>\n", "'nccl.h' belongs"),
    ("include/hyperslab/comm/a.hpp", "#include <mpi.h>\n", "'mpi.h' belongs"),
    ("src/train/a.cpp", "#include <hdf5.h>\n", "'hdf5.h' belongs"),
    ("io/dataset/b.cpp", "#include <yaml-cpp/yaml.h>\n", "'yaml-cpp/yaml.h' belongs"),
    ("src/train/b.cpp", '#include "hdf5/handles.hpp"\n', "is no header of module train"),
    ("io/deck/b.cpp", '#include "../hdf5/handles.hpp"\n', "is no header of module deck"),
    ("src/ops/cuda/a.cu", "#include <fmt/format.h>\n", "reached from src/ops/cuda/a.cu"),
    ("src/ops/cuda/b.cuh", "#include <spdlog/spdlog.h>\n", "reached from src/ops/cuda/b.cuh"),
]


if __name__ == "__main__":
    sys.exit(tree.main("includes", check, CLEAN, BROKEN))
