#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs test scripts in a place of their own, and fails as well if they leave a process or a file there.

    clean.py [--launcher-litter] SCRIPT|PROGRAM ARGUMENTS... [AND SCRIPT|PROGRAM ARGUMENTS...]

Open MPI's session folders and shared memory go to that place, too. With --launcher-litter they may stay, as they do if
mpirun itself is killed.
"""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
MARK = "HYPERSLAB_FAULT_TEST"


def marked(value):
    """Processes with our mark in their environment that run, without this one."""
    found = {}
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            words = (folder / "environ").read_bytes().split(b"\0")
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
            if f"{MARK}={value}".encode() in words and state != "Z":
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


def leftovers(value, seconds):
    """Processes that are still there after so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and marked(value):
        time.sleep(0.1)
    return marked(value)


def split(words):
    """The command lines between AND."""
    commands = [[]]
    for word in words:
        if word == "AND":
            commands.append([])
        else:
            commands[-1].append(word)
    return commands


def run(command, environment):
    """Exit code of a Python script, or of a program of GoogleTest, which must find a test."""
    if command[0].endswith(".py"):
        return subprocess.run([sys.executable, *command], env=environment, check=False).returncode
    done = subprocess.run(command, env=environment, check=False, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="")
    return 1 if "[  PASSED  ] 0 tests" in done.stdout else done.returncode


def main():
    words = sys.argv[1:]
    allows_litter = words[0] == "--launcher-litter"
    commands = split(words[1:] if allows_litter else words)
    problems = []
    skipped = 0
    with tempfile.TemporaryDirectory(prefix="hyperslab_fault_") as place:
        shared = pathlib.Path(place, "shm")
        shared.mkdir()
        environment = {**os.environ, MARK: place, "TMPDIR": place,
                       "OMPI_MCA_orte_tmpdir_base": place,
                       "OMPI_MCA_btl_vader_backing_directory": f"{place}/shm"}
        for command in commands:
            code = run(command, environment)
            skipped += code == SKIPPED
            if code not in (0, SKIPPED):
                problems.append(f"{command[0]}: exit code {code}")
        for process, line in leftovers(place, 5).items():
            problems.append(f"process {process} is left: {line}")
            os.kill(process, signal.SIGKILL)
        left = [path for path in pathlib.Path(place).iterdir() if path != shared]
        if allows_litter:
            left = [path for path in left if not path.name.startswith(("ompi.", "sessions_"))]
        else:
            left += shared.iterdir()
        problems += [f"{path.relative_to(place)} is left" for path in left]
    for problem in problems:
        print(f"clean.py: {problem}", file=sys.stderr)
    if problems:
        return 1
    return SKIPPED if skipped == len(commands) else 0


if __name__ == "__main__":
    sys.exit(main())
