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

    def test_pipeline(self):
        out = self.plan("parallel.pipeline=4", "train.microbatch=1", options=("--schedule", "--ranks", 4))

        self.assertRegex(out, r"(?m)^layout +data 1 x tensor 1 x pipeline 4, 4 ranks$")
        self.assertRegex(out, r"(?m)^schedule +1f1b, 4 stages x 1 chunks, 12 microbatches$")
        self.assertRegex(out, r"(?m)^idle +25\.00 % of the busy time in theory, 25\.00 % simulated$")
        self.assertRegex(out, r"(?m)^slots +4 3 2 1 ")
        self.assertEqual(re.findall(r"(?m)^pipeline (\d)", out), ["0", "1", "2", "3"])
        for rank in range(4):
            self.assertRegex(out, rf"(?m)^rank {rank} [F0-9 .]")

    def test_chunks(self):
        out = self.plan("parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.virtual_stages=2",
                        "train.microbatch=3", options=("--schedule",))

        self.assertRegex(out, r"(?m)^schedule +interleaved, 2 stages x 2 chunks, 4 microbatches$")
        self.assertRegex(out, r"(?m)^idle +12\.50 % of the busy time in theory, 12\.50 % simulated$")
        self.assertRegex(out, r"(?m)^slots +\d\+\d \d\+\d ")
        self.assertIn("F0a", out)
        self.assertIn("B3b", out)

    def test_sharding_and_recomputation_take_less(self):
        def row(*settings):
            out = self.plan("model.width=256", *settings)
            return [float(value) for value in re.search(r"(?m)^pipeline 0 +([\d. ]+)$", out)[1].split()]

        whole = row("parallel.data=4", "train.microbatch=1")
        state = row("parallel.data=4", "train.microbatch=1", "parallel.zero=1")
        again = row("parallel.data=4", "train.microbatch=1", "memory.recompute=full")
        split = row("parallel.tensor=2")

        self.assertAlmostEqual(state[2], whole[2] / 4, delta=0.1)
        self.assertEqual(state[:2], whole[:2])
        self.assertLess(again[3], whole[3] / 2)
        self.assertLess(split[0], 0.6 * whole[0])

    def test_refusals(self):
        other = self.run_program("plan", "deck.yaml", "--ranks", 4)
        none = self.run_program("plan", "deck.yaml", "--ranks", 0)

        self.assert_refused(other, 2, "parallel.data", "4 were started")
        self.assert_refused(none, 2, "--ranks is 0")


if __name__ == "__main__":
    support.main()
