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

    def test_models_of_several_formats_are_compared_in_one_table(self):
        self.quantize("base", "table8", "--weights", "int8")
        self.quantize("base", "table4", *INT4)
        names = ("runs/base", "table8", "table4")

        result = self.run_program("eval", "--checkpoint", *names, "--json", "table.json")

        self.assertEqual(result.code, 0, result.err)
        lines = json.loads((self.folder / "table.json").read_text(encoding="utf-8"))
        self.assertEqual([line["loss_sum"] for line in lines], [self.loss(name) for name in names])
        self.assertEqual([line["quantization"] for line in lines], ["none", "int8", "int4 groups of 32"])
        bytes_of = [line["parameter_bytes"] for line in lines]
        self.assertGreater(bytes_of[0], bytes_of[1])
        self.assertGreater(bytes_of[1], bytes_of[2])
        header, *rows, _ = result.out.splitlines()
        for word in ("stored as", "loss", "perplexity", "bits/byte", "model bytes", "tokens/s", "checkpoint"):
            self.assertIn(word, header)
        self.assertEqual([row.split()[-1] for row in rows], list(names))
        for row, line in zip(rows, lines):
            change = line["loss"] - lines[0]["loss"]
            self.assertIn(f"{line['loss']:.6f} {change:>+10.6f} ", row)
            self.assertIn(f" {line['parameter_bytes']} {line['parameter_bytes'] / bytes_of[0]:>6.3f} ", row)

    def test_calibration_reads_the_text_that_set_names(self):
        (self.folder / "text.txt").write_text("To calibrate is to look at what comes in. " * 40, encoding="utf-8")
        for command in (("tokenize", "--vocab", "bytes", "--input", "text.txt", "--output", "text.bin"),
                        ("checkpoint", "export", "runs/base", "--output", "folder"),
                        ("checkpoint", "import", "folder", "--output", "imported")):
            self.assertEqual(self.run_program(*command).code, 0)
        start = ("checkpoint", "quantize", "imported", *INT4, "--output", "of_import", "--calibrate", 4)
        text = ("--set", "data.train=[text.bin]")
        self.quantize("base", "of_text", *INT4, "--calibrate", 4, *text)
        self.quantize("base", "of_deck", *INT4, "--calibrate", 4)

        for words, code, expected in (((), 2, "add --set data.train=[FILE]"), (("--set", "model.layers=1"), 2, "keys of section data"),
                                      (text, 0, "")):
            result = self.run_program(*start, *words)
            self.assertEqual(result.code, code, result.err)
            self.assertIn(expected, result.err)

        of_import, of_text, of_deck = (self.loss(name, "--data", "text.bin", "--set", "train.validate_batches=0") for name in ("of_import", "of_text", "of_deck"))
        self.assertAlmostEqual(of_import / of_text, 1, delta=1e-7)  # in batches of other sizes
        self.assertGreater(abs(of_deck / of_text - 1), 1e-6)

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

    def test_rows_of_int8_load_on_tensor_ranks(self):
        self.quantize("base", "q8t", "--weights", "int8")

        for checkpoint, settings in (("q8t", ()), ("runs/base", ("quantization.weights=int8",))):
            for ranks in (2, 4):
                with self.subTest(checkpoint=checkpoint, ranks=ranks):
                    result = self.run_program(
                        "eval", "--checkpoint", checkpoint, "--json", "many.json",
                        *support.overrides(*settings, f"parallel.tensor={ranks}", "parallel.data=1"), ranks=ranks)
                    self.assertEqual(result.code, 0, result.err)

                    found = self.figures(self.folder / "many.json")["loss_sum"]
                    self.assertAlmostEqual(found / self.loss("q8t"), 1, delta=1e-6)

    def test_embeddings_and_head_when_asked(self):
        tied = self.quantize("base", "q_tied", "--weights", "int8", "--head")
        info = self.run_program("checkpoint", "info", "q_tied").out

        self.assertIn("the blocks' matrices, embeddings and head quantized", tied.out)
        self.assertRegex(info, r"model/embedding\.token\.weight\.codes +\(257, 64\) +u8")
        self.assertRegex(info, r"model/embedding\.position\.weight +\(16, 64\) +f32")
        for keys in ("head", "embeddings"):
            self.assertEqual(self.loss("runs/base", *support.overrides("quantization.weights=int8",
                                                                       f"quantization.{keys}=true")),
                             self.loss("q_tied"))
        self.assertNotEqual(self.loss("q_tied"), self.loss("runs/base", "--set", "quantization.weights=int8"))

    def test_untied_tables_are_rounded_one_by_one(self):
        result = self.run_program("train", "base.yaml", *support.overrides("run.name=untied", "train.steps=2",
                                                                           "model.tie_embeddings=false"))
        self.assertEqual(result.code, 0, result.err)
        bits = ("--weights", "int4", "--group", 32)
        found = {}
        for flags in ((), ("--head",), ("--embeddings",), ("--embeddings", "--head")):
            name = "untied" + "".join(flags)
            text = self.quantize("untied", name, *bits, *flags, "--calibrate", 2).out
            evaluation = self.run_program("eval", "--checkpoint", name, "--json", "u.json")
            self.assertEqual(evaluation.code, 0, evaluation.err)
            found[flags] = self.figures(self.folder / "u.json")
            words = [word for word in ("embeddings", "head") if f"--{word}" in flags]
            self.assertEqual(found[flags]["quantization"], ", ".join(filter(None, (
                "int4 groups of 32", " and ".join(words)))))
            for ranks in (2, 3):  # one of which divides no vocabulary
                layout = ("parallel.tensor=2",) if ranks == 2 else ("parallel.pipeline=3",)
                other = self.run_program("eval", "--checkpoint", name, "--json", "v.json",
                                         *support.overrides(*layout, "parallel.data=1"), ranks=ranks)
                self.assertEqual(other.code, 0, other.err)
                self.assertAlmostEqual(self.figures(self.folder / "v.json")["loss_sum"] / found[flags]["loss_sum"], 1,
                                       delta=1e-6)
            self.assertRegex(text, r"all parameters take \d+ bytes with the others in bf16, 0\.\d+ of bf16")

        values = 257 * 64
        saved = 4 * values - values // 2 - 2 * values // 32  # of f32
        self.assertEqual(len({figures["loss_sum"] for figures in found.values()}), 4)
        for flags, figures in found.items():
            # Memory is padded: tables of values and codes end at other places.
            self.assertAlmostEqual(found[()]["parameter_bytes"] - figures["parameter_bytes"], len(flags) * saved,
                                   delta=2048)
            self.assertEqual(found[()]["matrix_bytes"], figures["matrix_bytes"])
        text = self.run_program("generate", "--checkpoint", "untied--embeddings--head", "--prompt", "a", "--max-tokens", 3)
        self.assertEqual(text.code, 0, text.err)

    def test_a_model_that_was_trained_in_8_bit_floats(self):
        """On the CPU in fp32, which no GPU takes, with all that goes with these products."""
        eight = ("precision.gemm=fp8_tensor", "precision.fp8_min_width=32", "precision.fp8_cache_weights=true",
                 "precision.fp8_keep_last=1")
        result = self.run_program("train", "base.yaml", *support.overrides("run.name=eight", *eight))
        self.assertEqual(result.code, 0, result.err)

        self.quantize("eight", "q_eight", "--weights", "int8")

        at_load = self.loss("runs/eight", *support.overrides(
            "quantization.weights=int8", "precision.gemm=compute", "precision.fp8_cache_weights=false",
            "precision.fp8_keep_last=0"))
        self.assertEqual(self.loss("q_eight"), at_load)
        self.assertNotEqual(at_load, self.loss("runs/eight"))

    def test_a_model_whose_gradients_were_in_bf16(self):
        """A CPU reads it in fp32, beside which a run has no such gradients."""
        half = ("precision.compute=bf16", "precision.gradients=bf16", "train.microbatch=12", "train.global_batch=12")
        result = self.run_program("train", "base.yaml", *support.overrides("run.name=half", *half))
        self.assertEqual(result.code, 0, result.err)

        self.quantize("half", "q_half", "--weights", "int8")

        at_load = self.loss("runs/half", *support.overrides("quantization.weights=int8"))
        self.assertAlmostEqual(self.loss("q_half") / at_load, 1, delta=1e-4)
        text = self.run_program("generate", "--checkpoint", "runs/half", "--prompt", "a", "--max-tokens", 3)
        self.assertEqual(text.code, 0, text.err)

    def test_bad_input_is_refused_and_writes_nothing(self):
        self.quantize("base", "done", "--weights", "int8")
        cases = (
            (2, "groups of 48 do not divide", ("runs/base", "--weights", "int4", "--group", 48)),
            (2, "must be none, int8 or int4, found 'int3'", ("runs/base", "--weights", "int3")),
            (2, "checkpoint quantize needs --weights", ("runs/base",)),
            (4, "quantized already", ("done", "--weights", "int4")),
            (2, "need int8 on both sides", ("runs/base", "--weights", "int4", "--activations", "dynamic-int8")),
            (2, "get the bits of quantization.weights", ("runs/base", "--weights", "none", "--head")),
            (2, "--calibrate must be 1 or more", ("runs/base", *INT4, "--calibrate", 0)),
            (4, "quantized already", ("done", "--weights", "int8")),
        )
        for code, message, arguments in cases:
            with self.subTest(message):
                result = self.run_program("checkpoint", "quantize", *arguments, "--output", "new")
                self.assert_refused(result, code, message)
                self.assertFalse((self.folder / "new").exists())
        self.assert_refused(self.run_program("checkpoint", "quantize", "runs/base", "--weights", "int8",
                                             "--output", "done"), 5, "it exists already")

    def test_quantized_tables_are_no_base_of_adapters(self):
        self.quantize("base", "q_all", "--weights", "int8", "--head")

        result = self.run_program("train", "base.yaml", *support.overrides(
            "run.name=tuned", "checkpoint.initial=q_all", "model.frozen_format=int8", "adapter.rank=2"))

        self.assert_refused(result, 4, "its embeddings or its head are quantized")

    def test_it_is_not_trained_or_exported(self):
        self.quantize("base", "q", "--weights", "int8")
        for arguments in (("train", "base.yaml", "--set", "run.name=next", "--set", "checkpoint.initial=q"),
                          ("checkpoint", "export", "q", "--output", "folder")):
            with self.subTest(arguments[0]):
                self.assert_refused(self.run_program(*arguments), 4, "its matrices are quantized")


if __name__ == "__main__":
    support.main()
