#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts in little address space (ulimit -v), and in a control group with little memory."""

import os
import pathlib
import subprocess
import unittest
import uuid

import fault_support
import support

REFUSED = r"MiB of address space are allowed \(ulimit -v\) and \d+ MiB of them are left, but a start with"
# What is short of memory later says so, or that a thread was refused.
SHORT = r"ulimit -v"


def memory_group():
    """The control group of this process that can limit memory, version 1; None if there is none, or none can be made in
    it."""
    try:
        lines = pathlib.Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        path = next(line.split(":")[2] for line in lines if line.split(":")[1] == "memory")
        group = pathlib.Path("/sys/fs/cgroup/memory") / path.lstrip("/")
    except (OSError, StopIteration):
        return None
    return group if os.access(group, os.W_OK) and (group / "memory.limit_in_bytes").exists() else None


class AddressSpace(fault_support.FaultCase):
    """Every limit ends in time: with the line and code 6, or with the steps done."""

    def start_within(self, mebibytes, ranks, run, **environment):
        """A short run whose ranks have so much address space; mpirun has more."""
        words = support.command("train", "deck.yaml", *support.overrides(
            *fault_support.PLAIN, f"run.directory={run}", f"parallel.data={max(ranks, 1)}", "train.steps=2"), ranks=ranks)
        at = next(i for i, word in enumerate(words) if pathlib.Path(word).name == "hyperslab")
        shell = ["sh", "-c", f'ulimit -v {mebibytes * 1024}; exec "$0" "$@"']
        job = subprocess.run([*words[:at], *shell, *words[at:]], cwd=self.folder, capture_output=True, timeout=30,
                             check=False, env={**os.environ, **support.QUICK_END, **environment})
        err = job.stderr.decode("utf-8", "replace")
        return support.Result(job.returncode, b"", err, 0)

    def refuse(self, result):
        """Code and the one line."""
        self.assertEqual(result.code, 6, result.err)
        self.assertEqual(len(result.messages), 1, result.err)
        self.assertRegex(result.messages[0], REFUSED)

    def test_too_little_is_refused_before_and_after_main_begins(self):
        for ranks in (0, 1, 2):
            for mebibytes in (160, 240, 400, 520):
                with self.subTest(ranks=ranks, mebibytes=mebibytes):
                    self.refuse(self.start_within(mebibytes, ranks, "none"))
                    self.assertFalse((self.folder / "none").exists())

    def test_whatever_is_left_no_start_hangs(self):
        for ranks in (0, 2):
            for mebibytes in range(600, 1000, 50):
                with self.subTest(ranks=ranks, mebibytes=mebibytes):
                    result = self.start_within(mebibytes, ranks, f"run_{ranks}_{mebibytes}")
                    self.assertIn(result.code, (0, 5, 6), result.err)
                    self.assertNotIn("fault of the program", result.err)
                    if result.code != 0:
                        self.assertRegex(result.err, SHORT)

    def test_enough_is_enough(self):
        for ranks in (0, 2):
            result = self.start_within(2000, ranks, f"enough_{ranks}")
            self.assertEqual(result.code, 0, result.err)

    def test_threads_count(self):
        result = self.start_within(2000, 0, "threads", OMP_NUM_THREADS="16")
        self.refuse(result)
        self.assertRegex(result.err, r"a start with 16 threads takes \d+ MiB more; ask for more \(ulimit -v unlimited\) "
                                     r"or compute with fewer threads \(OMP_NUM_THREADS=1\)")

    def test_too_little_stack_and_too_many_threads_are_refused_before_main(self):
        program = support.command("--version")
        for shell, environment, code, words in (
                ('ulimit -s 64; exec "$0" "$@"', {}, 6, "64 KiB of stack are allowed (ulimit -s)"),
                ('exec "$0" "$@"', {"OMP_NUM_THREADS": "100000"}, 2, "OMP_NUM_THREADS asks for 100000 threads")):
            job = subprocess.run(["sh", "-c", shell, *program], capture_output=True, timeout=30, check=False,
                                 env={**os.environ, **environment})
            err = job.stderr.decode()
            self.assertEqual((job.returncode, err.count("\n")), (code, 1), err)
            self.assertIn(words, err)

    def test_what_needs_no_mpi_is_refused_too(self):
        words = support.command("--version")
        job = subprocess.run(["sh", "-c", 'ulimit -v 163840; exec "$0" "$@"', *words], capture_output=True, timeout=30,
                             check=False)
        self.refuse(support.Result(job.returncode, b"", job.stderr.decode(), 0))


@unittest.skipIf(memory_group() is None, "no control group with a limit of memory can be made here")
class ControlGroup(fault_support.FaultCase):
    """Less memory than the plan needs, as Slurm and containers limit it."""

    def setUp(self):
        self.group = memory_group() / f"hyperslab_{uuid.uuid4().hex}"
        self.group.mkdir()
        self.addCleanup(self.group.rmdir)

    def start_in(self, mebibytes, ranks, run, *settings):
        """A short run in the group."""
        (self.group / "memory.limit_in_bytes").write_text(str(mebibytes << 20))
        words = support.command("train", "deck.yaml", *support.overrides(
            *fault_support.PLAIN, f"run.directory={run}", f"parallel.data={max(ranks, 1)}", "train.steps=2", *settings),
                                ranks=ranks)
        script = f'echo $$ >{self.group}/cgroup.procs; exec "$0" "$@"'
        job = subprocess.run(["sh", "-c", script, *words], cwd=self.folder, capture_output=True, timeout=60, check=False,
                             env={**os.environ, **support.QUICK_END})
        return support.Result(job.returncode, b"", job.stderr.decode("utf-8", "replace"), 0)

    def test_a_plan_that_does_not_fit_is_refused_with_advice(self):
        large = ("model.width=1024", "model.heads=8", "model.layers=8")
        for ranks in (0, 2):
            with self.subTest(ranks=ranks):
                result = self.start_in(600, ranks, f"large_{ranks}", *large)
                self.assertEqual(result.code, 6, result.err)
                self.assertEqual(len(result.messages), 1, result.err)
                need = r"2 ranks {} need [\d.]+ GiB together" if ranks == 2 else r"1 rank {} needs [\d.]+ GiB"
                who = "the fullest" if ranks == 2 else "it"
                self.assertRegex(result.messages[0], "out of memory: " + need.format(rf"in control group {self.group} of host \S+") +
                                 r", and [\d.]+ (?:MiB|GiB) are free; " + who +
                                 r" needs [\d.]+ GiB in all, most of it for \w+ [\d.]+ .*; what would help: ")

    def test_a_plan_that_fits_runs(self):
        for ranks in (0, 2):
            result = self.start_in(600, ranks, f"small_{ranks}")
            self.assertEqual(result.code, 0, result.err)


if __name__ == "__main__":
    support.main()
