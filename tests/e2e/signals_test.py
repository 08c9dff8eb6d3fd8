#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests to stop, and ranks that are killed."""

import os
import pathlib
import re
import signal
import time

import support

# Seconds that anything here may take on a machine that is busy with other things.
PATIENCE = 120
# A step takes about a second, so that what a test does within a step needs no quick machine.
BIG_BATCH = ("train.global_batch=4800", "train.microbatch=2400")


def catches(process, number):
    """Whether a process has a handler for the signal by now."""
    for line in pathlib.Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def is_pending(process, number):
    """Whether a signal to a process waits to be delivered."""
    lines = pathlib.Path(f"/proc/{process}/status").read_text().splitlines()
    return any(int(line.split()[1], 16) >> (number - 1) & 1 for line in lines if line.startswith("ShdPnd:"))


class Signals(support.Case):
    """A run without end on two ranks."""

    def start_endless(self, run, *settings, ranks=2, lines=30):
        """Starts it and waits until it has done some steps."""
        process = self.start("train", "deck.yaml", *support.overrides(
            *support.ENDLESS, f"run.directory={run}", f"parallel.data={max(ranks, 1)}", *settings),
            ranks=ranks)
        path = self.folder / run / "metrics.jsonl"
        self.addCleanup(self.end, process)
        self.assertTrue(support.wait_until(
            lambda: path.exists() and path.read_bytes().count(b"\n") >= lines, PATIENCE))
        return process

    def end(self, process):
        """Nothing is left, whatever a test has met."""
        if process.poll() is None:
            process.kill()
        process.communicate()

    def wait_for_line(self, process, words):
        """Reads standard error up to a line with these words."""
        for line in process.stderr:
            if words in line:
                return
        self.fail(f"no line with {words}")

    def resume(self, run, steps, *settings, ranks=2):
        """Goes on for some steps."""
        last = int((self.folder / run / "checkpoints/latest").read_text()[5:])
        result = self.train(run, *support.ENDLESS, *settings, ranks=ranks,
                            options=("--stop-after", last + steps))
        self.assertIn(f"(step {last},", result.err)
        self.assertEqual(support.column(self.folder / run, "step"), list(range(1, last + steps + 1)))
        return last + steps

    def test_usr1_finishes_the_step_saves_and_asks_for_a_requeue(self):
        process = self.start_endless("asked")

        process.send_signal(signal.SIGUSR1)
        process.send_signal(signal.SIGUSR1)
        _, err = process.communicate(timeout=PATIENCE)

        self.assertEqual(process.returncode, 75, err)
        last = support.column(self.folder / "asked", "step")[-1]
        self.assertEqual((self.folder / "asked/checkpoints/latest").read_text().strip(), f"step_{last:08d}")
        end = self.resume("asked", 5)
        self.train("whole", *support.ENDLESS, ranks=2, options=("--stop-after", end))
        self.assertEqual(support.column(self.folder / "asked", "loss"),
                         support.column(self.folder / "whole", "loss"))

    def test_term_of_one_rank_does_the_same(self):
        process = self.start_endless("term", ranks=0)

        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE)

        self.assertEqual(process.returncode, 75, err)
        self.resume("term", 3, ranks=1)

    def test_usr2_does_the_same(self):
        process = self.start_endless("usr2", ranks=0)

        process.send_signal(signal.SIGUSR2)
        _, err = process.communicate(timeout=PATIENCE)

        self.assertEqual(process.returncode, 75, err)
        self.assertRegex(err.decode(), r"stopping after step \d+ on request \(SIGUSR2\)")

    def test_interrupt_saves(self):
        process = self.start_endless("interrupt", ranks=0)

        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)

        self.assertEqual(process.returncode, 75, err)
        self.assertIn("again to end at once", err.decode())
        self.assertRegex(err.decode(), r"stopping after step \d+ on request \(SIGINT\)")
        self.resume("interrupt", 3, ranks=1)

    def test_interrupt_twice_ends_at_once(self):
        process = self.start_endless("twice", *BIG_BATCH, ranks=0, lines=1)
        done = len(support.metrics(self.folder / "twice"))

        process.send_signal(signal.SIGINT)
        self.wait_for_line(process, b"again to end at once")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)

        self.assertEqual(process.returncode, -signal.SIGINT)
        self.assertFalse((self.folder / "twice/checkpoints/latest").exists())
        self.assertLessEqual(len(support.metrics(self.folder / "twice")) - done, 2)

    def test_the_second_interrupt_counts_whatever_came_between(self):
        for number in (signal.SIGTERM, signal.SIGUSR1):
            with self.subTest(number.name):
                run = f"between{number.value}"
                process = self.start_endless(run, *BIG_BATCH,
                                             ranks=0, lines=1)

                process.send_signal(signal.SIGINT)
                self.wait_for_line(process, b"again to end at once")
                process.send_signal(number)
                self.assertTrue(support.wait_until(lambda: not is_pending(process.pid, number), PATIENCE))
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=PATIENCE)

                self.assertEqual(process.returncode, -signal.SIGINT)

    def test_interrupt_of_mpirun_saves_if_it_leaves_time(self):
        os.environ["OMPI_MCA_odls_base_sigkill_timeout"] = "8"
        self.addCleanup(os.environ.pop, "OMPI_MCA_odls_base_sigkill_timeout")
        # Few lines: mpirun forwards no output while it waits, and a rank whose pipe is full does not stop.
        settings = ("train.global_batch=240", "train.microbatch=120")
        process = self.start_endless("interrupted", *settings, lines=2)

        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)

        last = support.column(self.folder / "interrupted", "step")[-1]
        self.assertEqual((self.folder / "interrupted/checkpoints/latest").read_text().strip(),
                         f"step_{last:08d}", err)
        self.resume("interrupted", 3, *settings)

    def test_a_request_before_the_first_step_ends_well(self):
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
            with self.subTest(number.name):
                run = f"early{number.value}"
                process = self.start("train", "deck.yaml", *support.overrides(
                    *support.ENDLESS, f"run.directory={run}"))
                self.addCleanup(self.end, process)
                self.assertTrue(support.wait_until(lambda: catches(process.pid, number), PATIENCE))

                process.send_signal(number)
                _, err = process.communicate(timeout=PATIENCE)

                self.assertEqual(process.returncode, 75, err)

    def test_a_second_signal_changes_nothing(self):
        for first, second in ((signal.SIGUSR1, signal.SIGTERM), (signal.SIGTERM, signal.SIGTERM),
                              (signal.SIGTERM, signal.SIGUSR2)):
            with self.subTest(f"{first.name} {second.name}"):
                run = f"second{first.value}_{second.value}"
                process = self.start_endless(run, ranks=0)

                process.send_signal(first)
                process.send_signal(second)
                _, err = process.communicate(timeout=PATIENCE)

                self.assertEqual(process.returncode, 75, err)
                self.assert_saved_once(run, err.decode())

    def assert_saved_once(self, run, err):
        """The checkpoint is of the last step, and no other one was written after the request."""
        last = support.column(self.folder / run, "step")[-1]
        self.assertEqual((self.folder / run / "checkpoints/latest").read_text().strip(), f"step_{last:08d}", err)
        self.assertEqual(len(re.findall(rf"checkpoint of step {last} ", err)), 1, err)
        self.assertFalse(list((self.folder / run / "checkpoints").glob("*.tmp*")), err)
        return last

    def test_a_request_during_a_save_needs_no_other_one(self):
        for ranks in (0, 2):
            with self.subTest(ranks=ranks):
                run = f"saving{ranks}"
                process = self.start_endless(run, "checkpoint.every=5", ranks=ranks)
                folder = self.folder / run / "checkpoints"
                self.assertTrue(support.wait_until(lambda: list(folder.glob("*.tmp*")), PATIENCE))

                process.send_signal(signal.SIGUSR1)
                _, err = process.communicate(timeout=PATIENCE)

                self.assertEqual(process.returncode, 75, err)
                last = self.assert_saved_once(run, err.decode())
                stop = int(re.search(r"stopping after step (\d+)", err.decode())[1])
                self.assertLessEqual(last - stop, 0)

    def test_a_request_cuts_a_validation_short(self):
        tokens = list(support.text().encode()) * 400
        support.write_tokens(self.folder / "long.bin", tokens)
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                run = f"validating{ranks}"
                fault = f"step.validation#1:{ranks - 1}:*:delay_0.1"
                process = self.start("train", "deck.yaml", *support.overrides(
                    f"run.directory={run}", f"parallel.data={ranks}", "train.steps=1000000", "train.validate_every=5",
                    "train.validate_batches=0", "data.validation=[long.bin]", "train.microbatch=1", "checkpoint.every=0"),
                    ranks=0 if ranks == 1 else ranks, env={**os.environ, "HYPERSLAB_FAULT": fault})
                self.addCleanup(self.end, process)
                self.wait_for_line(process, f"fault on purpose ({fault})".encode())

                process.send_signal(signal.SIGUSR1)
                begin = time.monotonic()
                _, err = process.communicate(timeout=PATIENCE)

                self.assertEqual(process.returncode, 75, err)
                self.assertEqual(self.assert_saved_once(run, err.decode()), 5)
                self.assertNotIn("validation_loss", support.metrics(self.folder / run)[4])
                self.assertLess(time.monotonic() - begin, 10)

    def test_one_rank_asked_is_enough(self):
        process = self.start_endless("one")

        os.kill(support.children(process.pid)[-1], signal.SIGUSR1)
        _, err = process.communicate(timeout=PATIENCE)

        self.assertEqual(process.returncode, 75, err)

    def test_a_killed_rank_ends_the_others(self):
        settings = ("checkpoint.every=20",)
        process = self.start_endless("killed", *settings, ranks=3)
        ranks = support.children(process.pid)
        self.assertEqual(len(ranks), 3)
        self.assertTrue(support.wait_until((self.folder / "killed/checkpoints/latest").exists, PATIENCE))

        os.kill(ranks[1], signal.SIGKILL)
        begin = time.monotonic()
        _, err = process.communicate(timeout=PATIENCE)

        self.assertTrue(support.wait_until(lambda: not any(map(support.alive, ranks)), 10), err)
        self.assertLess(time.monotonic() - begin, 20, err)  # far below hang_timeout_seconds
        self.assertEqual(process.returncode, 137, err)
        done = len((self.folder / "killed/metrics.jsonl").read_bytes().splitlines())
        latest = int((self.folder / "killed/checkpoints/latest").read_text()[5:])
        self.assertLessEqual(done - latest, 2 * 20 + 1)  # one save may still be in progress
        self.resume("killed", 5, *settings)

    def test_a_killed_mpirun_leaves_no_rank_behind(self):
        process = self.start_endless("orphans")
        ranks = support.children(process.pid)

        process.kill()

        self.assertTrue(support.wait_until(lambda: not any(map(support.alive, ranks)), 20))


if __name__ == "__main__":
    support.main()
