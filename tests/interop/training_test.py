#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training beside PyTorch: from the same weights over the same samples the same losses, each family.

training_test.py --binary FILE [--device cpu|cuda] [--precisions fp32,bf16]
"""

import argparse
import contextlib
import io
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "e2e"), str(HERE.parent.parent)]

import support

try:
    import numpy  # noqa: F401
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from analysis.compare.recipe import read_recipe, read_weights
from analysis.compare.torch_training import Group, Options, Training
from analysis.compare import training as comparison

STEPS = 20
# Nats, relative if a loss is above 1.
TOLERANCES = {"fp32": 2e-4, "bf16": 0.02}
ARGUMENTS = argparse.Namespace(device="cpu", precisions=["fp32"])

# name -> overrides of the tiny deck
MODELS = {
    "gpt2": ("model.family=gpt2", "model.heads=4", "data.sampling=windows", "optimizer.decay_embeddings=false"),
    "gpt2_untied": ("model.family=gpt2", "model.tie_embeddings=false", "train.microbatch=4", "schedule.name=wsd"),
    "llama": ("model.heads=4", "model.kv_heads=2", "model.rope_theta=5000", "model.norm_eps=1e-6"),
    "llama_tied_bias": ("model.tie_embeddings=true", "model.bias=true", "schedule.name=linear"),
}
# Both in fp32, and then both with products in bf16. torch.optim.Muon's Newton-Schulz is in bf16 whatever its matrices
# are in; analysis/compare/torch_muon.py runs it without that rounding where hyperslab computes in fp32. Of its other
# defaults momentum 0.95, nesterov, eps and the five steps with their coefficients are hyperslab's; adjust_lr_fn is set
# to match_rms_adamw, and lr and weight_decay to the deck's.
MUON = ("optimizer.name=muon", "optimizer.momentum=0.95", "optimizer.lr=1e-2", "optimizer.weight_decay=0.1")
MUON_TOLERANCES = {"fp32": 1e-4, "bf16": 0.02}
COMMON = ("model.width=64", "model.init_std=0.1", "optimizer.lr=5e-3", "optimizer.weight_decay=0.5",
          "schedule.warmup_steps=5", "checkpoint.every=0")


def pytorch(run, weights, row_multiple):
    """Losses, norms of gradients and validation losses by step of PyTorch."""
    group = Group(ARGUMENTS.device)
    options = Options(ARGUMENTS.device, row_multiple=row_multiple)
    training = Training(read_recipe(run), read_weights(weights), options, group)
    validation = {}
    for step in range(1, STEPS + 1):
        training.step(step)
        if training.recipe.validates(step, STEPS):
            validation[step] = training.evaluate()
    return training.training_losses(), training.gradient_norms(), validation


class Training20(support.Case):
    """20 steps of AdamW in every precision asked for."""

    def check(self, name, precision, row_multiple=1, optimizer=()):
        """Trains in both and compares."""
        run = f"{name}_{precision}{'_muon' if optimizer else ''}"
        settings = (*COMMON, *MODELS[name], *optimizer, f"run.device={ARGUMENTS.device}", f"precision.compute={precision}",
                    f"train.steps={STEPS}")
        self.train(run, *settings)
        self.train(f"{run}_initial", *settings, *comparison.INITIAL, f"run.directory={run}_initial")
        with contextlib.chdir(self.folder):  # where the deck's token files are
            losses, norms, validation = pytorch(self.folder / run, self.folder / f"{run}_initial", row_multiple)

        tolerance = (MUON_TOLERANCES if optimizer else TOLERANCES)[precision]
        self.assert_near(losses, support.column(self.folder / run, "loss"), tolerance)
        found = {line["step"]: line["validation_loss"] for line in support.metrics(self.folder / run)
                 if "validation_loss" in line}
        self.assertEqual(sorted(found), [10, 20])
        self.assertEqual(sorted(validation), [10, 20])
        self.assert_near(list(validation.values()), list(found.values()), tolerance)
        if precision == "fp32":
            self.assert_near(norms, support.column(self.folder / run, "grad_norm"), 2e-3)
        self.assertGreater(max(norms), 1.0)  # clipping acts
        self.assertLess(losses[-1], losses[0] - 1.0)  # and something is learned

    def compare(self, run, *options):
        """Exit code, and what the long comparison prints."""
        words = [run, "--device", ARGUMENTS.device, "--compile", "off", *options]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = comparison.main(words)
        return code, out.getvalue(), err.getvalue()

    def test_the_long_comparison(self):
        settings = (*COMMON, *MODELS["gpt2"], f"run.device={ARGUMENTS.device}", f"train.steps={STEPS}")
        self.train("long", *settings)

        code, out, err = self.compare("long", "--binary", support.command()[0])

        self.assertEqual((code, err), (0, ""))
        self.assertIn("tokens/s, median step", out)
        content = json.loads((self.folder / "long" / "pytorch.json").read_text(encoding="utf-8"))
        self.assertEqual([row["step"] for row in content["validation"]], [10, 20])
        self.assertLess(max(abs(row["difference"]) for row in content["validation"]), 5e-4)
        self.assertLess(content["largest_training_difference"], 5e-4)
        self.assertEqual(content["steps_done"], STEPS)
        self.assertGreater(content["pytorch"]["tokens_per_second"], 0)

    def test_the_long_comparison_refuses_other_weights_and_decks(self):
        self.train("mine", *COMMON, f"run.device={ARGUMENTS.device}", "train.steps=2", "schedule.warmup_steps=1")
        self.train("other", *COMMON, *comparison.INITIAL, "run.seed=8", "run.directory=other")
        for options, words in (((), "no checkpoint of the initial weights"),
                               (("--initial", "other"), "the loss of step 1"),
                               (("--initial", "other", "--set", "model.layers=3"), "of another model"),
                               (("--initial", "other", "--set", "model.dropout=0.1"), "model.dropout is 0.1"),
                               (("--initial", "other", "--microbatch", "5"), "nearest: 4")):
            with self.subTest(options):
                code, _, err = self.compare("mine", *options)

                self.assertEqual(code, 2)
                self.assertIn(words, err)

    def assert_near(self, found, expected, tolerance):
        """Two curves agree at every step."""
        self.assertEqual(len(found), len(expected))
        worst = max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(found, expected))
        print(f"{self.id().rpartition('.')[2]}: largest difference {worst:.2e}, allowed {tolerance:.0e}")
        self.assertLessEqual(worst, tolerance, f"{found}\n{expected}")

    def test_families(self):
        for precision in ARGUMENTS.precisions:
            for name in MODELS:
                with self.subTest(name, precision=precision):
                    self.check(name, precision)

    def test_muon(self):
        for precision in ARGUMENTS.precisions:
            for name in MODELS:
                with self.subTest(name, precision=precision):
                    self.check(name, precision, optimizer=MUON)

    def test_rows_beyond_the_vocabulary_take_no_part(self):
        self.check("llama_tied_bias", ARGUMENTS.precisions[0], row_multiple=128)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precisions", type=lambda text: text.split(","), default=["fp32"])
    _, others = parser.parse_known_args(namespace=ARGUMENTS)
    sys.argv[1:] = others
    if ARGUMENTS.device == "cuda" and not torch.cuda.is_available():
        print("skipped: PyTorch sees no GPU")
        sys.exit(77)
    if ARGUMENTS.device == "cpu":
        torch.set_num_threads(1)
    support.main()
