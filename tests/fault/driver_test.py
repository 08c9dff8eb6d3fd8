#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole starts of a program with CUDA where the driver is too old. HYPERSLAB_OLD_DRIVER names a folder with a library
that stands in for the driver's."""

import os
import subprocess

import fault_support
import support

PROBLEM = r"NVIDIA's driver serves CUDA up to 12\.2, and this program was built with CUDA \d+\.\d: update the driver"


class Fault40(fault_support.FaultCase):
    """The stand-in is found before a driver of this machine, so that a GPU of it is not used."""

    def start_with_old_driver(self, *arguments, ranks=0):
        """Runs to the end."""
        paths = [os.environ["HYPERSLAB_OLD_DRIVER"], os.environ.get("LD_LIBRARY_PATH", "")]
        job = subprocess.run(support.command(*arguments, ranks=ranks), cwd=self.folder, capture_output=True, timeout=60,
                             check=False, env={**os.environ, **support.QUICK_END,
                                               "LD_LIBRARY_PATH": ":".join(filter(None, paths))})
        return support.Result(job.returncode, job.stdout, job.stderr.decode("utf-8", "replace"), 0)

    def train_with(self, device, ranks=0, run="run"):
        """A start of a training on a device."""
        return self.start_with_old_driver("train", "deck.yaml", *support.overrides(
            *fault_support.PLAIN, f"run.device={device}", "train.steps=2", f"run.directory={run}",
            f"parallel.data={max(ranks, 1)}"), ranks=ranks)

    def test_a_gpu_that_is_asked_for_is_refused_with_both_versions(self):
        for ranks in (0, 2):
            result = self.train_with("cuda", ranks)
            self.assertEqual(result.code, 2, result.err)
            self.assertRegex(result.err, rf"run\.device.*{PROBLEM}.*or set run\.device to cpu")
            self.assertFalse((self.folder / "run").exists())

    def test_a_gpu_that_may_be_there_is_not_passed_over_in_silence(self):
        for ranks in (0, 2):
            result = self.train_with("auto", ranks)
            self.assertEqual(result.code, 6, result.err)
            self.assertEqual(len(result.messages), 1, result.err)
            self.assertRegex(result.messages[0], rf"{PROBLEM}.*or set run\.device: cpu")
            self.assertFalse((self.folder / "run").exists())

    def test_the_cpu_that_is_asked_for_needs_no_driver(self):
        result = self.train_with("cpu", 2, "cpu")
        self.assertEqual(result.code, 0, result.err)
        found = self.start_with_old_driver("generate", "--checkpoint", "cpu", "--prompt", "The", "--max-tokens", 2)
        self.assertEqual(found.code, 0, found.err)
        self.assertRegex(found.err, rf"computed on the CPU: {PROBLEM}")


if __name__ == "__main__":
    support.main()
