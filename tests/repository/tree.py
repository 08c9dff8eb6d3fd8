# SPDX-License-Identifier: Apache-2.0
"""The files of the repository, as the checks beside this file see them, and what these share."""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

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


def missed(check, clean, broken):
    """Proves that check() passes a clean tree and finds every kind of fault; what it got wrong.

    broken: rows of (a file that must be refused, its text, what the one complaint says).
    """
    failures = []
    for path, text, expected in [(None, None, None), *broken]:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            write(root, clean)
            if path:
                write(root, {path: text})
            found = check(root)
        if path is None:
            failures += found
        elif len(found) != 1 or expected not in found[0]:
            failures.append(f"{path}: expected one complaint with '{expected}', found {found}")
    return failures


def arguments_of(description, *options):
    """The command line of a check that has a self-test; `options`: (name, further arguments of add_argument) each."""
    parser = argparse.ArgumentParser(description=description.split("\n", maxsplit=1)[0])
    for name, settings in options:
        parser.add_argument(name, **settings)
    parser.add_argument("--self-test", action="store_true")
    return parser.parse_args()


def report(name, complaints):
    """Prints what was found, a line each; exit code 0 if nothing was."""
    print("\n".join(complaints) or f"{name}: nothing to complain about")
    return 1 if complaints else 0


def main(name, check, clean, broken):
    """Exit code 0 if nothing is found: in the repository, or by --self-test."""
    return report(name, missed(check, clean, broken) if sys.argv[1:] == ["--self-test"] else check(ROOT))
