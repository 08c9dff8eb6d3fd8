#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What every file of the repository must keep to: license lines, sizes, blanks, README's commands, records of fuzzing.

check_repository.py [--self-test]
"""

import ast
import re
import sys

import tree

MAX_BYTES = 2_000_000
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 100
FUZZ_RECORD = "analysis/results/fuzz.json"
SPDX = "SPDX-License-Identifier: Apache-2.0"

_CPP = {".cpp", ".hpp", ".cu", ".cuh", ".h", ".c", ".inc"}
_CODE = _CPP | {".py", ".sh", ".cmake"}
_BINARY = {".h5", ".png", ".npy", ".npz", ".bin", ".gz"}
_COMMAND_PATH = re.compile(r"(?<![\w/.-])(?:\./)?((?:jobs|inputs)/[\w./*-]*[\w*])")


def is_code(path):
    """Sources carry a license line and have a size to keep to."""
    return path.suffix in _CODE or path.name == "CMakeLists.txt" or path.parts[:1] == (".ci",)


def check_text(path, text):
    """License line, tabs, blanks at line ends, a newline at the end, number of lines."""
    lines = text.split("\n")
    if is_code(path):
        if not any(SPDX in line for line in lines[:3]):
            yield f"{path}:1: no line '{SPDX}' among the first three"
        if len(lines) - 1 > MAX_FILE_LINES:
            yield f"{path}: {len(lines) - 1} lines, more than {MAX_FILE_LINES}: split it"
    for number, line in enumerate(lines, 1):
        if "\t" in line:
            yield f"{path}:{number}: a tab"
        if line != line.rstrip():
            yield f"{path}:{number}: blanks at the end of the line"
    if text and not text.endswith("\n"):
        yield f"{path}:{len(lines)}: no newline at the end of the file"


def cpp_functions(text):
    """(first line, lines) of functions at namespace level; relies on clang-format's layout."""
    start, opened = None, False
    for number, line in enumerate(text.split("\n"), 1):
        if start is None and re.match(r"[A-Za-z_~].*\(|template", line):
            start, opened = number, False
        if start is None:
            continue
        opened = opened or re.search(r"\)[^;]*\{$", line) is not None
        if line.startswith("}") or re.match(r"(namespace|class|struct|enum|union)\b", line):
            if line.startswith("}") and opened:
                yield start, number - start + 1
            start = None
        elif not opened and line.endswith((");", "};")):
            start = None


def python_functions(text):
    """(first line, lines) of every function of a Python file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno - node.lineno + 1


def check_functions(path, text):
    """No function is longer than the limit at which clang-tidy stops too."""
    functions = {".py": python_functions}.get(path.suffix, cpp_functions if path.suffix in _CPP else None)
    for number, lines in functions(text) if functions else ():
        if lines > MAX_FUNCTION_LINES:
            yield f"{path}:{number}: a function of {lines} lines, more than {MAX_FUNCTION_LINES}"


def check_readme(root):
    """Every path below jobs/ and inputs/ in a block of commands exists."""
    readme = root / "README.md"
    if not readme.is_file():
        yield "README.md: there is none"
        return
    inside = False
    for number, line in enumerate(readme.read_text(encoding="utf-8").split("\n"), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
        elif inside:
            for match in _COMMAND_PATH.finditer(line):
                if not list(root.glob(match[1])):
                    yield f"README.md:{number}: '{match[1]}' does not exist"


_ANY_BYTES = "tests/fuzz/corpus"  # what fuzz targets are given


def check_fuzz_record(root):
    """Every fuzz target has been run, by jobs/fuzz.sh, and is on record."""
    record = root / FUZZ_RECORD
    recorded = re.findall(r'"target": "(\w+)"', record.read_text(encoding="utf-8")) if record.exists() else []
    for path in tree.files(root):
        if path.match("tests/fuzz/fuzz_*.cpp") and path.stem.removeprefix("fuzz_") not in recorded:
            yield f"{path}: {FUZZ_RECORD} has no record of it: run jobs/fuzz.sh 300 {path.stem.removeprefix('fuzz_')}"


def check(root):
    """All complaints about the tree at root."""
    complaints = [*check_readme(root), *check_fuzz_record(root)]
    for path in tree.files(root):
        size = (root / path).stat().st_size
        if size > MAX_BYTES:
            complaints.append(f"{path}: {size} bytes, more than {MAX_BYTES}")
        if path.suffix in _BINARY or path.name == "LICENSE" or size > MAX_BYTES or path.is_relative_to(_ANY_BYTES):
            continue
        try:
            text = (root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            complaints.append(f"{path}: not UTF-8")
            continue
        complaints += [*check_text(path, text), *check_functions(path, text)]
    return complaints


def function(lines, python=False):
    """A function of so many lines."""
    if python:
        return f"# {SPDX}\ndef long():\n" + "    print()\n" * (lines - 1)
    return f"// {SPDX}\nvoid f(int a,\n       int b) {{\n" + "  g();\n" * (lines - 3) + "}\n"


CLEAN = {
    "README.md": "See jobs/absent.sh.\n```sh\n./jobs/run.sh  # inputs/a.yaml\nbuild/bin/x inputs/*.yaml\n```\n",
    "jobs/run.sh": f"#!/bin/sh\n# {SPDX}\n",
    "inputs/a.yaml": "a: 1\n",
    "src/a.cpp": function(MAX_FUNCTION_LINES) + "struct S {\n" + "  int a;\n" * 150 + "};\n",
    "src/b.cpp": f"// {SPDX}\nTABLE(\n" + "    row(),\n" * 150 + "    row());\n\nvoid g() {\n}\n",
    "tests/fuzz/fuzz_deck.cpp": f"// {SPDX}\n",
    FUZZ_RECORD: '{"targets": [\n  {"target": "deck", "seconds": 303}\n]}\n',
    "src/a.py": function(MAX_FUNCTION_LINES, python=True),
}

# (a file that must be refused, its text, what the complaint says)
BROKEN = [
    ("src/c.cpp", "int a;\n", "src/c.cpp:1: no line"),
    ("src/CMakeLists.txt", "project(a)\n", "src/CMakeLists.txt:1: no line"),
    (".ci/run", "#!/bin/sh\n", ".ci/run:1: no line"),
    ("inputs/b.yaml", "a:\t1\n", "inputs/b.yaml:1: a tab"),
    ("notes.md", "one\ntwo \n", "notes.md:2: blanks"),
    ("notes.md", "one", "notes.md:1: no newline"),
    ("tests/fuzz/fuzz_http.cpp", f"// {SPDX}\n", f"tests/fuzz/fuzz_http.cpp: {FUZZ_RECORD} has no record"),
    ("big.bin", "0" * (MAX_BYTES + 1), "big.bin: 2000001 bytes"),
    ("src/b.hpp", f"// {SPDX}\n" + "int a;\n" * MAX_FILE_LINES, "src/b.hpp: 601 lines"),
    ("src/c.cpp", function(MAX_FUNCTION_LINES + 1), "src/c.cpp:2: a function of 101 lines"),
    ("src/b.py", function(MAX_FUNCTION_LINES + 1, python=True), "src/b.py:2: a function of 101"),
    ("README.md", "```\njobs/gone.sh\n```\n", "README.md:2: 'jobs/gone.sh' does not exist"),
    ("README.md", "```\nx inputs/gone*.yaml\n```\n", "README.md:2: 'inputs/gone*.yaml'"),
]


if __name__ == "__main__":
    sys.exit(tree.main("repository", check, CLEAN, BROKEN))
