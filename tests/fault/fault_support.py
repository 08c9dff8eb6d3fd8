# SPDX-License-Identifier: Apache-2.0
"""What the tests of faults share: jobs with HYPERSLAB_FAULT, and what they leave."""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

import support  # noqa: E402  pylint: disable=wrong-import-position

PLAIN = support.PLAIN


def steps(folder):
    """Complete steps of a directory of checkpoints, ascending."""
    return sorted(int(path.name[5:]) for path in pathlib.Path(folder).glob("step_*")
                  if re.fullmatch(r"step_\d{8}", path.name) and (path / "manifest.json").exists())


def unfinished(folder):
    """What a save or its removal has left behind."""
    return sorted(path.name for path in pathlib.Path(folder).glob("*")
                  if not re.fullmatch(r"step_\d{8}|latest|lock", path.name))


def step_folder(folder, step):
    """Of a complete step."""
    return pathlib.Path(folder) / f"step_{step:08d}"


def processes_of(mpirun):
    """Ranks below mpirun, in the order in which they started."""
    listing = pathlib.Path(f"/proc/{mpirun}/task/{mpirun}/children").read_text(encoding="utf-8")
    return sorted(map(int, listing.split()))


class Job:
    """A start of the program on several ranks; it ends with the test."""

    def __init__(self, folder, arguments, ranks, environment):
        self.begin = time.monotonic()
        # Two mpiruns that make the folder of their sessions at once fail.
        self.sessions = tempfile.mkdtemp(prefix="sessions_")
        environment = {"OMPI_MCA_orte_tmpdir_base": self.sessions, **environment}
        self.process = subprocess.Popen(
            support.command(*arguments, ranks=ranks), cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env={**os.environ, **environment})

    def result(self, timeout=60):
        """Waits for the end; a job that does not end in time is killed, with its ranks."""
        try:
            out, err = self.process.communicate(timeout=timeout)
            with contextlib.suppress(OSError):  # clean.py finds what is left in it
                os.rmdir(self.sessions)
        except subprocess.TimeoutExpired:
            self.end()
            _, err = self.process.communicate()
            return support.Result(None, b"", err.decode("utf-8", "replace"), time.monotonic() - self.begin)
        return support.Result(self.process.returncode, out, err.decode("utf-8", "replace"),
                              time.monotonic() - self.begin)

    def end(self):
        """Nothing is left, whatever a test has met."""
        if self.process.poll() is None:
            self.process.kill()


class FaultCase(support.Case):
    """Jobs of two ranks on the tiny deck."""

    maxDiff = 2000

    def start_job(self, run, *settings, ranks=2, fault="", options=(), quick=True, **environment):
        """`quick`: mpirun kills the others at once, so that they may not say who is gone; `environment`: further
        variables."""
        if fault:
            environment["HYPERSLAB_FAULT"] = fault
        if quick:
            environment.update(support.QUICK_END)
        arguments = ("train", "deck.yaml", *support.overrides(
            f"run.directory={run}", f"parallel.data={max(ranks, 1)}", *settings), *options)
        job = Job(self.folder, arguments, ranks, environment)
        self.addCleanup(job.end)
        return job

    def run_job(self, run, *settings, code=0, timeout=60, **arguments):
        """Runs to the end, with an expected exit code."""
        result = self.start_job(run, *settings, **arguments).result(timeout)
        self.assertEqual(result.code, code, result.err)
        return result

    def copy_to(self, run, name):
        """A fresh copy of a run directory."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        shutil.copytree(self.folder / run, self.folder / name, symlinks=True)
        return self.folder / name

    def assert_one_line(self, result, *patterns):
        """One message of the program, which matches."""
        self.assertEqual(len(result.messages), 1, result.err)
        for pattern in patterns:
            self.assertRegex(result.messages[0], pattern)

    def assert_equal_steps(self, found, expected, which):
        """The same tensors, bit for bit, and the same place in the training."""
        for step in which:
            a, b = step_folder(found, step), step_folder(expected, step)
            self.assertEqual(support.tensors(a), support.tensors(b), f"{a}")
            first, second = support.manifest(a), support.manifest(b)
            for key in ("step", "samples_seen", "adam_step", "data_fingerprint", "order"):
                self.assertEqual(first.get(key), second.get(key), f"{a}: {key}")

    def verify(self, folder):
        """Exit code and messages of checkpoint verify."""
        return self.run_program("checkpoint", "verify", folder)




main = support.main
