#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints beside training: in the memory of hosts, and on a disk that refuses them for a while."""

import contextlib
import os
import re
import shutil
import signal

import support

STEPS = 40
SETTINGS = ("train.validate_every=0", "data.validation=[]", f"train.steps={STEPS}", "run.deterministic=true")
FULL = "file.write@/step_:{}:*:no_space"  # a disk that has no room for checkpoints


class Memory(support.Case):
    """Runs that are killed between checkpoints on the disk."""

    def settings(self, run, ranks):
        return (f"run.directory={run}", f"parallel.data={ranks}", "checkpoint.every=1000",
                "checkpoint.memory_every=4", f"checkpoint.memory_directory={self.folder / 'memory'}", *SETTINGS)

    def held(self):
        """Steps in memory."""
        return sorted({int(path.name[5:]) for path in (self.folder / "memory").glob("*/*/step_*[0-9]")})

    def has_settled(self):
        """True if memory holds one step and no unfinished one. A save that is due while another is in progress is left out, so
        the step may be any."""
        names = [path.name for path in (self.folder / "memory").glob("*/*/step_*")]
        return len(set(names)) == 1 and len(self.held()) == 1

    def start_until_held(self, run, ranks, *settings):
        """Starts a run that is killed while no save is in progress. Its later steps take a tenth of a second, so that there are
        such moments: ranks stop at one that looks so, and go on if it was none."""
        slow = ",".join(f"step.forward#1:*:{step}:delay_0.1" for step in range(10, STEPS))
        process = self.start("train", "deck.yaml", *support.overrides(*self.settings(run, ranks), *settings),
                             ranks=0 if ranks == 1 else ranks, env={**os.environ, "HYPERSLAB_FAULT": slow})
        self.addCleanup(process.kill)
        processes = []

        def stops_settled():
            if not self.has_settled():
                return False
            processes[:] = [process.pid] if ranks == 1 else support.children(process.pid)
            for each in processes:
                os.kill(each, signal.SIGSTOP)
            if self.has_settled():
                return True
            for each in processes:
                os.kill(each, signal.SIGCONT)
            return False

        ready = support.wait_until(stops_settled, 60)
        for each in (process.pid, *processes):
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        process.communicate(timeout=30)
        self.assertTrue(support.wait_until(lambda: not any(map(support.alive, processes)), 30))
        self.assertTrue(ready, self.held())

    def test_a_killed_run_goes_on_from_memory_on_other_ranks(self):
        self.train("whole", *SETTINGS)
        for first, then in ((1, 2), (2, 1)):
            with self.subTest(first=first, then=then):
                run = f"killed{first}"
                self.start_until_held(run, first, "checkpoint.keep=all")
                held = self.held()
                self.assertEqual(len(held), 1, "only the newest stays")
                self.assertEqual(held[0] % 4, 0)

                result = self.run_program("train", "deck.yaml", *support.overrides(*self.settings(run, then)),
                                          ranks=0 if then == 1 else then)

                self.assertEqual(result.code, 0, result.err)
                self.assertIn(f"checkpoint of step {held[0]} brought from the memory of the hosts", result.err)
                self.assertIn(f"resumed from {run}/checkpoints/step_{held[0]:08d}", result.err)
                self.assertEqual(self.held(), [], "a run that has ended leaves nothing in memory")
                self.assertEqual(support.column(self.folder / run, "step"), list(range(1, STEPS + 1)))
                self.assert_close(support.column(self.folder / run, "loss"),
                                  support.column(self.folder / "whole", "loss"), 1e-5)

    def test_a_start_that_goes_back_removes_what_memory_holds(self):
        self.start_until_held("back", 1)

        result = self.run_program("train", "deck.yaml", *support.overrides(*self.settings("back", 1), "train.steps=2"),
                                  "--resume", "never")

        self.assertEqual(result.code, 0, result.err)
        self.assertNotIn("brought from the memory", result.err)
        self.assertEqual(self.held(), [])

    def test_a_run_that_was_deleted_does_not_come_back(self):
        self.start_until_held("deleted", 1)
        held = self.held()
        shutil.rmtree(self.folder / "deleted")

        result = self.run_program("train", "deck.yaml", *support.overrides(*self.settings("deleted", 1), "run.seed=8"))

        self.assertEqual(result.code, 0, result.err)
        self.assertNotIn("brought from the memory", result.err)
        self.assertEqual(result.err.count("checkpoints in memory of an earlier run in "), 1, result.err)
        self.assertEqual(support.column(self.folder / "deleted", "step"), list(range(1, STEPS + 1)))
        self.assertEqual(self.held(), held, "another run's, which a container of another path could still want")
        shutil.rmtree(self.folder / "memory")

    def test_what_memory_held_before_a_start_without_it_is_left_out(self):
        self.start_until_held("between", 1)
        self.assertTrue((self.folder / "between/checkpoints/run_id").exists())

        self.train("between", *SETTINGS, options=("--stop-after", "2"))

        self.assertFalse((self.folder / "between/checkpoints/run_id").exists())
        result = self.run_program("train", "deck.yaml", *support.overrides(*self.settings("between", 1)))
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("resumed from between/checkpoints/step_00000002", result.err)
        shutil.rmtree(self.folder / "memory")

    def test_what_memory_holds_is_private(self):
        self.start_until_held("private", 1)

        found = [path for path in (self.folder / "memory").rglob("*")]
        self.assertGreater(len(found), 4)
        for path in found:
            self.assertEqual(path.stat().st_mode & 0o7777, 0o700 if path.is_dir() else 0o600, path)
        shutil.rmtree(self.folder / "memory")

    def test_failures_in_memory_are_reported_again_after_a_save_that_went_well(self):
        once = "file.rename@/memory/#{}:0:*:no_space"
        process = self.start("train", "deck.yaml", *support.overrides(
            *self.settings("again", 1), "checkpoint.memory_every=1", "train.steps=400"),
            env={**os.environ, "HYPERSLAB_FAULT": f"{once.format(2)},{once.format(4)}"})
        err = process.communicate(timeout=90)[1].decode()

        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(err.count("in memory: "), 2, err)

    def test_memory_that_has_no_room_is_reported_once_and_training_goes_on(self):
        (self.folder / "file").write_text("in the way")
        result = self.train("no_room", *SETTINGS, "checkpoint.memory_every=2",
                            f"checkpoint.memory_directory={self.folder / 'file'}")

        self.assertEqual(result.err.count("in memory: "), 1, result.err)
        self.assertEqual(support.column(self.folder / "no_room", "step"), list(range(1, STEPS + 1)))

    def test_memory_needs_saving_beside_training(self):
        result = self.run_program("train", "deck.yaml", *support.overrides(
            "checkpoint.memory_every=2", "checkpoint.async=false"))

        self.assert_refused(result, 2, "checkpoint.memory_every", "checkpoint.async")


