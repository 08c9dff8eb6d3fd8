# SPDX-License-Identifier: Apache-2.0
"""The pages of documentation and their blocks of commands."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def pages(root=ROOT):
    """README.md, other pages of the root and those of docs/ and analysis/, as relative paths."""
    return [path.relative_to(root) for folder in (root, root / "docs", root / "analysis")
            for path in sorted(folder.glob("*.md"))]


def blocks(text, *kinds):
    """The blocks of these kinds (the word after the fence), in order."""
    return [block for kind, block in _FENCE.findall(text) if kind in kinds]


def commands(block):
    """The command lines of a block: continued lines joined, comments cut."""
    joined = re.sub(r"\\\n\s*", " ", block)
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in joined.splitlines())
    return [line for line in lines if line]
