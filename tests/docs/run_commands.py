#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""run_commands.py PAGE PROGRAM: runs the `sh` blocks of a page from top to bottom, as printed.

They run in an empty folder that looks like the root of a checkout that was built. Exit code 77: a
program that the page uses is not installed here (Debian's bible-kjv, or Python with h5py).
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pages

SKIPPED = 77


def python_with_h5py():
    """A Python that the reports can run in, or None."""
    for python in (sys.executable, "/usr/bin/python3"):
        probe = [python, "-c", "import h5py, jinja2, matplotlib, numpy, yaml"]
        if pathlib.Path(python).exists() and subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            return python
    return None


def make_checkout(folder, program, python):
    """Links to what a page uses, and `python3` in a folder that is returned."""
    for name in ("inputs", "jobs", "analysis", "docs"):
        (folder / name).symlink_to(pages.ROOT / name)
    (folder / "build/bin").mkdir(parents=True)
    (folder / "build/bin/hyperslab").symlink_to(program)
    tools = folder / ".tools"
    tools.mkdir()
    (tools / "python3").write_text(f'#!/bin/sh\nexec {python} "$@"\n', encoding="utf-8")
    (tools / "python3").chmod(0o755)
    return tools


def main(page, program):
    """Runs the page; the exit code."""
    text = (pages.ROOT / page).read_text(encoding="utf-8")
    script = "\n".join(pages.blocks(text, "sh"))
    python = python_with_h5py()
    if not script.strip():
        print(f"{page}: no block of commands to run")
        return 1
    if python is None or ("bible " in script and shutil.which("bible") is None):
        print("skipped: bible-kjv or Python's h5py is not installed")
        return SKIPPED
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tools = make_checkout(folder, pathlib.Path(program).resolve(), python)
        environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
        environment.pop("OMP_NUM_THREADS", None)  # a reader has not set it
        done = subprocess.run(["bash", "-euxo", "pipefail", "-c", script], cwd=folder, env=environment,
                              stdin=subprocess.DEVNULL, check=False)
    return 0 if done.returncode == 0 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
