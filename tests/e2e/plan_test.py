#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""plan: layout, schedule and memory of a run that is not started."""

import re

import support


class Plan(support.Case):
    """The tiny deck on ranks that are not there."""

    def plan(self, *settings, options=()):
        """What was printed."""
        result = self.run_program("plan", "deck.yaml", *options, *support.overrides(*settings))
        self.assertEqual((result.code, result.err), (0, ""))
        return result.out

    def test_layout_and_memory(self):
        before = support.snapshot(self.folder)

        out = self.plan("parallel.data=3", "train.microbatch=2", options=("--ranks", 3))

        self.assertEqual(support.snapshot(self.folder), before)
        self.assertRegex(out, r"(?m)^layout +data 3 x tensor 1 x pipeline 1, 3 ranks$")
        self.assertRegex(out, r"(?m)^step +12 samples: 2 microbatches on each data rank")
        row = re.search(r"(?m)^pipeline 0 +([\d. ]+)$", out)[1].split()
        values = [float(value) for value in row]
        self.assertAlmostEqual(sum(values[:-1]), values[-1], delta=0.05 * len(values))
        dry = self.run_program("train", "deck.yaml", "--dry-run",
                               *support.overrides("parallel.data=3", "train.microbatch=2"))
        self.assertIn(f"memory of a rank      {row[-1]} MiB", dry.out)

    def test_schedule(self):
        out = self.plan("train.microbatch=4", "parallel.schedule=gpipe", options=("--schedule",))

        self.assertRegex(out, r"(?m)^schedule +gpipe, 1 stages x 1 chunks, 3 microbatches$")
        self.assertRegex(out, r"(?m)^idle +0\.00 % of the busy time in theory, 0\.00 % simulated$")
        self.assertRegex(out, r"(?m)^slots +3 ")
        self.assertIn("rank 0 F0 F1 F2 B0 =  B1 =  B2 =\n", out)

    def test_refusals(self):
        other = self.run_program("plan", "deck.yaml", "--ranks", 4)
        none = self.run_program("plan", "deck.yaml", "--ranks", 0)

        self.assert_refused(other, 2, "parallel.data", "4 were started")
        self.assert_refused(none, 2, "--ranks is 0")


if __name__ == "__main__":
    support.main()