class FailedSaves(support.Case):
    """A disk that refuses checkpoints and nothing else."""

    def run_with(self, fault, run, *settings, ranks=1):
        """Exit code and messages of a run with a fault that was made on purpose."""
        process = self.start("train", "deck.yaml", *support.overrides(
            f"run.directory={run}", f"parallel.data={ranks}", *SETTINGS, *settings),
            ranks=0 if ranks == 1 else ranks, env={**os.environ, "HYPERSLAB_FAULT": fault})
        err = process.communicate(timeout=90)[1].decode()
        return process.returncode, err

    def test_training_goes_on_until_too_many_fail_in_a_row(self):
        for beside, ranks in (("true", 1), ("false", 1), ("true", 2)):
            with self.subTest(beside=beside, ranks=ranks):
                run = f"failed{beside}{ranks}"
                code, err = self.run_with(FULL.format(ranks - 1), run, "checkpoint.every=4",
                                          "checkpoint.max_failures=3", f"checkpoint.async={beside}", ranks=ranks)

                self.assertEqual(code, 5, err)
                found = re.findall(r"checkpoint of step (\d+) was not saved: rank \d+: .*No space left.*; "
                                   r"(\d) of checkpoint.max_failures 3 in a row", err)
                self.assertEqual(found, [("4", "1"), ("8", "2"), ("12", "3")], err)
                self.assertIn("3 saves in a row failed", err)
                self.assertEqual(list((self.folder / run / "checkpoints").glob("step_*")), [])
                trained = len(support.metrics(self.folder / run))
                self.assertIn(trained, range(12, 17), "beside training, the next save finds out")

    def test_the_last_save_must_succeed(self):
        code, err = self.run_with(FULL.format(0), "last", "checkpoint.every=0")

        self.assertEqual(code, 5, err)
        self.assertIn(f"checkpoint of step {STEPS} was not saved", err)

    def test_a_save_that_succeeds_again_forgets_those_before(self):
        once = FULL.replace("/step_", "/step_00000008").format(0)
        code, err = self.run_with(f"{once},{once.replace('08:', '16:')}", "recovers", "checkpoint.every=4",
                                  "checkpoint.max_failures=2")

        self.assertEqual(code, 0, err)
        self.assertEqual(err.count("1 of checkpoint.max_failures 2 in a row"), 2, err)
        folder = self.folder / "recovers/checkpoints"
        self.assertEqual(sorted(path.name for path in folder.glob("step_*")),
                         ["step_00000032", "step_00000036", "step_00000040"])


if __name__ == "__main__":
    support.main()
