#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench: times of steps and of parts, which add up."""

import json
import statistics

import support

COMPONENTS = {"attention", "ffn", "norms", "head", "optimizer", "communication", "embedding", "other"}


class Bench(support.Case):
    """The tiny deck, in every mode."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.before = set(support.snapshot(cls.folder))
        cls.forward = cls.bench("--mode", "forward")
        cls.backward = cls.bench("--mode", "forward-backward")
        cls.step = cls.bench("--components")
        cls.two = cls.bench("--components", ranks=2, steps=3)
        cls.cold = cls.bench("--cold", ranks=2, steps=4)

    @classmethod
    def bench(cls, *arguments, ranks=1, steps=2):
        """What was printed, and the figures from --json."""
        result = cls.run_program("bench", "deck.yaml", "--warmup", 1, "--steps", steps, "--json", "out.json",
                                 *support.overrides(f"parallel.data={ranks}"), *arguments,
                                 ranks=0 if ranks == 1 else ranks)
        if result.code != 0:
            raise AssertionError(result.err)
        return result.out, json.loads((cls.folder / "out.json").read_text(encoding="utf-8"))

    def test_every_mode(self):
        modes = {"forward": self.forward, "forward-backward": self.backward, "step": self.step}
        flops = {mode: found["model_flops"] for mode, (_, found) in modes.items()}

        for mode, (out, found) in modes.items():
            self.assertEqual((found["mode"], found["ranks"]), (mode, 1))
            for word in ("utilization", "tokens", "GFLOP/s", "standard deviation", "memory"):
                self.assertIn(word, out)
            self.assertGreater(found["memory_peak_bytes"], 0)
        self.assertAlmostEqual(3 * flops["forward"] / flops["step"], 1, places=12)
        self.assertEqual(flops["forward-backward"], flops["step"])

    def test_json_keeps_every_step(self):
        _, found = self.two
        seconds = found["step_seconds"]

        self.assertEqual(len(seconds), 3)
        self.assertTrue(all(value > 0 for value in seconds))
        self.assertAlmostEqual(found["mean_seconds"] / statistics.mean(seconds), 1, places=9)
        self.assertAlmostEqual(found["median_seconds"] / statistics.median(seconds), 1, places=9)
        self.assertAlmostEqual(found["standard_deviation_seconds"], statistics.stdev(seconds), places=9)
        self.assertAlmostEqual(found["tokens_per_second"] * found["median_seconds"], 12 * 32, places=6)
        peak = found["matmul_rate"] * found["median_seconds"]
        self.assertAlmostEqual(found["mfu"] * peak / found["model_flops"], 1, places=9)

    def test_components_add_up(self):
        out, found = self.step
        parts = found["components"]
        seconds = sum(part["seconds"] for part in parts.values())

        self.assertEqual(set(parts), COMPONENTS)
        self.assertAlmostEqual(sum(part["share"] for part in parts.values()), 1, places=9)
        self.assertAlmostEqual(sum(part["expected_share"] for part in parts.values()), 1, places=9)
        self.assertGreater(seconds, 0.6 * found["mean_seconds"])
        self.assertLess(seconds, 1.02 * found["mean_seconds"])
        for name in ("attention", "ffn", "norms", "head", "optimizer"):
            self.assertGreater(parts[name]["flops"], 0, name)
            self.assertGreater(parts[name]["seconds"], 0, name)
            self.assertIn(f"\n{name} ", out)

    def test_two_ranks_share_the_work(self):
        one, two = self.step[1], self.two[1]

        self.assertEqual(one["model_flops"], two["model_flops"])
        self.assertAlmostEqual(two["components"]["ffn"]["flops"] / one["components"]["ffn"]["flops"], 0.5,
                               places=9)
        self.assertGreater(two["components"]["communication"]["seconds"], 0)

    def test_the_first_cold_step_is_the_longest(self):
        seconds = self.cold[1]["step_seconds"]

        self.assertEqual(len(seconds), 4)
        self.assertEqual(max(seconds), seconds[0])

    def test_nothing_but_the_json_is_written(self):
        self.assertEqual(set(support.snapshot(self.folder)) - self.before, {"out.json"})

    def test_unwritable_json(self):
        result = self.run_program("bench", "deck.yaml", "--steps", 1, "--json", "text.txt/a.json")

        self.assert_refused(result, 5, "text.txt/a.json")

    def test_refusals(self):
        for words, arguments in [(["--mode", "backward"], ("--mode", "backward")),
                                 (["--steps"], ("--steps", "0")), (["--warmup"], ("--warmup", "-1"))]:
            with self.subTest(arguments=arguments):
                result = self.run_program("bench", "deck.yaml", "--set", "parallel.data=2", *arguments,
                                          ranks=2)
                self.assert_refused(result, 2, *words)


if __name__ == "__main__":
    support.main()
