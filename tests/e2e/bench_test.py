#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench: times of steps and of parts, which add up."""

import json
import pathlib
import re
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

    def test_the_table_of_kernels(self):
        """What a GPU takes, said without one."""
        deck = pathlib.Path(__file__).resolve().parents[2] / "inputs" / "gpt2-124m.yaml"

        def rows(*settings):
            result = self.run_program("bench", deck, "--kernel-table", "--json", "table.json", *support.overrides(*settings))
            self.assertEqual((result.code, result.err), (0, ""))
            found = json.loads((self.folder / "table.json").read_text(encoding="utf-8"))
            for row in found["kernels"]:
                self.assertIn(f"{row['op']:<34} {row['calls']:>5}  {row['kernel']:<28}  {row['problem']}\n", result.out)
            return {row["op"]: row for row in found["kernels"]}

        whole = rows()
        product = whole.pop("linear_forward")
        self.assertEqual((product["kernel"], [row["reason"] for row in product["before"]]), ("cuBLASLt", ["more than 8 rows are a GEMM"] * 2))
        self.assertEqual({op: (row["kernel"], row["calls"], row["before"]) for op, row in whole.items()},
                         {op: ("warpgroups", 96, []) for op in (
                             "attention_forward", "attention_backward", "linear_activation_forward",
                             "linear_activation_backward_input")})
        self.assertEqual(whole["attention_backward"]["problem"], "64 samples of 1024 tokens, 12 heads of 64, causal")
        long = rows("model.context=4096", "train.microbatch=1", "train.global_batch=1", "model.activation=gelu")
        self.assertEqual(long["attention_backward"]["before"], [
            {"kernel": "warpgroups", "reason": "cuDNN is faster beyond 2048 tokens"},
            {"kernel": "tiles", "reason": "slower than cuDNN without caps and documents"}])
        small = rows("model.context=128", "train.microbatch=1", "train.global_batch=1", "model.activation=gelu")
        self.assertEqual(small["linear_activation_forward"]["kernel"], "a product, then the activation")
        self.assertEqual([row["reason"] for row in small["linear_activation_forward"]["before"]],
                         ["fewer than 64 tiles leave multiprocessors idle", "cuBLASLt has gelu_tanh alone"])
        self.assertEqual(whole["attention_backward"]["source"],
                         "attention/warpgroup_backward.cu: attend_warpgroup_queries_kernel attend_warpgroup_keys_kernel")
        self.assertEqual(whole["attention_backward"]["after"], [
            {"kernel": "tiles", "reason": "slower than cuDNN without caps and documents"}, {"kernel": "cudnn", "reason": ""}])
        result = self.run_program("bench", deck, "--kernel-table", "--mode", "forward")
        self.assert_refused(result, 2, "--kernel-table goes with --mode step and decode, not forward")

    def test_the_table_of_kernels_in_generation(self):
        deck = pathlib.Path(__file__).resolve().parents[2] / "inputs" / "gpt2-124m.yaml"

        def kernels(rows):
            result = self.run_program("bench", deck, "--kernel-table", "--mode", "decode", "--rows", rows, "--json", "table.json")
            self.assertEqual((result.code, result.err), (0, ""))
            found = json.loads((self.folder / "table.json").read_text(encoding="utf-8"))["kernels"]
            return {row["kernel"]: row for row in found if row["op"] in ("attention_cached_forward", "decode_block_forward")}

        one = kernels(1)
        self.assertEqual(sorted(one), ["decode", "one kernel", "warpgroups"])
        self.assertEqual(one["warpgroups"]["before"],
                         [{"kernel": "decode", "reason": "samples have more than one new token"}])
        several = kernels(4)
        self.assertEqual(sorted(several), ["teams", "warpgroups"])
        self.assertEqual(several["teams"]["before"][0], {"kernel": "decode", "reason": "cache is in pages"})

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

    def test_what_is_measured(self):
        out, found = self.two

        self.assertRegex(out, r"(?m)^model +llama: 2 layers, width 32, 2 heads, vocabulary 257; 49376 parameters$")
        self.assertRegex(out, r"(?m)^device +cpu, fp32, 2 ranks: data 2 x tensor 1 x pipeline 1$")
        self.assertRegex(out, r"(?m)^shape +6 samples x 32 tokens a microbatch, 1 of them a step on each data rank, "
                              r"12 samples in all$")
        expected = {"parameters": 49376, "device": "cpu", "precision": "fp32", "ranks": 2, "microbatch": 6,
                  "microbatches": 1, "global_batch": 12, "context": 32, "layout": "data 2 x tensor 1 x pipeline 1"}
        self.assertEqual({key: found[key] for key in expected}, expected)
        step = re.search(r"(?m)^step +([\d.]+) ms median, ([\d.]+) ms mean, ([\d.]+) ms standard deviation of 3 steps$",
                         out)
        for text, key in zip(step.groups(), ("median_seconds", "mean_seconds", "standard_deviation_seconds")):
            self.assertAlmostEqual(float(text), 1e3 * found[key], delta=6e-4)
        self.assertIn("a second by the median", out)
        self.assertNotIn("step 1 ", out)

    def test_every_step_on_request(self):
        out, found = self.bench("--each", steps=3)

        printed = [float(ms) for ms in re.findall(r"(?m)^step \d +([\d.]+) ms$", out)]
        self.assert_close(printed, [1e3 * seconds for seconds in found["step_seconds"]], 0.01)

    def test_only_keys_that_are_used_matter(self):
        self.bench("--set", "data.train=[]", "--set", "data.validation=[]", "--set", "data.vocabulary=nowhere",
                   "--set", "checkpoint.keep_every=7", "--set", "schedule.warmup_steps=99")

    def test_json_keeps_every_step(self):
        out, found = self.two
        seconds = found["step_seconds"]

        self.assertEqual(len(seconds), 3)
        self.assertTrue(all(value > 0 for value in seconds))
        self.assertAlmostEqual(found["mean_seconds"] / statistics.mean(seconds), 1, places=9)
        self.assertAlmostEqual(found["median_seconds"] / statistics.median(seconds), 1, places=9)
        self.assertAlmostEqual(found["standard_deviation_seconds"], statistics.stdev(seconds), places=9)
        self.assertAlmostEqual(found["tokens_per_second"] * found["median_seconds"], 12 * 32, places=6)
        self.assertTrue(found["matmul_rate_is_measured"])
        self.assertIn("fp32, 2048 x 2048 x 2048", found["matmul_rate_source"])
        self.assertIn("with all of it, of the measured matrix rate", out)
        peak = found["matmul_rate"] * found["median_seconds"]
        self.assertAlmostEqual(found["mfu"] * peak / found["model_flops"], 1, places=9)
        self.assertGreater(found["mfu_full"], found["mfu"])

    def test_clocks_and_phases(self):
        _, found = self.two
        clocks, phases = found["clocks"], found["phases"]

        self.assertGreater(clocks["host_seconds"], 0)
        for name in ("device_seconds", "event_seconds", "cupti_kernel_seconds"):
            self.assertIsNone(clocks[name])
        self.assertGreater(phases["forward"], 0)
        self.assertGreater(phases["backward"], 0)
        self.assertLess(sum(phases.values()), 1.05 * clocks["host_seconds"])
        self.assertFalse(found["graphs"])

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

    def test_inside_of_attention(self):
        def attention(path):
            out, found = self.bench("--components", "--set", f"model.attention={path}")
            return out, found["components"]["attention"]

        out, reference = attention("reference")
        _, fused = attention("fused")
        parts = reference["parts"]

        self.assertNotIn("parts", fused)
        self.assertIn("one kernel", fused["fused"])
        self.assertEqual(set(parts), {"scores", "mask", "softmax", "values"})
        self.assertNotIn("fused", parts["mask"])
        self.assertEqual(parts["scores"]["flops"], parts["values"]["flops"])
        self.assertGreater(parts["softmax"]["expected_share"], 0)
        self.assertLess(sum(part["flops"] for part in parts.values()), reference["flops"])
        inside = sum(part["seconds"] for part in parts.values())
        self.assertGreater(inside, 0)
        self.assertLess(inside, reference["seconds"])
        for name in ("scores", "mask", "softmax", "values"):
            self.assertGreater(parts[name]["seconds"], 0, name)
            self.assertIn(f"\n  {name} ", out)

    def test_kernels_are_shared_as_on_the_cpu(self):
        _, found = self.step
        _, forward = self.bench("--mode", "forward", "--components")

        self.assertEqual(found["components"]["ffn"]["fused"], "gate and activation in one pass")
        self.assertNotIn("fused", found["components"]["embedding"])
        self.assertEqual(found["components"]["optimizer"]["fused"], "update and moments in one pass")
        self.assertEqual(forward["components"]["head"]["fused"], "softmax and loss in one pass")
        self.assertNotIn("fused", forward["components"]["optimizer"])

    def test_all_modes(self):
        out, found = self.bench("--mode", "all")
        modes = found["modes"]

        self.assertEqual(set(modes), {"forward", "forward-backward", "step"})
        self.assertEqual(found["forward_seconds"], modes["forward"]["mean_seconds"])
        self.assertEqual(found["backward_seconds"], modes["forward-backward"]["phases"]["backward"])
        self.assertLess(found["backward_seconds"], modes["forward-backward"]["mean_seconds"])
        self.assertEqual(found["step_seconds"], modes["step"]["mean_seconds"])
        both = modes["forward-backward"]["mean_seconds"]
        self.assertAlmostEqual(found["forward_backward_over_forward"] * found["forward_seconds"] / both, 1,
                               places=9)
        self.assertIn("(forward + backward) / forward", out)

    def test_dtypes(self):
        out, found = self.bench("--dtypes")
        _, forward = self.bench("--mode", "forward", "--dtypes")

        for name in ("parameters", "masters", "layer outputs", "norm statistics", "logits", "loss",
                     "gradients"):
            self.assertEqual(found["dtypes"][name]["storage"], "f32", name)
            self.assertTrue(found["dtypes"][name]["compute"].startswith("f32"), name)
            self.assertIn(f"\n{name} ", out)
        self.assertNotIn("gradients", forward["dtypes"])

    def test_memory(self):
        def rows(path):
            lines = (self.folder / path).read_text(encoding="utf-8").splitlines()
            keys = lines[0].split(",")
            return [dict(zip(keys, line.split(","), strict=True)) for line in lines[1:]]

        _, found = self.bench("--memory", "memory.csv", ranks=2)
        self.bench("--memory", "memory.json", ranks=2)
        table = rows("memory.csv")
        ranks = json.loads((self.folder / "memory.json").read_text(encoding="utf-8"))["ranks"]

        self.assertEqual([rank["rank"] for rank in ranks], [0, 1])
        for rank in ranks:
            mine = [row for row in table if row["rank"] == str(rank["rank"])]
            totals = {row["label"]: int(row["bytes"]) for row in mine if row["arena"] == "total"}
            self.assertEqual(totals, rank["totals"])
            self.assertEqual(totals["total"], found["memory_peak_bytes"])
            self.assertEqual(sum(b for name, b in totals.items() if name != "total"), totals["total"])
            allocations = [row for row in mine if row["arena"] != "total"]
            self.assertEqual([row["label"] for row in allocations],
                             [row["label"] for row in rank["allocations"]])
            for arena in ("parameters", "gradients", "optimizer", "activations", "scratch"):
                ends = [int(row["offset"]) + int(row["bytes"]) for row in allocations if row["arena"] == arena]
                self.assertEqual(max(ends), totals[arena])
                self.assertEqual(ends, sorted(ends))

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
        out, found = self.cold
        self.assertEqual(found["first_step_seconds"], seconds[0])
        self.assertAlmostEqual(found["later_steps"]["mean_seconds"], statistics.mean(seconds[1:]))
        self.assertAlmostEqual(found["later_steps"]["median_seconds"], statistics.median(seconds[1:]))
        self.assertRegex(out, r"(?m)^first step +[\d.]+ ms, with setup")
        self.assertRegex(out, r"(?m)^later steps +[\d.]+ ms median, .* of 3 steps$")
        self.assertNotIn("later_steps", self.two[1])

    def test_nothing_but_what_was_asked_for_is_written(self):
        asked_for = {"out.json", "memory.csv", "memory.json"}

        self.assertLessEqual(set(support.snapshot(self.folder)) - self.before, asked_for)

    def test_files_that_cannot_be_written_are_refused_before_any_work(self):
        for option, name in (("--json", "text.txt/a.json"), ("--json", "nowhere/a.json"), ("--memory", "nowhere/a.csv"),
                             ("--memory-timeline", "nowhere/a.json"), ("--machine", "nowhere/a.json")):
            with self.subTest(option=option, name=name):
                result = self.run_program("bench", "deck.yaml", "--set", "parallel.data=2", "--steps", 10**7,
                                          option, name, ranks=2)

                self.assert_refused(result, 5, name)
                self.assertEqual(result.out, "")

    def test_what_looks_at_gpus_needs_one(self):
        for option in ("--count", "--communication"):
            with self.subTest(option=option):
                result = self.run_program("bench", "deck.yaml", option, "--set", "parallel.data=2", ranks=2)

                self.assert_refused(result, 6, option, "run.device: cuda")

    def test_refusals(self):
        for words, arguments in [(["--mode", "backward"], ("--mode", "backward")),
                                 (["--steps"], ("--steps", "0")), (["--warmup"], ("--warmup", "-1")),
                                 (["--memory", ".csv"], ("--memory", "a.txt")),
                                 (["--kernels", "all"], ("--mode", "all", "--kernels")),
                                 (["--communication", "--ranges"], ("--communication", "--ranges"))]:
            with self.subTest(arguments=arguments):
                result = self.run_program("bench", "deck.yaml", "--set", "parallel.data=2", *arguments,
                                          ranks=2)
                self.assert_refused(result, 2, *words)

    def test_decoding_says_what_the_model_takes(self):
        count, rows = 2 * 16384, 2 * 416  # of the blocks' matrices
        cases = {(): ("none", "fp32", 0, 4 * count),
                 ("quantization.weights=int4", "quantization.group=32"):
                     ("int4 groups of 32", "fp32", 0, count // 2 + count // 16),
                 ("quantization.weights=int8", "quantization.head=true"):
                     ("int8, head", "fp32", 0, count + 4 * rows),
                 ("model.frozen_format=int8", "adapter.rank=4"): ("none", "int8", 4, count + 4 * rows)}
        for settings, expected in cases.items():
            with self.subTest(settings=settings):
                _, found = self.bench("--mode", "decode", "--rows", 2, *support.overrides(*settings), steps=8)

                self.assertEqual(tuple(found[key] for key in ("quantization", "frozen_format", "adapter_rank",
                                                              "matrix_bytes")), expected)
                self.assertGreater(found["parameter_bytes"], found["matrix_bytes"])
                self.assertGreater(found["memory_peak_bytes"], found["parameter_bytes"])
                self.assertEqual((found["rows"], found["tokens"]), (2, 16))
                self.assertAlmostEqual(found["token_seconds"] * found["tokens_per_second"], 2, places=9)

    def test_decoding_begins_with_prompts(self):
        _, found = self.bench("--mode", "decode", "--rows", 3, "--prompt", 5, steps=8)
        self.assertEqual((found["rows"], found["prompt_tokens"], found["tokens"]), (3, 5, 24))
        self.assertGreater(found["prompt_tokens_per_second"], 0)

        refused = self.run_program("bench", "deck.yaml", "--mode", "decode", "--prompt", 1000)
        self.assert_refused(refused, 2, "prompts of 1000 tokens", "model.context")

    def test_two_tensor_ranks_decode_together(self):
        _, found = self.bench("--mode", "decode", "--rows", 2, *support.overrides("parallel.data=1", "parallel.tensor=2"),
                              ranks=2, steps=8)
        _, alone = self.bench("--mode", "decode", "--rows", 2, steps=8)
        self.assertEqual((found["ranks"], found["rows"], found["tokens"]), (2, 2, 16))
        self.assertLess(found["matrix_bytes"], alone["matrix_bytes"])

        refused = self.run_program("bench", "deck.yaml", "--mode", "decode", *support.overrides("parallel.data=2"), ranks=2)
        self.assert_refused(refused, 2, "one tensor group", "data 2", "parallel.tensor")


if __name__ == "__main__":
    support.main()
