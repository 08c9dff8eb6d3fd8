#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""checkpoint quantize of mixtures of experts: what it writes, and what reads it."""

import json

import support

INT4 = ("--weights", "int4", "--group", "32")
BITS = {"int8": ("--weights", "int8"), "int4": INT4,
        "integers": ("--weights", "int8", "--activations", "dynamic-int8")}
AT_LOAD = {"int8": ("quantization.weights=int8",), "int4": ("quantization.weights=int4", "quantization.group=32"),
           "integers": ("quantization.weights=int8", "quantization.activations=dynamic-int8")}


class QuantizeExperts(support.Case):
    """A model with experts that was trained for some steps, and its quantized ones."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "base.yaml").write_text(support.EXPERTS_DECK, encoding="utf-8")
        for name, overrides in (("base", ()), ("simulated", AT_LOAD["int4"]), ("integer", AT_LOAD["integers"])):
            result = cls.run_program("train", "base.yaml", *support.overrides(f"run.name={name}", *overrides))
            assert result.code == 0, result.err
        for name, words in BITS.items():
            result = cls.run_program("checkpoint", "quantize", "runs/base", "--output", name, *words)
            assert result.code == 0, result.err

    def run_well(self, *arguments, **options):
        """Runs the program, which must succeed."""
        result = self.run_program(*arguments, **options)
        self.assertEqual(result.code, 0, result.err)
        return result

    def loss(self, checkpoint, *settings, ranks=1):
        """What eval finds, with all digits."""
        self.run_well("eval", "--checkpoint", checkpoint, "--json", "loss.json", *support.overrides(*settings), ranks=ranks)
        return json.loads((self.folder / "loss.json").read_text(encoding="utf-8"))["loss_sum"]

    def test_codes_and_scales_take_the_place_of_experts_matrices(self):
        info = self.run_well("checkpoint", "info", "int4").out

        for expert in ("0", "3", "shared"):
            layer = rf"model/blocks\.1\.experts\.{expert}"
            self.assertRegex(info, layer + r"\.gate\.weight\.codes +\(64, 32\) +u8")
            self.assertRegex(info, layer + r"\.down\.weight\.scales +\(64, 2\) +f16")
        self.assertRegex(info, r"model/blocks\.1\.experts\.router\.weight +\(4, 64\) +f32")
        self.assertNotRegex(info, r"experts\.\S+\.(gate|up|down)\.weight +\(")

    def test_it_gives_what_rounding_at_load_gives(self):
        base = self.loss("runs/base")
        for name, settings in AT_LOAD.items():
            with self.subTest(name):
                found = self.loss(name)
                self.assertEqual(found, self.loss("runs/base", *settings))
                self.assertNotEqual(found, base)
                self.assertLess(abs(found / base - 1), 0.01)

    def test_the_trained_model_converts_to_the_one_that_was_simulated(self):
        for name in ("simulated", "integer"):
            with self.subTest(name):
                self.run_well("checkpoint", "quantize", f"runs/{name}", "--output", f"q_{name}")

                self.assertEqual(self.loss(f"q_{name}"), self.loss(f"runs/{name}"))

    def test_layouts_agree(self):
        for name in ("int8", "int4"):
            alone = self.loss(name)
            for layout in (("parallel.tensor=2", "parallel.data=1"), ("parallel.data=2", "parallel.expert=2")):
                with self.subTest(name=name, layout=layout):
                    self.assertAlmostEqual(self.loss(name, *layout, ranks=2) / alone, 1, delta=1e-6)
        rounded_rows = self.loss("integers", "parallel.data=2", "parallel.expert=2", ranks=2)
        self.assertAlmostEqual(rounded_rows / self.loss("integers"), 1, delta=1e-6)

    def test_text_is_generated_from_it(self):
        for name in ("int8", "int4"):
            found = []
            for ranks in (1, 2):
                self.run_well("generate", "--checkpoint", name, "--prompt", "abcdefgh", "--temperature", 0, "--max-tokens", 4,
                              "--json", "text.json", "--logprobs", 0, ranks=ranks)
                found.append(json.loads((self.folder / "text.json").read_text(encoding="utf-8"))["completions"][0])
            with self.subTest(name):
                self.assertEqual(found[0]["ids"], found[1]["ids"])
                for one, two in zip(found[0]["logprobs"], found[1]["logprobs"], strict=True):
                    self.assertAlmostEqual(one, two, delta=1e-5)

    def test_its_size_is_compared(self):
        self.run_well("eval", "--checkpoint", "runs/base", "int8", "int4", "--json", "table.json")

        lines = json.loads((self.folder / "table.json").read_text(encoding="utf-8"))
        self.assertEqual([line["quantization"] for line in lines], ["none", "int8", "int4 groups of 32"])
        matrices = 2 * 4 * 64 * 64 + 3 * 64 * 128 + 5 * 3 * 64 * 64
        values, eight, four = (line["matrix_bytes"] for line in lines)
        self.assertEqual(values, 4 * matrices)
        self.assertEqual(four, matrices // 2 + 2 * matrices // 32)
        rows = 2 * 4 * 64 + 2 * 128 + 64 + 5 * 3 * 64
        self.assertEqual(eight, matrices + 4 * rows)

    def test_calibration_has_the_inputs_of_each_expert(self):
        result = self.run_well("checkpoint", "quantize", "runs/base", "--output", "calibrated", *INT4, "--calibrate", 8)

        self.assertNotIn("as none of these tokens", result.err)
        losses = [self.loss(name) for name in ("int4", "calibrated", "runs/base")]
        self.assertNotEqual(losses[0], losses[1])
        self.assertLess(abs(losses[1] / losses[2] - 1), 0.01)
        codes = [support.tensors(self.folder / name / "step_00000006") for name in ("int4", "calibrated")]
        for expert in range(4):
            name = f"model/blocks.1.experts.{expert}.down.weight.codes"
            self.assertNotEqual(bytes(codes[0][name]), bytes(codes[1][name]))

    def test_experts_that_calibration_does_not_see_are_rounded_to_the_nearest(self):
        """One of very many experts takes the few tokens."""
        many = ("run.name=many", "experts.count=64", "experts.active=1", "train.steps=1")
        self.run_well("train", "base.yaml", *support.overrides(*many))
        nearest = self.run_well("checkpoint", "quantize", "runs/many", "--output", "many_nearest", *INT4)
        seen = self.run_well("checkpoint", "quantize", "runs/many", "--output", "many_seen", *INT4, "--calibrate", 1)

        self.assertNotIn("as none of these tokens", nearest.err)
        self.assertRegex(seen.err, r"\d+ matrices of experts are rounded to the nearest, as none of these tokens")
        codes = [support.tensors(self.folder / name / "step_00000001") for name in ("many_nearest", "many_seen")]
        equal = [bytes(codes[0][name]) == bytes(codes[1][name])
                 for name in (f"model/blocks.1.experts.{expert}.down.weight.codes" for expert in range(64))]
        self.assertGreaterEqual(sum(equal), 64 - 16)
        self.assertLess(sum(equal), 64)

    def test_groups_that_do_not_divide_an_experts_width_are_refused(self):
        result = self.run_program("train", "base.yaml", *support.overrides(
            "run.name=narrow", "experts.width=48", "quantization.weights=int4", "quantization.group=32"))

        self.assert_refused(result, 2, "groups of 32 do not divide the columns of the blocks' matrices on a rank, 64, 64, 128 and 48")


if __name__ == "__main__":
    support.main()
