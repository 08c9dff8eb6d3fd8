#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""checkpoint diff and checkpoint prune."""

import fcntl
import shutil

import support

SETTINGS = ("train.validate_every=0", "data.validation=[]", "train.steps=8", "checkpoint.every=2",
            "checkpoint.keep=all", "run.deterministic=true")


def steps(folder):
    """Steps of the checkpoints there, ascending."""
    return sorted(int(path.name[5:]) for path in folder.glob("step_*[0-9]"))


class Diff(support.Case):
    """Checkpoints of two runs beside each other."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("one", *SETTINGS)

    def diff(self, first, second, code, *options):
        result = self.run_program("checkpoint", "diff", first, second, *options)
        self.assertEqual(result.code, code, result.out + result.err)
        return result.out

    def test_equal_runs_on_other_ranks(self):
        self.train("same", *SETTINGS)

        out = self.diff("one", "same", 0)

        self.assertRegex(out, r"all \d+ tensors are equal\n$")
        self.assertIn("run.directory", out)

    def test_another_step_and_another_learning_rate(self):
        self.train("other", *SETTINGS, "optimizer.lr=2.0e-2")

        out = self.diff("one", "other", 4)

        self.assertRegex(out, r"deck optimizer.lr +0.01 -> 0.02")
        self.assertRegex(out, r"model/blocks.0.attention.output.weight .* elements, largest .* relative norm ")
        self.assertRegex(out, r"\n(\d+) of \1 tensors differ\n$")
        shown = self.diff("one", "other", 4, "--all").count("relative norm")
        self.assertGreater(shown, 20)
        self.assertRegex(self.diff("one/checkpoints/step_00000004", "one", 4), r"\nstep +4 -> 8\n")

    def test_a_damaged_one_is_named(self):
        copy = self.copy_of("one", "damaged") / "checkpoints/step_00000008"
        support.flip_byte(copy, "model/embedding.token.weight")

        result = self.run_program("checkpoint", "diff", "one", copy)

        self.assert_refused(result, 4, "model/embedding.token.weight")

    def test_it_takes_two(self):
        result = self.run_program("checkpoint", "diff", "one")

        self.assert_refused(result, 2, "checkpoint diff compares two checkpoints")


class Prune(support.Case):
    """Old checkpoints that go."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("kept", *SETTINGS)

    def setUp(self):
        self.run = self.copy_of("kept", "run")
        self.addCleanup(shutil.rmtree, self.run)
        self.checkpoints = self.run / "checkpoints"

    def prune(self, *options, code=0):
        result = self.run_program("checkpoint", "prune", "run", *options)
        self.assertEqual(result.code, code, result.out + result.err)
        return result

    def test_the_newest_and_multiples_stay(self):
        out = self.prune("--keep", 2, "--keep-every", 4, "--dry-run").out
        self.assertIn("would remove: run/checkpoints/step_00000002", out)
        self.assertEqual(steps(self.checkpoints), [2, 4, 6, 8])

        out = self.prune("--keep", 2, "--keep-every", 4).out

        self.assertEqual(steps(self.checkpoints), [4, 6, 8])
        self.assertRegex(out, r"1 checkpoint removed, \d+\.\d MiB\n$")

    def test_what_is_damaged_stays_and_is_named(self):
        support.cut(self.checkpoints / "step_00000002/rank_00000.h5", 100)

        out = self.prune("--keep", 2).out

        self.assertEqual(steps(self.checkpoints), [2, 6, 8])
        self.assertIn("damaged, stays: run/checkpoints/step_00000002", out)

    def test_what_latest_names_stays(self):
        (self.checkpoints / "latest").write_text("step_00000002\n")

        self.prune("--keep", 2)

        self.assertEqual(steps(self.checkpoints), [2, 6, 8])

    def test_a_running_run_is_left_alone(self):
        with (self.run / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)

            result = self.prune("--keep", 2, code=5)

        self.assertEqual(steps(self.checkpoints), [2, 4, 6, 8])
        self.assertEqual(len(result.messages), 1, result.err)

    def test_options(self):
        for options in ((), ("--keep", 1), ("--keep", 2, "--keep-every", -1)):
            with self.subTest(options):
                self.assert_refused(self.prune(*options, code=2), 2, "--keep")
        self.assert_refused(self.run_program("checkpoint", "prune", "nowhere", "--keep", 2), 4, "nowhere")


if __name__ == "__main__":
    support.main()
