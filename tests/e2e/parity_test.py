#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""parity: two decks or a matrix of layouts; and ranks that were not started alike."""

import json
import pathlib
import re
import subprocess

import support

MATRIX = """\
# layouts of four ranks and fewer
parallel.data=4 parallel.zero=2

parallel.tensor=2 parallel.pipeline=2   # with a remark
parallel.tensor=2 parallel.sequence=true
"""

ADAPTER_MATRIX = """\
parallel.data=2 parallel.zero=1
parallel.data=4 parallel.zero=2 train.microbatch=1
parallel.tensor=2 parallel.sequence=true parallel.data=2
parallel.tensor=2 parallel.pipeline=2 train.microbatch=2
parallel.pipeline=2 parallel.schedule=zero_bubble train.microbatch=2
parallel.data=2 memory.recompute=full
"""


# Each needs every row of a matrix, or every column of an input.
CUT_MATRIX = """\
parallel.tensor=2 parallel.data=2
parallel.tensor=4 parallel.sequence=true
parallel.tensor=2 parallel.sequence=true parallel.pipeline=2 train.microbatch=2
parallel.tensor=2 memory.recompute=full
parallel.data=2 parallel.zero=2 parallel.tensor=2 memory.recompute=selective
"""
CUT_WAYS = (("adapter.rank=4", "adapter.dropout=0.2"), ("adapter.rank=4", "model.frozen_format=int8"),
            ("adapter.rank=4", "adapter.dropout=0.2", "model.frozen_format=int8"), ("quantization.weights=int8",))


# What the models of other families ask for, in one.
OPTIONS = ("model.heads=4", "model.kv_heads=2", "model.head_width=12", "model.qkv_bias=true", "model.qk_norm=head",
           "model.rotary_fraction=0.5",
           "model.rope_scaling=yarn", "model.rope_factor=2", "model.rope_original_context=16",
           "model.window=5", "model.window_full_every=2", "model.rope_local_theta=300", "model.attention_scale=0.3",
           "model.attention_softcap=2", "model.attention_sinks=true", "model.logit_softcap=3", "train.z_loss=0.01", "data.documents=masked", "data.end_token=3",
           "data.predict_starts=false")
# OLMo 2's: norms of outputs, and of the width of queries and keys.
WIDTH_NORM = ("model.heads=4", "model.kv_heads=2", "model.qk_norm=width", "model.norm_place=post_sublayer")
WIDTH_NORM_MATRIX = """\
parallel.data=2 parallel.zero=2 train.microbatch=2
parallel.pipeline=2 parallel.data=2 train.microbatch=2 memory.recompute=selective
parallel.pipeline=2 parallel.schedule=zero_bubble train.microbatch=2
parallel.data=2 memory.recompute=full
"""
OPTIONS_MATRIX = """\
parallel.data=2 parallel.zero=1 memory.recompute=full memory.mlp_rows=13 memory.loss_rows=9
parallel.tensor=2 parallel.sequence=true memory.recompute=full memory.mlp_rows=6 memory.loss_rows=5
parallel.tensor=4
parallel.pipeline=2 parallel.tensor=2 train.microbatch=2
parallel.data=2 parallel.zero=2 memory.recompute=selective
"""

# Three times the width of its base in fact: logits and rates are no powers of two.
MUP_WAYS = (("model.width=48", "model.heads=4", "model.kv_heads=2", "model.mup_base_width=16", "model.mup_base_head_width=6",
             "train.z_loss=0.01"),
            ("model.family=gpt2", "model.width=48", "model.heads=4", "model.mup_base_width=16", "model.vocabulary=263",
             "model.dropout=0.1", "optimizer.cautious_decay=true", "optimizer.ema_decay=0.5"))
