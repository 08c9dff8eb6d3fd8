#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Comments are sentences with a subject: none begins with What, Whether, Of, How, Where or "The same".

check_comments.py [--self-test | --update]
Folders that have such comments are in exceptions.txt with their number, which may fall and never rise; --update writes what has fallen.
"""

import collections
import re
import sys

import exceptions
import tree

_TREES = {"include", "src", "parallel", "io"}
_SUFFIXES = {".cpp", ".hpp", ".cu", ".cuh"}
_COMMENT = re.compile(r"^(?P<code>.*?)(?P<mark>///?)<?\s*(?P<text>\S.*)?$")
_RIDDLE = re.compile(r"(what|whether|of|how|where|the same)\b", re.IGNORECASE)


def riddles(text):
    """Lines on which a comment begins so: beside code, or as the first of lines that belong together."""
    before = None
    for number, line in enumerate(text.split("\n"), 1):
        match = _COMMENT.match(line) if "//" in line and '"' not in line.split("//")[0] else None
        alone = match is not None and not match["code"].strip()
        if match and match["text"] and not (alone and before == match["mark"]) and _RIDDLE.match(match["text"]):
            yield number
        before = match["mark"] if alone else None


def measures(root):
    """(kind, folder, number, limit, line) of every folder of sources."""
    counts = collections.Counter()
    last = {}
    for path in tree.files(root):
        if path.suffix in _SUFFIXES and path.parts[0] in _TREES:
            folder = "/".join(path.parts[:3] if path.parts[0] == "include" else path.parts[:2])
            for line in riddles((root / path).read_text(encoding="utf-8")):
                counts[folder] += 1
                last[folder] = f"{path}:{line}"
    for folder, count in counts.items():
        yield "comments", folder, count, 0, last[folder]


def words(_, folder, number, limit, line):
    """The complaint about a folder."""
    return f"{folder}: {number} comments begin with What, Whether, Of, How, Where or The same, more than {limit}; one is in {line}"


def check(root):
    """All complaints about the tree at root."""
    return list(exceptions.check(root, measures(root), words, {"comments"}))


CLEAN = {
    exceptions.FILE: "comments 2 src/nn\n",
    "src/nn/a.hpp": "/// Whether it is so.\n/// What follows is the same comment.\nint a;  ///< of a kind\nint b;  ///< The rate of a rank.\n",
    "src/optim/a.cpp": "// Rows of a part.\n// Of these two are left.\nconst char* url = \"http://what\";\n// Those.\n//\n// What is this? The same comment.\n",
    "tests/a.cpp": "/// What a test does.\n",
}

# (a file that must be refused, its text, what the complaint says)
BROKEN = [
    ("src/optim/b.hpp", "int b;\n/// What a rank owns.\nint a;\n", "src/optim: 1 comments begin"),
    ("io/b/c.cpp", "int b;  // the same for b\n", "io/b: 1 comments begin with"),
    ("include/hyperslab/nn/b.hpp", "// Where it goes.\n", "include/hyperslab/nn: 1 comments"),
    ("src/nn/b.hpp", "// x\n\n// How it goes.\n", "src/nn: 3 comments begin with What, Whether, Of, How, Where or The same, more than 2"),
    ("src/nn/a.hpp", "int a;\n", "'comments 2 src/nn' is no exception any more"),
]


if __name__ == "__main__":
    sys.exit(exceptions.update(tree.ROOT, measures(tree.ROOT), {"comments"}) if sys.argv[1:] == ["--update"]
             else tree.main("comments", check, CLEAN, BROKEN))
