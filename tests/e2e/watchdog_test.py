#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that hang or are lost in the middle of a training: found, named, and no process is left."""

import json
import os
import signal
import time

import support

TIMEOUT = 2


class Watchdog(support.Case):
    """A run without end on four ranks, watched closely."""

    def start_watched(self, run, *settings, ranks=4):
        """Starts it and waits until each rank has reported to the watchdog from within the training: it reports
        eight times in the timeout, and the run's own clock says when that was so twice after the first step."""
        process = self.start("train", "deck.yaml", *support.overrides(
            *support.ENDLESS, f"run.directory={run}", f"run.hang_timeout_seconds={TIMEOUT}", *settings),
            ranks=ranks)
        self.addCleanup(self.end, process)
        path = self.folder / run / "metrics.jsonl"

        def has_reported():
            lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
            return len(lines) >= 20 and seconds(lines[-1]) - seconds(lines[0]) >= 2 * TIMEOUT / 8

        def seconds(line):
            return json.loads(line)["wall_seconds"]

        self.assertTrue(support.wait_until(has_reported, 30))
        return process

    def end(self, process):
        """Nothing is left, whatever a test has met."""
        if process.poll() is None:
            process.kill()
        process.communicate()

    def hit(self, process, rank, kind):
        """Sends a signal to one rank; the exit code, the one line and the seconds it took."""
        ranks = support.children(process.pid)
        begin = time.monotonic()
        os.kill(ranks[rank], kind)
        _, err = process.communicate(timeout=30)
        seconds = time.monotonic() - begin
        lines = [line for line in err.decode().splitlines() if line.startswith("hyperslab: ")]
        self.assertEqual(len(lines), 1, err)
        self.assertTrue(support.wait_until(lambda: not any(map(support.alive, ranks)), 3))
        return process.returncode, lines[0], seconds

    def test_a_stopped_rank_is_named_with_its_last_collectives(self):
        process = self.start_watched("stopped", "parallel.data=2", "parallel.tensor=2")

        code, line, seconds = self.hit(process, 2, signal.SIGSTOP)

        self.assertEqual(code, 8, line)
        self.assertLess(seconds, TIMEOUT + 5)
        self.assertRegex(line, r"no rank got anything done for 2 s: rank 2 \(data 1, tensor 0, pipeline 0\) host \S+ "
                               r"does not answer .*, last heard of in step \d+,.* newest calls .*world all_reduce \d+, "
                               r".*data all_reduce \d+, .*tensor all_reduce \d+")
        self.assertRegex(line, r"ranks? [\d, -]+ waits? in (data|tensor|world) all_reduce \d+")
        self.assertIn("run.hang_timeout_seconds", line)

    def test_a_rank_that_is_stopped_in_an_exchange_is_named(self):
        process = self.start_watched("exchange", "parallel.context=2", "parallel.zero=1", ranks=2)

        code, line, seconds = self.hit(process, 1, signal.SIGSTOP)

        self.assertEqual(code, 8, line)
        self.assertLess(seconds, TIMEOUT + 5)
        self.assertRegex(line, r": rank 1 \(data 0, tensor 0, pipeline 0, context 1\) host \S+ does not answer .*"
                               r"context all_to_all \d+")
        self.assertRegex(line, r"rank 0 waits in (context|data|world) ")

    def test_a_rank_that_is_killed_or_stopped_among_experts_is_named(self):
        for kind, expected, why in ((signal.SIGSTOP, 8, "does not answer .*expert all_to_all \\d+"), (signal.SIGKILL, 137, "is gone")):
            with self.subTest(kind):
                process = self.start_watched(f"experts{kind}", "parallel.data=2", "parallel.expert=2", "experts.count=4", ranks=2)

                code, line, seconds = self.hit(process, 1, kind)

                self.assertEqual(code, expected, line)
                self.assertLess(seconds, TIMEOUT + 5)
                self.assertRegex(line, r"rank 1 \(data 1 \(expert 1\), tensor 0, pipeline 0\) host \S+ " + why)

    def test_rank_0_is_named_as_well(self):
        process = self.start_watched("first", "parallel.pipeline=2", ranks=2)

        code, line, seconds = self.hit(process, 0, signal.SIGSTOP)

        self.assertEqual(code, 8, line)
        self.assertLess(seconds, TIMEOUT + 5)
        self.assertRegex(line, r": rank 0 \(data 0, tensor 0, pipeline 0\) .*; rank 1 waits in (pipeline|world) ")

    def test_a_killed_rank_is_named_at_once(self):
        process = self.start_watched("killed", "parallel.data=4")

        code, line, seconds = self.hit(process, 3, signal.SIGKILL)

        self.assertEqual(code, 137, line)
        self.assertLess(seconds, 5)
        self.assertRegex(line, r"hyperslab: rank 3 \(data 3, tensor 0, pipeline 0\) host \S+ is gone .* in step \d+")

    def test_a_short_timeout_lets_a_run_with_checkpoints_and_validation_end(self):
        settings = ("run.hang_timeout_seconds=1", "train.validate_every=5", "checkpoint.every=5")

        result = self.train("ends", *settings, ranks=2)
        again = self.train("ends", *settings, "train.steps=30", ranks=2)

        self.assertEqual(result.messages + again.messages, [])
        self.assertEqual(support.column(self.folder / "ends", "step"), list(range(1, 31)))

    def test_a_job_that_was_stopped_as_a_whole_goes_on(self):
        process = self.start_watched("paused", "parallel.data=2", ranks=2)
        ranks = support.children(process.pid)

        for rank in ranks:
            os.kill(rank, signal.SIGSTOP)
        time.sleep(2 * TIMEOUT)
        for rank in ranks:
            os.kill(rank, signal.SIGCONT)
        path = self.folder / "paused/metrics.jsonl"
        done = path.read_bytes().count(b"\n")
        self.assertTrue(support.wait_until(lambda: path.read_bytes().count(b"\n") > done + 5, 30))
        process.send_signal(signal.SIGUSR1)
        _, err = process.communicate(timeout=20)

        self.assertEqual(process.returncode, 75, err)
        self.assertNotIn(b"hyperslab: ", err)


if __name__ == "__main__":
    support.main()
