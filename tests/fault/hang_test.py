#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank that is stopped in any phase, or stuck in storage: ended in time, in one line that names it."""

import concurrent.futures

import fault_support
import support

TIMEOUT = 2
START_TIMEOUT = 3
AT_ONCE = 3  # jobs, which mostly wait
SPARE = 6  # seconds beside the limits that a job takes to start and to end

SETTINGS = ("checkpoint.every=2", "train.steps=8", "train.validate_every=3", "train.validate_batches=1",
            "checkpoint.keep=2", "model.layers=1", f"run.hang_timeout_seconds={TIMEOUT}")

def cases():
    """(name, HYPERSLAB_FAULT, seconds that it may take until the job ends, what the line says) of all phases."""
    late = f"did not get through {{}} in {START_TIMEOUT} s: rank {{}} .*is stopped"
    for point, rank, what in (("start.program", 1, "the start of MPI and of the run"),
                              ("start.program", 0, "the start of MPI and of the run"),
                              ("start.world", 1, "the start of MPI and of the run"),
                              ("end.world", 1, "the end of MPI")):
        yield f"{point} {rank}", f"{point}:{rank}:*:stop", START_TIMEOUT, late.format(what, rank)
    silent = "rank {} .*does not answer .*, last heard of {}"
    for rank, point in enumerate(("start.data", "start.memory", "start.resume", "start.directories", "start.records")):
        rank %= 2
        yield point, f"{point}#1:{rank}:*:stop", 3 * TIMEOUT, silent.format(rank, "before the first step")
    for rank, (point, step) in enumerate((("step.load#3", "*"), ("step.forward", "5"), ("step.backward", "5"),
                                          ("collective.call", "5"), ("step.optimizer", "5"),
                                          ("step.validation", "6"), ("records.timing#3", "*"),
                                          ("records.metrics#3", "*"))):
        rank = 0 if point == "records.metrics#3" else rank % 2
        yield point, f"{point}:{rank}:{step}:stop", 3 * TIMEOUT, silent.format(rank, r"(in step \d|before)")
    # A save is beside training: the step in which its calls come is not known.
    for point, rank, step in (("file.create", 0, 6), ("file.write", 1, 6), ("file.sync", 1, 6), ("file.rename", 0, 6),
                              ("tree.remove", 0, 2)):
        path = f"/step_{step:08d}"
        yield point, f"{point}@{path}#1:{rank}:*:stop", TIMEOUT, silent.format(rank, r"(in step \d|before)")
    yield "end.run", "end.run:0:*:stop", TIMEOUT, r"rank 0 .*does not answer .*; rank 1 waits in host "


class Fault34(fault_support.FaultCase):
    """SIGSTOP in each phase of a job of two ranks."""

    def stop(self, name, fault):
        """One job."""
        run = "stop_" + "".join(c if c.isalnum() else "_" for c in name)
        variables = {"HYPERSLAB_START_TIMEOUT_SECONDS": str(START_TIMEOUT)}
        return self.start_job(run, *SETTINGS, fault=fault, **variables).result(40)

    def test_stopped_in_each_phase(self):
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            jobs = [(case, pool.submit(self.stop, case[0], case[1])) for case in cases()]
            for (name, fault, seconds, pattern), job in jobs:
                result = job.result()
                with self.subTest(name):
                    self.assertIn(f"fault on purpose ({fault})", result.err)
                    self.assertEqual(result.code, 8, result.err)
                    self.assert_one_line(result, pattern)
                    self.assertLess(result.seconds, seconds + SPARE + 2 * AT_ONCE)

    def test_stopped_while_a_checkpoint_is_loaded(self):
        self.train("loaded", *SETTINGS, ranks=2)

        result = self.run_job("loaded", *SETTINGS, "train.steps=10", fault="checkpoint.load:1:*:stop", code=8)

        self.assert_one_line(result, r"rank 1 .*does not answer .*before the first step")

    def test_a_short_stop_ends_nothing(self):
        result = self.run_job("short", *SETTINGS, fault="step.forward#1:1:5:delay_1.2")

        self.assertEqual(result.messages, [])


class Fault26(fault_support.FaultCase):
    """Storage that answers late or never: a call has ten times the timeout."""

    SHORT = 0.5  # seconds: the timeout of those that end with a hang
    BESIDE = "for the checkpoint that is written beside training"

    def slow(self, run, fault, *settings, code=8):
        """A job with a late call."""
        result = self.run_job(run, *SETTINGS, f"run.hang_timeout_seconds={self.SHORT}", *settings, fault=fault, code=code)
        self.assertGreater(result.seconds, 10 * self.SHORT if code == 8 else 0)
        self.assertLess(result.seconds, 10 * self.SHORT + SPARE)
        return result

    def test_a_stuck_fsync_is_named_and_who_waits_for_it_is_not_stuck(self):
        for beside, waits in (("true", f"rank 0 waits {self.BESIDE}"), ("false", "rank 0 waits in ")):
            with self.subTest(beside=beside):
                result = self.slow(f"sync_{beside}", "file.sync@/checkpoints/#1:1:*:delay_60", f"checkpoint.async={beside}")

                self.assert_one_line(
                    result, r"s: rank 1 .* is stuck in step \d, .*syncing \S*/checkpoints/step_\S+ for \d+ s", waits)
                self.assertNotRegex(result.messages[0], r"rank 0 [^;]*is stuck")

    def test_a_stuck_line_of_metrics_is_named(self):
        result = self.slow("metrics", "file.write@metrics.jsonl#4:0:*:delay_60")

        self.assert_one_line(result, r"rank 0 .* is stuck in step \d, .*writing \S*metrics.jsonl for \d+ s")

    def test_late_calls_that_come_end_nothing(self):
        late = ("file.write@/checkpoints/#2:1:*:delay_2", "file.sync@/checkpoints/#1:1:*:delay_2",
                "file.sync@/checkpoints/#2:0:*:delay_2", "file.rename@/checkpoints/#1:0:*:delay_2",
                "tree.remove@/checkpoints/#1:0:*:delay_2", "file.write@metrics.jsonl#4:0:*:delay_2")
        for beside in ("true", "false"):
            for i, fault in enumerate(late):
                with self.subTest(fault, beside=beside):
                    result = self.slow(f"late_{i}_{beside}", fault, f"checkpoint.async={beside}", code=0)

                    self.assertEqual(result.messages, [])

    def test_a_removal_that_never_ends_has_ten_times_the_timeout(self):
        result = self.slow("prune", "tree.remove@.tmp/#1:0:*:delay_60")

        self.assert_one_line(result, r"rank 0 .* is stuck in step \d, .*removing \S*/checkpoints/step_\S+ for \d+ s",
                             rf"rank 1 waits (in|{self.BESIDE})")


if __name__ == "__main__":
    support.main()
