#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""checkpoint quantize: what it writes, what reads it, and what it refuses."""

import json

import support

DECK = """\
run: {name: base, seed: 7}
model: {family: gpt2, layers: 2, width: 64, heads: 4, vocabulary: 257, context: 16}
data: {train: [synthetic], validation: [synthetic], vocabulary: bytes}
train: {steps: 6, global_batch: 8, validate_batches: 2}
optimizer: {lr: 0.003}
"""
INT4 = ("--weights", "int4", "--group", "32")


class Quantize(support.Case):
    """A model that was trained for some steps."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "base.yaml").write_text(DECK, encoding="utf-8")
        for name, overrides in (
                ("base", ()),
                ("simulated", ("quantization.weights=int4", "quantization.group=32")),
                ("integer", ("quantization.weights=int8", "quantization.activations=dynamic-int8"))):
            settings = [word for override in overrides for word in ("--set", override)]
            result = cls.run_program("train", "base.yaml", "--set", f"run.name={name}", *settings)
            assert result.code == 0, result.err

    def quantize(self, source, output, *arguments):
        """The output's path, which must be new."""
        result = self.run_program("checkpoint", "quantize", f"runs/{source}", "--output", output, *arguments)
        self.assertEqual(result.code, 0, result.err)
        return result

    @staticmethod
    def figures(path):
        """Of the one checkpoint in eval's file."""
        return json.loads(path.read_text(encoding="utf-8"))

    def loss(self, checkpoint, *arguments):
        """What eval finds, with all digits."""
        path = self.folder / "loss.json"
        result = self.run_program("eval", "--checkpoint", checkpoint, "--json", path, *arguments)
        self.assertEqual(result.code, 0, result.err)
        return self.figures(path)["loss_sum"]

    def test_codes_and_scales_take_the_place_of_matrices(self):
        result = self.quantize("base", "q4", *INT4)

        self.assertIn("0.5625 bytes an element, 0.281 of bf16", result.out)
        info = self.run_program("checkpoint", "info", "q4").out
        self.assertRegex(info, r"model/blocks\.1\.mlp\.up\.weight\.codes +\(256, 32\) +u8")
        self.assertRegex(info, r"model/blocks\.1\.mlp\.up\.weight\.scales +\(256, 2\) +f16")
        self.assertRegex(info, r"model/blocks\.1\.mlp\.up\.bias +\(256\) +f32")
        self.assertNotIn("optimizer/", info)
        self.assertEqual(self.run_program("checkpoint", "verify", "q4").code, 0)

    def test_it_gives_what_rounding_at_load_gives(self):
        self.quantize("base", "q8", "--weights", "int8")

        at_load = self.loss("runs/base", "--set", "quantization.weights=int8")

        self.assertEqual(self.loss("q8"), at_load)
        self.assertNotEqual(at_load, self.loss("runs/base"))

    def test_the_trained_model_converts_to_the_one_that_was_simulated(self):
        for name in ("simulated", "integer"):
            with self.subTest(name):
                self.quantize(name, f"q_{name}")

                self.assertEqual(self.loss(f"q_{name}"), self.loss(f"runs/{name}"))

    def test_calibration_changes_codes_and_stays_near(self):
        self.quantize("base", "nearest", *INT4)
        self.quantize("base", "calibrated", *INT4, "--calibrate", 4)

        losses = [self.loss(name) for name in ("nearest", "calibrated", "runs/base")]

        self.assertNotEqual(losses[0], losses[1])
        for loss in losses[:2]:
            self.assertLess(abs(loss / losses[2] - 1), 0.01)

    def test_calibration_counts_its_samples_alone(self):
        found = []
        for microbatch in (8, 2):
            name = f"micro_{microbatch}"
            result = self.run_program("train", "base.yaml", "--set", f"run.name={name}", "--set",
                                      f"train.microbatch={microbatch}", "--set", "train.steps=1")
            self.assertEqual(result.code, 0, result.err)
            self.quantize(name, f"q_{name}", *INT4, "--calibrate", 1)
            found.append(self.loss(f"q_{name}"))

        self.assertAlmostEqual(found[0], found[1], delta=1e-4 * found[0])

    def test_text_is_generated_from_it_and_layouts_agree(self):
        self.quantize("base", "q4g", *INT4)

        text = self.run_program("generate", "--checkpoint", "q4g", "--prompt", "a", "--max-tokens", 3)
        two = self.run_program("eval", "--checkpoint", "q4g", "--json", "two.json",
                               "--set", "parallel.tensor=2", "--set", "parallel.data=1", ranks=2)

        self.assertEqual((text.code, two.code), (0, 0), text.err + two.err)
        found = self.figures(self.folder / "two.json")
        self.assertAlmostEqual(found["loss_sum"] / self.loss("q4g"), 1, delta=1e-6)

    def test_bad_input_is_refused_and_writes_nothing(self):
        self.quantize("base", "done", "--weights", "int8")
        cases = (
            (2, "groups of 48 do not divide", ("runs/base", "--weights", "int4", "--group", 48)),
            (2, "must be none, int8 or int4, found 'int3'", ("runs/base", "--weights", "int3")),
            (2, "checkpoint quantize needs --weights", ("runs/base",)),
            (4, "in few bits already", ("done", "--weights", "int4")),
            (2, "need int8 on both sides", ("runs/base", "--weights", "int4", "--activations", "dynamic-int8")),
            (2, "--calibrate must be 1 or more", ("runs/base", *INT4, "--calibrate", 0)),
            (4, "in few bits already", ("done", "--weights", "int8")),
        )
        for code, message, arguments in cases:
            with self.subTest(message):
                result = self.run_program("checkpoint", "quantize", *arguments, "--output", "new")
                self.assert_refused(result, code, message)
                self.assertFalse((self.folder / "new").exists())
        self.assert_refused(self.run_program("checkpoint", "quantize", "runs/base", "--weights", "int8",
                                             "--output", "done"), 5, "it exists already")

    def test_it_is_not_trained_or_exported(self):
        self.quantize("base", "q", "--weights", "int8")
        for arguments in (("train", "base.yaml", "--set", "run.name=next", "--set", "checkpoint.initial=q"),
                          ("checkpoint", "export", "q", "--output", "folder")):
            with self.subTest(arguments[0]):
                self.assert_refused(self.run_program(*arguments), 4, "its matrices are in few bits")


if __name__ == "__main__":
    support.main()
