#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Comments are sentences with a subject: none begins with What, Whether, Of, How, Where or "The same".

check_comments.py [--self-test]
"""

import re
import sys

import tree

_TREES = {"include", "src", "parallel", "io"}
_SUFFIXES = {".cpp", ".hpp", ".cu", ".cuh"}
_COMMENT = re.compile(r"^(?P<code>.*?)(?P<mark>///?)<?\s*(?P<text>\S.*)?$")
_RIDDLE = re.compile(r"(what|whether|of|how|where|the same)\b", re.IGNORECASE)


def riddles(text):
    """Lines on which a comment begins so: beside code, or as the first of lines that belong together; none belongs to the license's line."""
    before = None
    for number, line in enumerate(text.split("\n"), 1):
        match = _COMMENT.match(line) if "//" in line and '"' not in line.split("//")[0] else None
        alone = match is not None and not match["code"].strip()
        if match and match["text"] and not (alone and before == match["mark"]) and _RIDDLE.match(match["text"]):
            yield number
        before = match["mark"] if alone and "SPDX-License" not in line else None


def check(root):
    """All complaints about the tree at root."""
    return [f"{path}:{line}: a comment begins with What, Whether, Of, How, Where or The same" for path in tree.files(root)
            if path.suffix in _SUFFIXES and path.parts[0] in _TREES
            for line in riddles((root / path).read_text(encoding="utf-8"))]


CLEAN = {
    "src/nn/a.hpp": "// SPDX-License-Identifier: Apache-2.0\n// Rows of a part.\n// What follows is the same comment.\nint b;  ///< The rate of a rank.\n",
    "src/optim/a.cpp": "// Rows of a part.\n// Of these two are left.\nconst char* url = \"http://what\";\n// Those.\n//\n// What is this? The same comment.\n",
    "tests/a.cpp": "/// What a test does.\n",
}

# (a file that must be refused, its text, what the complaint says)
BROKEN = [
    ("src/optim/b.hpp", "int b;\n/// What a rank owns.\nint a;\n", "src/optim/b.hpp:2: a comment begins"),
    ("io/b/c.cpp", "int b;  // the same for b\n", "io/b/c.cpp:1: a comment begins"),
    ("include/hyperslab/nn/b.hpp", "// Where it goes.\n", "include/hyperslab/nn/b.hpp:1: a comment begins"),
    ("src/nn/b.hpp", "// x\n\n// How it goes.\n", "src/nn/b.hpp:3: a comment begins"),
    ("src/nn/c.hpp", "// SPDX-License-Identifier: Apache-2.0\n// What a layer holds.\n#pragma once\n", "src/nn/c.hpp:2: a comment begins"),
]


if __name__ == "__main__":
    sys.exit(tree.main("comments", check, CLEAN, BROKEN))
