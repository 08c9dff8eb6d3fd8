#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ranks that die, numbers that are ruined, and what HYPERSLAB_FAULT itself says."""

import fault_support
import support

SETTINGS = (*fault_support.PLAIN, "checkpoint.every=4", "train.steps=12", "model.layers=1")


class Fault30(fault_support.FaultCase):
    """SIGKILL of each rank in the middle of a step."""

    def test_killed_ranks(self):
        settings = (*SETTINGS, "timing.every=1")
        self.train("whole", *settings, ranks=3)
        points = ["step.forward", "step.backward", "collective.call", "step.optimizer", "records.timing"]
        for number, point in enumerate(points):
            rank = number % 3
            step = 11 if point == "records.timing" else 10  # step 10 finds all rows written
            run = f"killed{number}"
            with self.subTest(point=point, rank=rank):
                result = self.run_job(run, *settings, ranks=3, fault=f"{point}#1:{rank}:{step}:kill", code=137,
                                      quick=False)

                self.assert_one_line(result, rf"rank {rank} \(data {rank}, .* is gone \(killed, or crashed\), last ")
                self.assertLess(result.seconds, 10)
                # The save of step 8 goes on beside steps 9 and 10.
                self.assertIn(fault_support.steps(self.folder / run / "checkpoints"), ([4], [4, 8]))
                self.run_job(run, *settings, ranks=3)
                self.assert_equal_steps(self.folder / run / "checkpoints", self.folder / "whole/checkpoints", [8, 12])
                for key in ("step", "loss", "grad_norm"):
                    self.assertEqual(support.column(self.folder / run, key),
                                     support.column(self.folder / "whole", key))

    def test_killed_in_each_phase_of_the_start(self):
        for number, point in enumerate(["start.program", "start.world", "start.data", "start.memory", "start.resume",
                                        "start.directories", "start.records", "end.run"]):
            rank = number % 2
            with self.subTest(point=point, rank=rank):
                result = self.run_job(f"start{number}", *SETTINGS, fault=f"{point}:{rank}:*:kill", code=137)

                self.assertLess(result.seconds, 10)
                self.assertNotIn("fault of the program", result.err)


class Fault35(fault_support.FaultCase):
    """Gradients of one rank that are not a number."""

    def test_one_step_is_skipped_on_all_ranks(self):
        self.run_job("one", *SETTINGS, fault="step.gradients:1:5:nan")

        self.assertEqual(support.column(self.folder / "one", "skipped_steps"), [0] * 4 + [1] * 8)
        self.assertEqual([line["step"] for line in support.metrics(self.folder / "one") if line["grad_norm"] is None],
                         [5])

    def test_every_step_ends_the_run(self):
        settings = (*SETTINGS, "train.steps=40")
        self.run_job("all", *settings, options=("--stop-after", "4"))
        result = self.run_job("all", *settings, fault="step.gradients:1:*:nan", code=7)

        self.assert_one_line(result, r"the gradients of the last 11 steps were not finite \(step 15, ")
        self.assertEqual(fault_support.steps(self.folder / "all/checkpoints"), [4])


class Switch(fault_support.FaultCase):
    """HYPERSLAB_FAULT and --faults."""

    def test_the_list_names_points_and_actions(self):
        result = self.run_program("--faults", ranks=2)

        self.assertEqual(result.code, 0, result.err)
        for word in ("step.forward", "file.rename", "checkpoint.commit", "short_write", "delay_SECONDS", "no_space"):
            self.assertEqual(result.out.count(f"\n  {word} "), 1, result.out)

    def test_a_wrong_value_is_refused_in_one_line(self):
        for value, word in {"step.forward": "1 part(s)", "step.onward:*:*:kill": "no point 'step.onward'",
                            "step.forward:*:*:nan": "no action nan"}.items():
            for ranks in (0, 2):
                with self.subTest(value, ranks=ranks):
                    result = self.start_job("wrong", ranks=ranks, fault=value).result()
                    self.assert_refused(result, 2, f"HYPERSLAB_FAULT: '{value}': ", word, "--faults")
        self.assertFalse((self.folder / "wrong").exists())

    def test_a_fault_is_warned_of(self):
        result = self.run_job("warned", *SETTINGS, "train.steps=2", fault="step.forward:7:*:kill")

        warning = "HYPERSLAB_FAULT is set, so this run fails on purpose: step.forward:7:*:kill\n"
        self.assertEqual(result.err.count(warning), 1)

    def test_an_error_is_one_of_storage(self):
        result = self.run_job("error", *SETTINGS, fault="start.data:1:*:no_space", code=5)

        self.assert_one_line(result, r"rank 1 .*fault on purpose at start.data: No space left on device")

    def test_a_flipped_bit_trains_other_numbers(self):
        self.train("sound", *SETTINGS, ranks=2)
        self.run_job("flipped", *SETTINGS, fault="step.parameters:1:6:flip")

        sound, flipped = (support.column(self.folder / run, "loss") for run in ("sound", "flipped"))
        self.assertEqual(sound[:6], flipped[:6])
        self.assertNotEqual(sound[6:], flipped[6:])

    def test_start_timeout_is_a_number(self):
        result = self.start_job("timeout", HYPERSLAB_START_TIMEOUT_SECONDS="soon").result()

        self.assertEqual(result.code, 2, result.err)
        self.assertIn("HYPERSLAB_START_TIMEOUT_SECONDS is 'soon', expected a number of seconds", result.err)


if __name__ == "__main__":
    support.main()
