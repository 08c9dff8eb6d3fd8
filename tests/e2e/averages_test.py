#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""optimizer.ema_decay: an average of the weights beside a training that it does not change."""

import json

import support

LAST = "checkpoints/step_00000020"
EMA = ("optimizer.ema_decay=0.8", "optimizer.ema_start_step=3", "train.microbatch=2")


class Averages(support.Case):
    """Runs of 20 steps with and without an average."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("plain", "train.microbatch=2")
        cls.train("averaged", *EMA, "optimizer.evaluate_ema=true")

    def tensors(self, run, prefix):
        """The tensors of the last step below a prefix, named without it."""
        found = support.tensors(self.folder / run / LAST)
        return {name.removeprefix(prefix): data for name, data in found.items() if name.startswith(prefix)}

    def validations(self, run):
        """The losses of validations, by step."""
        return {line["step"]: line["validation_loss"] for line in support.metrics(self.folder / run)
                if line.get("validation_loss") is not None}

    def loss(self, *arguments, ranks=0):
        """What eval says of a checkpoint."""
        result = self.run_program("eval", *arguments, "--json", "eval.json", ranks=ranks)
        self.assertEqual(result.code, 0, result.err)
        return json.loads((self.folder / "eval.json").read_text(encoding="utf-8"))["loss"]

    def test_training_is_the_same_and_validation_is_of_the_average(self):
        for key in ("loss", "grad_norm"):
            self.assertEqual(support.column(self.folder / "averaged", key), support.column(self.folder / "plain", key))
        self.assertEqual(self.tensors("averaged", "model/"), self.tensors("plain", "model/"))
        self.assertEqual(sorted(self.tensors("averaged", "optimizer/ema/")), sorted(self.tensors("plain", "model/")))

        plain, averaged = self.validations("plain"), self.validations("averaged")
        self.assertEqual(sorted(averaged), [10, 20])
        for step in averaged:
            checkpoint = f"averaged/checkpoints/step_{step:08}"
            self.assertNotEqual(averaged[step], plain[step])
            self.assertAlmostEqual(self.loss("--checkpoint", checkpoint), plain[step], places=6)
            self.assertAlmostEqual(self.loss("--checkpoint", checkpoint, "--ema"), averaged[step], places=6)

    def test_layouts_keep_the_same_average(self):
        expected = self.validations("averaged")
        for name, ranks, settings in (("one", 2, ("parallel.zero=1",)), ("two", 2, ("parallel.zero=2",)),
                                      ("three", 2, ("parallel.zero=3",)),
                                      ("tensor", 2, ("parallel.data=1", "parallel.tensor=2", "train.microbatch=12")),
                                      ("pipeline", 2, ("parallel.data=1", "parallel.pipeline=2"))):
            with self.subTest(name=name):
                self.train(name, *EMA, "optimizer.evaluate_ema=true", *settings, ranks=ranks)
                found = self.validations(name)
                for step, loss in expected.items():
                    self.assertAlmostEqual(found[step], loss, places=4)
                self.assertAlmostEqual(self.loss("--checkpoint", name, "--ema"), expected[20], places=4)

    def test_a_run_resumes_on_another_layout_and_takes_up_an_average_later(self):
        self.train("parted", *EMA, options=("--stop-after", 10))
        self.copy_of("parted", "moved")
        self.train("parted", *EMA)
        self.assertEqual(self.tensors("parted", "optimizer/ema/"), self.tensors("averaged", "optimizer/ema/"))
        self.train("moved", *EMA, "parallel.zero=1", ranks=2)
        self.assertAlmostEqual(self.loss("--checkpoint", "moved", "--ema"), self.validations("averaged")[20], places=4)

        self.train("late", "train.microbatch=2", options=("--stop-after", 10))
        self.train("late", *EMA)
        self.assertEqual(self.tensors("late", "model/"), self.tensors("plain", "model/"))
        self.assertNotEqual(self.tensors("late", "optimizer/ema/"), self.tensors("averaged", "optimizer/ema/"))
        self.train("late", "train.microbatch=2", "train.steps=22")
        self.assertEqual([name for name in support.manifest(self.folder / "late/checkpoints/step_00000022")["tensors"]
                          if "ema" in name], [])

    def test_texts_tasks_and_exports_take_it(self):
        words = ("--prompt", "The red ", "--temperature", 0, "--max-tokens", 20, "--logprobs", 0, "--json", "text.json")
        found = []
        for options in ((), ("--ema",)):
            result = self.run_program("generate", "--checkpoint", "averaged", *words, *options)
            self.assertEqual(result.code, 0, result.err)
            report = json.loads((self.folder / "text.json").read_text(encoding="utf-8"))
            found.append(report["completions"][0]["logprobs"])
        self.assertNotEqual(found[0], found[1])

        export = self.run_program("checkpoint", "export", "averaged", "--ema", "--output", "folder")
        self.assertEqual(export.code, 0, export.err)
        taken = self.run_program("checkpoint", "import", "folder", "--output", "imported")
        self.assertEqual(taken.code, 0, taken.err)
        self.assertAlmostEqual(self.loss("deck.yaml", "--checkpoint", "imported"),
                               self.loss("deck.yaml", "--checkpoint", "averaged", "--ema"), places=5)

    def test_refusals(self):
        for command in (("eval", "--checkpoint", "plain"), ("generate", "--checkpoint", "plain", "--prompt", "a"),
                        ("checkpoint", "export", "plain", "--output", "none")):
            self.assert_refused(self.run_program(*command, "--ema"), 4, "keeps no average", "optimizer.ema_decay")
        for setting in ("optimizer.ema_decay=1", "optimizer.ema_decay=-0.1", "optimizer.evaluate_ema=true",
                        "optimizer.ema_start_step=-1"):
            result = self.run_program("train", "deck.yaml", *support.overrides("run.directory=no", setting))
            self.assert_refused(result, 2, setting.split("=", maxsplit=1)[0])


if __name__ == "__main__":
    support.main()