MUP_MATRIX = """\
parallel.data=2 parallel.zero=1
parallel.data=4 parallel.zero=2
parallel.data=2 parallel.zero=2 memory.recompute=full memory.mlp_rows=7
parallel.tensor=2 parallel.sequence=true parallel.data=2
parallel.tensor=4
parallel.pipeline=2 parallel.tensor=2 train.microbatch=2
parallel.pipeline=2 parallel.data=2 parallel.zero=1 train.microbatch=2
parallel.pipeline=2 parallel.schedule=zero_bubble train.microbatch=2
"""

# Without another microbatch and without tensor ranks scales are the same, and so are all bits but those of sums.
FP8 = ("precision.fp8_min_width=32",)
# The widest matrices have several groups of 128 in a row, and those of tensor ranks begin within one.
FP8_WAYS = (("precision.gemm=fp8_tensor",), ("precision.gemm=fp8_row",), ("precision.gemm=fp8_block",),
            ("precision.gemm=fp8_block", "model.width=160", "model.ffn_width=352", "optimizer.lr=1.0e-3"))
FP8_SAME_MATRIX = """\
parallel.data=2 parallel.zero=1 train.microbatch=2
parallel.data=2 parallel.zero=2 train.microbatch=2 memory.recompute=full
parallel.pipeline=2 train.microbatch=2
parallel.pipeline=2 parallel.schedule=zero_bubble train.microbatch=2
"""
FP8_MATRIX = """\
parallel.tensor=2 parallel.sequence=true parallel.data=2
parallel.tensor=2 parallel.pipeline=2 train.microbatch=2
"""


# A vision transformer, with all that is random in its training; the second model begins with larger matrices.
IMAGES_DECK = """
run: {device: cpu, seed: 3}
model: {family: vit, layers: 4, width: 32, heads: 4, image: 16, patch: 8, classes: 7, drop_path: 0.3, label_smoothing: 0.1}
data: {train: [synthetic]}
augment: {policy: randaugment, mixup: 0.2, cutmix: 1, erase: 0.25}
optimizer: {lr: 1.0e-3}
train: {steps: 3, global_batch: 16, microbatch: 4}
"""
IMAGES_WAYS = (("model.dropout=0.1", "model.unbiased_qkv=true"),
               ("model.init=xavier", "model.bias=false", "model.pooling=mean", "model.position=sincos2d",
                "model.drop_path_rule=constant", "optimizer.decay_norms_and_biases=true", "augment.repeats=3", "augment.mix_mode=batch"),
               ("precision.compute=bf16", "model.bias=false"))
IMAGES_MATRIX = """\
parallel.data=4 parallel.zero=2
parallel.tensor=2 parallel.sequence=true parallel.data=2 parallel.zero=1 memory.recompute=selective
parallel.tensor=2 parallel.pipeline=2
parallel.pipeline=2 parallel.schedule=zero_bubble
parallel.pipeline=2 parallel.data=2 parallel.schedule=interleaved parallel.virtual_stages=2 memory.recompute=full memory.mlp_rows=4 train.microbatch=2
"""


BF16_MATRIX = """\
parallel.data=2 parallel.zero=1
parallel.data=2 parallel.zero=2 memory.recompute=full
parallel.tensor=2 parallel.sequence=true parallel.pipeline=2
"""


