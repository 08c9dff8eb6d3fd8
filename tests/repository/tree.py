# SPDX-License-Identifier: Apache-2.0
"""The files of the repository, as the checks beside this file see them."""

import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
_SKIPPED = ("build", "runs", ".git", ".cache", "shared", "__pycache__")


def files(root):
    """Paths below root, relative and sorted: those git knows or would add, else all but outputs."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if (root / ".git").exists():
        found = subprocess.run(command, capture_output=True, check=False)
        if found.returncode == 0:
            names = [name for name in found.stdout.decode().split("\0") if name]
            return sorted(pathlib.PurePosixPath(n) for n in names if (root / n).is_file())
    paths = []
    for folder, folders, names in os.walk(root):
        folders[:] = [f for f in folders if not f.startswith(_SKIPPED)]
        paths += [pathlib.Path(folder, name).relative_to(root) for name in names]
    return sorted(pathlib.PurePosixPath(path) for path in paths)


def write(root, texts):
    """Makes the files {path: text} below root, for the self-tests."""
    for path, text in texts.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
