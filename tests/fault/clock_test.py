#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A clock of the date that jumps by days while a job runs."""

import os

import fault_support
import support

SETTINGS = (*fault_support.PLAIN, "train.steps=12", "checkpoint.every=4", "run.hang_timeout_seconds=20",
            "run.walltime_minutes=30")


class Clock(fault_support.FaultCase):
    """Timeouts and limits are of the monotonic clock."""

    def test_jumps_change_nothing(self):
        self.run_job("steady", *SETTINGS)

        result = self.run_job("jumps", *SETTINGS, LD_PRELOAD=os.environ["HYPERSLAB_CLOCK_JUMP"])

        self.assertEqual(result.messages, [])
        self.assert_equal_steps(self.folder / "jumps/checkpoints", self.folder / "steady/checkpoints", (4, 8, 12))
        for line in support.metrics(self.folder / "jumps"):
            self.assertGreaterEqual(line["wall_seconds"], 0)
            self.assertLess(line["wall_seconds"], 600)
            self.assertLess(line["step_seconds"], 600)


if __name__ == "__main__":
    support.main()