class Parity(support.Case):
    """The tiny deck, under another layout and with another seed."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        deck = support.DECK
        layout = "parallel: {data: 2, tensor: 2, sequence: true, zero: 1}"
        cls.write("layout.yaml", deck.replace("parallel: {data: 1}", layout))
        cls.write("seed.yaml", deck.replace("seed: 7", "seed: 8"))
        cls.write("layers.yaml", deck.replace("layers: 2", "layers: 3"))
        cls.write("matrix.txt", MATRIX)
        cls.write("bf16.txt", BF16_MATRIX)
        cls.write("empty.txt", "# nothing\n\n")

    @classmethod
    def write(cls, name, text):
        """A file beside the deck."""
        (cls.folder / name).write_text(text, encoding="utf-8")

    def parity(self, *arguments, ranks=4):
        """A comparison over three steps."""
        return self.run_program("parity", *arguments, "--steps", 3, ranks=ranks)

    def test_two_layouts_agree_and_leave_nothing_behind(self):
        before = support.snapshot(self.folder)

        result = self.parity("deck.yaml", "layout.yaml", "--rows", 100)

        self.assertEqual((result.code, result.messages), (0, []), result.err)
        first, *rows = result.out.splitlines()
        self.assertRegex(first, r"^agrees : layout\.yaml +largest gradient difference \S+ \(gradient/\S+\), ")
        differences = [float(row.split()[0]) for row in rows]
        self.assertEqual(len(rows), 2 * 9 + 3)  # of two blocks, two tables and a norm
        self.assertEqual(differences, sorted(differences, reverse=True))
        self.assertLessEqual(differences[0], 2e-6)
        self.assertRegex(first, r"(losses equal in 3 steps|loss \S+ \(step [123]\)); limits 2e-06 and 1e-05; data \d x tensor \d x")
        self.assertEqual(support.snapshot(self.folder), before)

    def test_figures_in_a_file(self):
        result = self.parity("deck.yaml", "deck.yaml", "--json", "same.json", ranks=1)

        self.assertEqual((result.code, result.messages), (0, []), result.err)
        self.assertIn("losses equal in 3 steps", result.out)
        found = json.loads((self.folder / "same.json").read_text(encoding="utf-8"))
        self.assertEqual((found["steps"], found["reference"]), (3, "data 1 x tensor 1 x pipeline 1"))
        layout = found["layouts"][0]
        self.assertEqual([layout[key] for key in ("name", "agrees", "gradient_limit", "loss_limit", "late_loss_limit",
                                                  "loss_difference", "worst_step")],
                         ["deck.yaml", True, 2e-6, 1e-5, 1e-4, 0, 0])
        self.assertEqual(set(layout["gradient_differences"].values()), {0})

    def test_layouts_of_a_deck_in_bf16(self):
        result = self.parity("deck.yaml", "--matrix", "bf16.txt", "--set", "precision.compute=bf16")

        self.assertEqual((result.code, result.messages), (0, []), result.err)
        self.assertEqual(result.out.count("agrees : "), 3)

    def test_another_seed_differs(self):
        result = self.parity("deck.yaml", "seed.yaml", ranks=1)

        self.assert_refused(result, 7, "the layouts do not agree within tolerance")
        self.assertRegex(result.out, r"(?m)^DIFFERS: seed\.yaml +largest gradient difference ")

    def test_another_model_differs(self):
        result = self.parity("deck.yaml", "layers.yaml", ranks=1)

        self.assert_refused(result, 2, "the model differs: 'layers=2' and 'layers=3'")

    def test_matrix(self):
        result = self.parity("deck.yaml", "--matrix", "matrix.txt")

        self.assertEqual(result.code, 0, result.err)
        names = [line.split("  ")[0] for line in result.out.splitlines()]
        self.assertEqual(names, ["agrees : parallel.data=4 parallel.zero=2",
                                 "agrees : parallel.tensor=2 parallel.pipeline=2",
                                 "agrees : parallel.tensor=2 parallel.sequence=true"])

    def test_matrix_of_adapters(self):
        self.write("adapters.txt", ADAPTER_MATRIX)

        result = self.parity("deck.yaml", "--matrix", "adapters.txt", "--set", "adapter.rank=4")

        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(result.out.count("agrees : "), len(ADAPTER_MATRIX.splitlines()))
        self.assertIn("lora_B.weight", result.out)

    def test_matrix_of_rows_and_columns_that_tensor_ranks_cut(self):
        self.write("cut_rows.txt", CUT_MATRIX)
        for settings in CUT_WAYS:
            with self.subTest(settings=settings):
                result = self.parity("deck.yaml", "--matrix", "cut_rows.txt",
                                     *support.overrides("model.heads=4", *settings))

                self.assertEqual((result.code, result.messages), (0, []), result.err)
                self.assertEqual(result.out.count("agrees : "), CUT_MATRIX.count("\n"))

    def test_matrix_of_8_bit_products(self):
        self.write("same.txt", FP8_SAME_MATRIX)
        self.write("cut.txt", FP8_MATRIX)
        for ways in FP8_WAYS:
            with self.subTest(ways=ways):
                settings = support.overrides(*ways, *FP8)

                same = self.parity("deck.yaml", "--matrix", "same.txt", *settings, "--set", "train.microbatch=2")
                cut = self.parity("deck.yaml", "--matrix", "cut.txt", *settings)

                self.assertEqual((same.code, cut.code), (0, 0), same.err + cut.err)
                found = [float(value) for value in re.findall(r"difference (\S+)", same.out)]
                self.assertEqual(len(found), len(FP8_SAME_MATRIX.splitlines()))
                self.assertLess(max(found), 2e-6)

    def test_matrix_of_options_of_models(self):
        self.write("options.txt", OPTIONS_MATRIX)

        result = self.parity("deck.yaml", "--matrix", "options.txt", *support.overrides(*OPTIONS))

        self.assertEqual((result.code, result.messages), (0, []), result.err)
        self.assertEqual(result.out.count("agrees : "), OPTIONS_MATRIX.count("\n"))

    def test_matrix_of_the_maximal_update_parametrization(self):
        self.write("mup.txt", MUP_MATRIX)
        for settings in MUP_WAYS:
            with self.subTest(settings=settings):
                result = self.parity("deck.yaml", "--matrix", "mup.txt", *support.overrides(*settings))

                self.assertEqual((result.code, result.messages), (0, []), result.err + result.out)
                self.assertEqual(result.out.count("agrees : "), MUP_MATRIX.count("\n"))

    def test_a_model_of_its_base_width_is_the_same_bit_for_bit(self):
        deck = (self.folder / "layout.yaml").read_text(encoding="utf-8")
        self.write("base.yaml", deck.replace("width: 32,", "width: 32, mup_base_width: 32, mup_base_head_width: 16,"))

        result = self.parity("layout.yaml", "base.yaml", "--rows", 100)

        self.assertEqual((result.code, result.messages), (0, []), result.err)
        _, *rows = result.out.splitlines()
        self.assertEqual({float(row.split()[0]) for row in rows}, {0.0}, result.out)

    def test_matrix_of_norms_of_the_width(self):
        self.write("width.txt", WIDTH_NORM_MATRIX)

        result = self.parity("deck.yaml", "--matrix", "width.txt", *support.overrides(*WIDTH_NORM))

        self.assertEqual((result.code, result.messages), (0, []), result.err)
        self.assertEqual(result.out.count("agrees : "), WIDTH_NORM_MATRIX.count("\n"))

    def test_matrix_of_the_inputs(self):
        inputs = pathlib.Path(__file__).parents[2] / "inputs"

        result = self.parity(inputs / "parity-16h.yaml", "--matrix", inputs / "layouts-4-ranks.txt")

        self.assertEqual(result.code, 0, result.err + result.out)
        self.assertEqual(result.out.count("agrees"), 26, result.out)

    def test_matrix_of_images(self):
        self.write("images.yaml", IMAGES_DECK)
        self.write("images.txt", IMAGES_MATRIX)
        for settings in IMAGES_WAYS:
            with self.subTest(settings=settings):
                result = self.parity("images.yaml", "--matrix", "images.txt", *support.overrides(*settings))

                self.assertEqual((result.code, result.messages), (0, []), result.err + result.out)
                self.assertEqual(result.out.count("agrees : "), IMAGES_MATRIX.count("\n"))

    def test_matrix_names_the_layout_that_differs(self):
        self.write("differs.txt", "parallel.tensor=2\nparallel.tensor=2 run.seed=8\nparallel.data=2\n")

        result = self.parity("deck.yaml", "--matrix", "differs.txt", "--rows", 0, ranks=2)

        self.assert_refused(result, 7, "do not agree")
        self.assertEqual([line.split(":")[0].strip() for line in result.out.splitlines()],
                         ["agrees", "DIFFERS", "agrees"])

    def test_refusals(self):
        cases = [
            (["needs 4 ranks, 2 were started"], ("deck.yaml", "layout.yaml")),
            (["needs 4 ranks, 2 were started"], ("deck.yaml", "--matrix", "matrix.txt")),
            (["none.txt", "cannot read"], ("deck.yaml", "--matrix", "none.txt")),
            (["empty.txt", "holds no layout"], ("deck.yaml", "--matrix", "empty.txt")),
            (["none.yaml"], ("deck.yaml", "none.yaml")),
            (["compares two decks"], ("deck.yaml",)),
            (["compares two decks"], ("deck.yaml", "deck.yaml", "--matrix", "matrix.txt")),
            (["parallel.tensor"], ("deck.yaml", "deck.yaml", "--set", "parallel.tensor=3")),
            (["--steps is 0"], ("deck.yaml", "deck.yaml", "--steps", 0)),
        ]
        for words, arguments in cases:
            with self.subTest(arguments=arguments):
                self.assert_refused(self.run_program("parity", *arguments, ranks=2), 2, *words)


class UnlikeRanks(support.Case):
    """Ranks of one job with different command lines end at once."""

    def start_each(self, *arguments):
        """One rank for each list of arguments."""
        first, *others = (support.command(*each, ranks=1) for each in arguments)
        line = [*first, *(word for other in others for word in (":", *other[1:]))]
        result = subprocess.run(line, cwd=self.folder, capture_output=True, timeout=30, check=False)
        messages = [text for text in result.stderr.decode().splitlines() if text.startswith("hyperslab: ")]
        return result.returncode, messages

    def test_they_are_refused(self):
        two = support.overrides("parallel.data=2")
        train = ("train", "deck.yaml", *two)
        others = (("train", "other.yaml", *two), ("plan", "deck.yaml", *two), ("nothing", "deck.yaml", *two),
                  (*train, "--set", "run.seed=8"))
        for other in others:
            with self.subTest(other=other):
                code, messages = self.start_each(train, other)
                self.assertEqual(code, 2)
                self.assertEqual(len(messages), 1, messages)
                self.assertIn("the ranks were started differently", messages[0])
                self.assertIn(f"of rank 1 '{' '.join(other)}'", messages[0])
        self.assertFalse((self.folder / "run").exists())

    def test_all_that_differ_are_named(self):
        two = ("train", "deck.yaml", *support.overrides("parallel.data=4"))
        other = (*two, "--set", "run.seed=8")
        code, messages = self.start_each(two, other, two, other)
        self.assertEqual(code, 2)
        self.assertEqual(len(messages), 1, messages)
        self.assertIn("of ranks 0, 2 is 'train", messages[0])
        self.assertIn("of ranks 1, 3 'train", messages[0])

    def test_other_decks_at_the_same_path_are_refused(self):
        folder = self.folder / "elsewhere"
        folder.mkdir()
        deck = (self.folder / "deck.yaml").read_text(encoding="utf-8")
        (folder / "deck.yaml").write_text(deck.replace("seed: 7", "seed: 8"), encoding="utf-8")
        two = support.command("train", "deck.yaml", *support.overrides("parallel.data=2"), ranks=1)
        line = [*two, ":", *two[1:3], "--wdir", str(folder), *two[3:]]
        result = subprocess.run(line, cwd=self.folder, capture_output=True, timeout=30, check=False)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn(b"deck.yaml: the ranks find different decks", result.stderr)
        self.assertIn(b"of rank 1 '", result.stderr)


if __name__ == "__main__":
    support.main()
