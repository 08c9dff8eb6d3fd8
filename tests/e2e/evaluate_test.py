#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""eval: the numbers of a checkpoint, whatever the number of ranks."""

import json
import math
import re
import shutil
import struct
import subprocess

import support

TIMES = {"seconds", "tokens_per_second"}
# What a start and its layout decide beside the model, and what is no number.
OF_THE_START = TIMES | {"ranks", "parameter_bytes", "matrix_bytes", "memory_peak_bytes"}
WORDS = {"precision", "quantization", "frozen_format"}


class Evaluate(support.Case):
    """Checkpoints of steps 10 and 20 of one run."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.settings = ("train.microbatch=2", "model.dropout=0.1")
        cls.train("run", *cls.settings)
        cls.lines = support.metrics(cls.folder / "run")

    def evaluate(self, *arguments, ranks=1, layout=None, settings=()):
        """Output, and figures from --json."""
        layout = layout or (f"parallel.data={ranks}",)
        result = self.run_program("eval", "deck.yaml", *arguments, "--json", "out.json",
                                  *support.overrides(*layout, *self.settings, *settings), ranks=ranks)
        self.assertEqual(result.code, 0, result.err)
        return result, json.loads((self.folder / "out.json").read_text(encoding="utf-8"))

    def test_every_number_of_ranks_gives_the_logged_loss(self):
        last = self.lines[-1]
        for ranks in (1, 2, 3):
            with self.subTest(ranks=ranks):
                _, found = self.evaluate("--checkpoint", "run/checkpoints", ranks=ranks)
                self.assertEqual((found["step"], found["tokens"]), (20, 5 * 12 * 32))
                self.assertAlmostEqual(found["loss"] / last["validation_loss"], 1, delta=1e-6)
                self.assertAlmostEqual(found["bits_per_byte"] / last["validation_bits_per_byte"], 1, delta=1e-6)
                self.assertEqual(found["token_accuracy"], last["validation_token_accuracy"])
                self.assertAlmostEqual(found["perplexity"], math.exp(found["loss"]), places=6)

    def test_microbatch_and_layout_play_no_part(self):
        """validate_batches counts global batches; 20 of 12 samples are more than the file has."""
        samples = len(support.text()) // 32
        self.assertNotEqual(samples % 12, 0)
        cases = {5: (("data=1", 4), ("data=2", 3), ("tensor=2", 3), ("pipeline=2", 6)),
                 20: (("data=1", 12), ("data=2", 6), ("pipeline=2", 2), ("data=3", 1))}
        for batches, expected in ((5, 60), (20, samples)):
            _, first = self.evaluate("--checkpoint", "run/checkpoints",
                                     settings=(f"train.validate_batches={batches}",))
            self.assertEqual(first["tokens"], expected * 32)
            for axis, microbatch in cases[batches]:
                with self.subTest(batches=batches, axis=axis, microbatch=microbatch):
                    _, found = self.evaluate(
                        "--checkpoint", "run/checkpoints", ranks=int(axis[-1]), layout=(f"parallel.{axis}",),
                        settings=(f"train.validate_batches={batches}", f"train.microbatch={microbatch}"))
                    self.assertEqual(found["tokens"], first["tokens"])
                    self.assertEqual(found["bytes"], first["bytes"])
                    self.assertAlmostEqual(found["loss"] / first["loss"], 1, delta=1e-6)

    def test_train_validates_on_as_many_samples_whatever_the_microbatch(self):
        """Each start goes on from one checkpoint and takes a step too small to change anything."""
        still = ("optimizer.lr=1.0e-30", "optimizer.weight_decay=0", "train.steps=21", "train.validate_batches=7")
        losses = {}
        for number, (axis, microbatch) in enumerate((("data=1", 12), ("data=1", 2), ("data=2", 3), ("tensor=2", 4),
                                                     ("pipeline=2", 6))):
            run = self.copy_of("run", f"still{number}")
            result = self.run_program("train", "deck.yaml", *support.overrides(
                *self.settings, *still, f"run.directory={run.name}", f"parallel.{axis}",
                f"train.microbatch={microbatch}"), ranks=int(axis[-1]))
            self.assertEqual(result.code, 0, result.err)
            losses[axis, microbatch] = support.metrics(run)[-1]["validation_loss"]
        _, found = self.evaluate("--checkpoint", "run/checkpoints", settings=("train.validate_batches=7",))

        self.assertEqual(found["tokens"], 7 * 12 * 32)
        for case, loss in losses.items():
            self.assertAlmostEqual(loss / found["loss"], 1, delta=1e-6, msg=str(case))

    def test_whole_file_counts_every_sample_once(self):
        _, one = self.evaluate("--checkpoint", "run/checkpoints", settings=("train.validate_batches=0",))
        _, three = self.evaluate("--checkpoint", "run/checkpoints", settings=("train.validate_batches=0",),
                                 ranks=3)

        self.assertEqual(one["tokens"], len(support.text()) // 32 * 32)
        self.assertEqual(three["tokens"], one["tokens"])
        self.assertAlmostEqual(three["loss"] / one["loss"], 1, delta=1e-6)

    def test_several_checkpoints_make_a_table(self):
        result, found = self.evaluate("--checkpoint", "run/checkpoints/step_00000010",
                                      "--checkpoint", "run/checkpoints/step_00000020", ranks=2)

        rows = [line.split() for line in result.out.splitlines()]
        self.assertEqual([row[0] for row in rows], ["step", "10", "20", "measured"])
        self.assertEqual([entry["step"] for entry in found], [10, 20])
        self.assert_close([entry["loss"] for entry in found],
                          [self.lines[9]["validation_loss"], self.lines[19]["validation_loss"]], 1e-6)
        self.assert_close([float(row[1]) for row in rows[1:3]], [entry["loss"] for entry in found], 1e-5)

    def test_every_layout_gives_the_same_figures(self):
        data, tensor, pipeline = "parallel.data=2", "parallel.tensor=2", "parallel.pipeline=2"
        layouts = ((data,), (tensor,), (pipeline,), (data, tensor), (data, pipeline), (tensor, pipeline))
        for option in ((), ("--stride", 11)):
            arguments = ("--checkpoint", "run/checkpoints", "--words", *option)
            _, one = self.evaluate(*arguments)
            for layout in layouts:
                with self.subTest(layout=layout, option=option):
                    _, found = self.evaluate(*arguments, ranks=2 ** len(layout), layout=layout)
                    self.assertEqual(found.keys(), one.keys())
                    self.assertEqual(found["files"], one["files"])
                    for key in one.keys() - {"checkpoint", "files"} - OF_THE_START - WORDS:
                        self.assertAlmostEqual(found[key], one[key], delta=1e-6 * one[key])

    def measure(self, *arguments, ranks=0, folder="."):
        """Figures of an eval without a deck, started in another folder."""
        start = support.command("eval", *arguments, "--json", self.folder / "alone.json", ranks=ranks)
        found = subprocess.run(start, cwd=self.folder / folder, capture_output=True, check=False)
        self.assertEqual(found.returncode, 0, found.stderr.decode())
        return json.loads((self.folder / "alone.json").read_text(encoding="utf-8"))

    def test_a_checkpoint_needs_no_deck(self):
        (self.folder / "elsewhere").mkdir()
        expected = self.lines[-1]["validation_loss"]
        whole = ("--set", "train.validate_batches=0")
        _, deck = self.evaluate("--checkpoint", "run", settings=("train.validate_batches=0",))

        for path in ("run", "run/checkpoints", "run/checkpoints/step_00000020"):
            found = self.measure("--checkpoint", path)
            self.assertEqual(found["step"], 20)
            self.assertAlmostEqual(found["loss"] / expected, 1, delta=1e-6)
            self.assertAlmostEqual(found["bits_per_byte"], self.lines[-1]["validation_bits_per_byte"], delta=1e-6)
        for ranks in (2, 5):
            found = self.measure("--checkpoint", "run", *whole, ranks=ranks)
            self.assertEqual(found["tokens"], deck["tokens"])
            self.assertAlmostEqual(found["loss"] / deck["loss"], 1, delta=1e-6)
        away = self.measure("--checkpoint", "../run", *whole, folder="elsewhere")
        self.assertEqual(away["loss"], deck["loss"])
        named = self.measure("--checkpoint", "../run", *whole, "--data", "../text.bin", "../text.bin",
                             folder="elsewhere")
        self.assertEqual(named["tokens"], 2 * (len(support.text()) // 32 * 32))  # of each file
        deck_last = self.measure("--checkpoint", "run", "--data", "text.bin", "deck.yaml",
                                 *support.overrides(*self.settings))
        self.assertAlmostEqual(deck_last["loss"] / expected, 1, delta=1e-6)

    def test_a_run_in_another_folder_finds_its_data_where_it_was_started(self):
        apart = self.folder / "apart"
        (apart / "here").mkdir(parents=True)
        run = apart / "run"
        self.train(run, *self.settings, "train.steps=2", "checkpoint.every=1")

        expected = support.metrics(run)[-1]["validation_loss"]
        for ranks in (0, 2):
            found = self.measure("--checkpoint", run, ranks=ranks, folder="apart/here")
            self.assertAlmostEqual(found["loss"] / expected, 1, delta=1e-6)
        start = support.command("checkpoint", "quantize", run, "--weights", "int8", "--calibrate", 2, "--output", "int8")
        found = subprocess.run(start, cwd=apart / "here", capture_output=True, check=False)
        self.assertEqual(found.returncode, 0, found.stderr.decode())
        self.measure("--checkpoint", apart / "here/int8", folder="apart")

        (self.folder / "text.bin").rename(self.folder / "text.moved")
        self.addCleanup((self.folder / "text.moved").rename, self.folder / "text.bin")
        for ranks in (0, 2):
            start = support.command("eval", "--checkpoint", run, ranks=ranks)
            lost = subprocess.run(start, cwd=apart / "here", capture_output=True, check=False)
            self.assert_refused(support.Result(lost.returncode, lost.stdout, lost.stderr.decode(), 0), 3,
                                f"data.validation 'text.bin' is neither in {apart / 'here'} nor in {self.folder}, where the run was "
                                "started; give --data FILE")

    def test_patterns_of_a_run_are_those_of_the_folder_where_it_was_started(self):
        start = self.folder / "st[a]rt {1,2}*"
        here = self.folder / "empty"
        (start / "data").mkdir(parents=True)
        (start / "v1").mkdir()
        (here / "data").mkdir(parents=True)
        names = ["one.bin", "vv1.bin", "vv2.bin", "data/v.bin", "v1/x.bin"]
        for name in names:
            shutil.copy(self.folder / "text.bin", start / name)
        patterns = "[one.bin,vv*.bin,'data/v*.bin','v?/{x,y}.bin']"
        for name, run in (("inside", "run"), ("beside", self.folder / "patterns")):
            settings = support.overrides(f"run.directory={run}", *self.settings, "data.train=[../text.bin]", "train.steps=1",
                                         f"data.validation={patterns}", "train.validate_batches=0", "checkpoint.every=1",
                                         "schedule.warmup_steps=0")
            train = subprocess.run(support.command("train", "../deck.yaml", *settings), cwd=start, capture_output=True, check=False)
            self.assertEqual(train.returncode, 0, train.stderr.decode())
            for part in (False, True):  # what is here counts only if nothing is missing
                with self.subTest(name, part=part):
                    if part:
                        (here / "one.bin").write_bytes(b"another")
                    found = self.measure("--checkpoint", start / run, folder="empty")
                    self.assertEqual(found["tokens"], len(names) * (len(support.text()) // 32 * 32))  # of each file
                    (here / "one.bin").unlink(missing_ok=True)

        for name in names[1:3]:
            (start / name).unlink()
        (here / "vv1.bin").write_bytes(b"one")
        lost = subprocess.run(support.command("eval", "--checkpoint", self.folder / "patterns"), cwd=here, capture_output=True,
                              check=False)
        self.assert_refused(support.Result(lost.returncode, lost.stdout, lost.stderr.decode(), 0), 3,
                            f"data.validation 'one.bin' is not in {here} and 'vv*.bin' not in {start}, where the run was started")

    def test_ranks_that_no_one_asks_for_otherwise_are_data_ranks(self):
        one = self.measure("--checkpoint", "run")
        cases = ((2, "tensor=2"), (2, "pipeline=2"), (4, "tensor=2"), (4, "pipeline=2"), (2, "data=2"), (4, "data=2", "tensor=2"))
        for ranks, *asked in cases:
            with self.subTest(ranks=ranks, asked=asked):
                found = self.measure("--checkpoint", "run", *support.overrides(*(f"parallel.{axis}" for axis in asked)), ranks=ranks)
                self.assertAlmostEqual(found["loss"] / one["loss"], 1, delta=1e-6)
        refused = self.run_program("eval", "--checkpoint", "run", "--set", "parallel.tensor=2", ranks=3)
        self.assertEqual(refused.code, 2)
        self.assertIn("a multiple of 2 ranks, and 3 were started", refused.err)

    def test_a_pipeline_of_the_deck_goes_with_all_that_it_asks_for(self):
        self.train("staged", "parallel.data=2", "parallel.pipeline=2", "parallel.schedule=interleaved",
                   "parallel.virtual_stages=2", "model.layers=4", "train.microbatch=2", "train.global_batch=8",
                   ranks=4)
        one = self.measure("--checkpoint", "staged")
        for ranks, *asked in ((2, "pipeline=1"), (1, "data=1", "pipeline=1"), (4, "tensor=1")):
            with self.subTest(ranks=ranks, asked=asked):
                found = self.measure("--checkpoint", "staged", *support.overrides(*(f"parallel.{axis}" for axis in asked)), ranks=ranks)
                self.assertAlmostEqual(found["loss"] / one["loss"], 1, delta=1e-6)

    def test_more_ranks_than_the_global_batch_measure_the_same_text(self):
        self.train("small", "train.global_batch=2", "train.validate_batches=3", "train.steps=2", "model.dropout=0.1")

        one = self.measure("--checkpoint", "small")
        four = self.measure("--checkpoint", "small", ranks=4)

        self.assertEqual((one["tokens"], four["tokens"]), (3 * 2 * 32, 3 * 2 * 32))
        self.assertAlmostEqual(four["loss"] / one["loss"], 1, delta=1e-6)
        larger = self.measure("--checkpoint", "small", "--set", "train.global_batch=4", ranks=4)
        self.assertEqual(larger["tokens"], 3 * 4 * 32)

    def test_files_that_were_measured_are_named(self):
        result, found = self.evaluate("--checkpoint", "run")
        self.assertEqual(found["files"], ["text.bin"])
        self.assertIn("\nmeasured on text.bin: ", result.out)
        two = self.measure("--checkpoint", "run", "--data", "text.bin", "text.bin")
        self.assertEqual(two["files"], ["text.bin", "text.bin"])

    def test_training_text_is_not_measured_unasked(self):
        settings = ("data.validation=[]", "train.validate_every=0", "train.steps=2", "train.microbatch=6")
        self.train("blind", *settings)

        for deck in ((), ("blind/deck.yaml",)):
            for ranks in (0, 2):
                layout = support.overrides("parallel.data=2") if deck and ranks else ()
                result = self.run_program("eval", *deck, "--checkpoint", "blind", *layout, ranks=ranks)
                self.assert_refused(result, 2, "the deck names no validation files; give --data FILE")
            named = self.measure(*deck, "--checkpoint", "blind", "--data", "text.bin")
            self.assertEqual(named["files"], ["text.bin"])
        held = self.measure("--checkpoint", "blind", "--set", "data.validation_fraction=0.5", "--set",
                            "data.end_token=46")
        self.assertEqual(held["files"], ["text.bin"])

    def test_rules_about_data_count(self):
        result = self.run_program("eval", "--checkpoint", "run", "--set", "data.ignore_token=99999")

        self.assert_refused(result, 2, "data.ignore_token=99999", "no id of the 257")

    def test_checkpoints_one_after_the_other(self):
        steps = [f"run/checkpoints/step_000000{step}" for step in (10, 20)]
        apart, expected = self.evaluate("--checkpoint", steps[0], "--checkpoint", steps[1])
        together, found = self.evaluate("--checkpoint", *steps)

        self.assertEqual(together.out, apart.out)
        for row in found + expected:
            for key in TIMES:
                self.assertGreater(row.pop(key), 0)
        self.assertEqual(found, expected)
        self.assertEqual([row["loss"] for row in self.measure("--checkpoint", *steps)],
                         [row["loss"] for row in expected])
        result = self.run_program("eval", "--checkpoint", *steps, "deck.yaml",
                                  *support.overrides(*self.settings))
        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(result.out, apart.out)
        two = self.run_program("eval", "deck.yaml", "--checkpoint", *steps, "text.txt")
        self.assert_refused(two, 2, "at most one deck", "'deck.yaml', 'text.txt'")

    def test_figures_of_the_text(self):
        text, covered = support.text(), 5 * 12 * 32  # targets: the bytes after the first one
        words = sum(1 <= word.start() <= covered for word in re.finditer(r"\S+", text))
        lines = text[1:covered + 1].count("\n")

        for option in ((), ("--stride", 7)):
            result, found = self.evaluate("--checkpoint", "run/checkpoints", "--words", *option)
            nats = found["loss_sum"]
            self.assertEqual([found[key] for key in ("tokens", "bytes", "words", "line_ends")],
                             [covered, covered, words, lines])
            self.assertEqual(found["stride"], option[1] if option else 32)
            self.assertAlmostEqual(found["loss"], nats / covered)
            self.assertAlmostEqual(found["bits_per_byte"], nats / covered / math.log(2))
            self.assertAlmostEqual(found["word_perplexity"] / math.exp(nats / (words + lines)), 1)
            row = [float(cell) for cell in result.out.splitlines()[1].split()[1:5]]
            self.assert_close(row, [found[key] for key in ("loss", "perplexity", "bits_per_byte",
                                                           "word_perplexity")], 1e-3)

    def test_strides_reach_the_end_of_the_text(self):
        whole = ("train.validate_batches=0",)
        _, found = self.evaluate("--checkpoint", "run/checkpoints", "--stride", 32, ranks=2, settings=whole)

        self.assertEqual(found["tokens"], len(support.text()))
        self.assertEqual(found["bytes"], len(support.text()) - 1)  # the last target ends the text

    def test_bytes_of_a_trained_vocabulary(self):
        for arguments in (("--train-vocab", 300, "--output-vocab", "v"), ("--vocab", "v", "--output", "v.bin")):
            self.assertEqual(self.run_program("tokenize", "--input", "text.txt", *arguments).code, 0)
        ids = struct.unpack("<H", (self.folder / "v.bin").read_bytes()[1024:1026])
        names = json.loads((self.folder / "v" / "vocab.json").read_text(encoding="utf-8"))
        first = next(name for name, id in names.items() if id == ids[0])
        settings = ("data.train=[v.bin]", "data.validation=[v.bin]", "data.vocabulary=v", "model.vocabulary=300",
                    "train.validate_batches=0")
        self.train("bpe", *self.settings, *settings, "train.steps=2")

        _, blocks = self.evaluate("--checkpoint", "bpe/checkpoints", settings=settings)
        logged = support.metrics(self.folder / "bpe")[-1]["validation_bits_per_byte"]
        self.assertLess(blocks["bytes"], len(support.text()))
        self.assertAlmostEqual(blocks["bits_per_byte"] / logged, 1, delta=1e-9)

        _, found = self.evaluate("--checkpoint", "bpe/checkpoints", "--stride", 16, "--words", settings=settings)

        self.assertEqual(found["bytes"], len(support.text()) - len(first))
        shutil.move(self.folder / "v", self.folder / "moved")
        self.assertEqual(self.measure("--checkpoint", "bpe")["bits_per_byte"], blocks["bits_per_byte"])
        kept = self.measure("bpe/deck.yaml", "--checkpoint", "bpe")
        self.assertEqual(kept["bits_per_byte"], blocks["bits_per_byte"])
        shutil.move(self.folder / "moved", self.folder / "v")
        damaged = self.copy_of("bpe", "damaged")
        for file in damaged.glob("checkpoints/step_*/vocabulary/tokenizer.json"):
            file.write_text("{}", encoding="utf-8")
        self.assert_refused(self.run_program("eval", "--checkpoint", "damaged"), 4, "or name another vocabulary")
        for arguments in (("--set", "data.vocabulary=v"), ("bpe/deck.yaml",)):
            other = self.measure("--checkpoint", "damaged", *arguments)
            self.assertEqual(other["bits_per_byte"], blocks["bits_per_byte"])
        words = [word.start() for word in re.finditer(r"\S+", support.text())]
        self.assertEqual(found["words"], sum(start >= len(first) for start in words))
        self.assertEqual(found["line_ends"], support.text().count("\n"))
        self.assertAlmostEqual(found["bits_per_byte"], found["loss_sum"] / math.log(2) / found["bytes"])

    def test_without_a_vocabulary_there_are_no_bytes(self):
        result, found = self.evaluate("--checkpoint", "run/checkpoints", settings=("data.vocabulary=null",))

        self.assertIsNone(found["bits_per_byte"])
        self.assertNotIn("bytes", found)
        self.assertEqual(result.out.splitlines()[1].split()[3], "-")
        self.assertIn("data.vocabulary", result.err)

    def test_checkpoint_of_four_ranks_is_read(self):
        self.train("four", *self.settings, "train.microbatch=1", ranks=4)

        _, found = self.evaluate("--checkpoint", "four/checkpoints")

        self.assertAlmostEqual(found["loss"] / self.lines[-1]["validation_loss"], 1, delta=1e-5)

    def test_refusals(self):
        deck = ("eval", "deck.yaml")
        two = support.overrides("parallel.data=2")
        support.write_tokens(self.folder / "same.bin", [32] * 100)
        support.write_vocabulary(self.folder / "large", 300)
        before = support.snapshot(self.folder / "run")
        cases = [
            (2, ["--checkpoint"], deck, ()),
            (4, ["nowhere", "no such folder"], deck, ("--checkpoint", "nowhere")),
            (4, ["no checkpoint in it"], deck, ("--checkpoint", "run/timing")),
            (4, ["blocks.2.", "missing"], deck,
             ("--checkpoint", "run/checkpoints", "--set", "model.layers=3")),
            (5, ["text.txt/out.json", "cannot write", "Not a directory"], deck,
             ("--checkpoint", "run/checkpoints", "--json", "text.txt/out.json")),
            (2, ["--stride", "1 to 32", "found 0"], deck, ("--checkpoint", "run/checkpoints", "--stride", "0")),
            (2, ["--stride", "found 33"], deck, ("--checkpoint", "run/checkpoints", "--stride", "33")),
            (2, ["--words", "data.vocabulary"], deck,
             ("--checkpoint", "run/checkpoints", "--words", "--set", "data.vocabulary=null")),
            (3, ["vocabulary", "nowhere"], deck,
             ("--checkpoint", "run/checkpoints", "--set", "data.vocabulary=nowhere")),
            (3, ["vocabulary 'large'", "at most 257", "found 300"], deck,
             ("--checkpoint", "run/checkpoints", "--set", "data.vocabulary=large")),
            (3, ["no evaluated token counts"], deck,
             ("--checkpoint", "run/checkpoints", "--set", "data.validation=[same.bin]",
              "--set", "data.ignore_token=32")),
            (3, ["none.bin"], deck,
             ("--checkpoint", "run/checkpoints", "--set", "data.validation=[none.bin]")),
        ]
        for code, words, start, arguments in cases:
            with self.subTest(arguments=arguments):
                self.assert_refused(self.run_program(*start, *two, *arguments, ranks=2), code, *words)
        self.assertEqual(support.snapshot(self.folder / "run"), before)

    def test_formats_and_bytes_of_what_is_measured(self):
        """Two blocks of 16384 elements in 416 rows; groups have a scale of two bytes, rows one of four."""
        count = 2 * 16384
        cases = {(): ("none", 4 * count), ("weights=int8",): ("int8", count + 4 * 2 * 416),
                 ("weights=int8", "activations=dynamic-int8"):
                     ("int8, dynamic-int8 activations", count + 4 * 2 * 416),
                 ("weights=int4", "group=16"): ("int4 groups of 16", count // 2 + 2 * count // 16)}
        whole = None
        for keys, (words, matrices) in cases.items():
            with self.subTest(keys=keys):
                _, found = self.evaluate("--checkpoint", "run/checkpoints",
                                         settings=[f"quantization.{key}" for key in keys])
                whole = whole or found

                self.assertEqual([found[key] for key in ("precision", "quantization", "frozen_format", "adapter_rank",
                                                         "ranks")], ["fp32", words, "fp32", 0, 1])
                self.assertEqual(found["matrix_bytes"], matrices)
                # Embedding and head of 257 tokens and the norms stay as they are; the rest is padding.
                self.assertGreaterEqual(found["parameter_bytes"] - matrices, 4 * (49376 - count))
                self.assertLess(found["parameter_bytes"] - matrices, 4 * (49376 - count) + 16384)
                self.assertGreater(found["memory_peak_bytes"], found["parameter_bytes"])
                self.assertAlmostEqual(found["tokens_per_second"] * found["seconds"] / found["tokens"], 1, places=9)
                self.assertLess(abs(found["loss"] / whole["loss"] - 1), 0.02)

    def test_bytes_are_of_all_ranks_and_the_peak_of_one(self):
        int4 = ("quantization.weights=int4", "quantization.group=16")
        _, one = self.evaluate("--checkpoint", "run/checkpoints", settings=int4)
        _, data = self.evaluate("--checkpoint", "run/checkpoints", settings=int4, ranks=2)
        _, tensor = self.evaluate("--checkpoint", "run/checkpoints", settings=int4, ranks=2, layout=("parallel.tensor=2",))

        self.assertEqual((data["ranks"], data["matrix_bytes"]), (2, 2 * one["matrix_bytes"]))
        self.assertEqual(data["parameter_bytes"], 2 * one["parameter_bytes"])
        self.assertEqual(data["memory_peak_bytes"], one["memory_peak_bytes"])
        self.assertEqual(tensor["matrix_bytes"], one["matrix_bytes"])
        self.assertLess(tensor["memory_peak_bytes"], one["memory_peak_bytes"])

    def test_a_loss_that_is_not_finite_is_an_error(self):
        settings = ("model.norm=none", "train.steps=1", "schedule.warmup_steps=0", "train.validate_every=0")
        self.train("sound", *settings)
        self.train("lost", *settings, "optimizer.lr=1.0e+30")
        for ranks in (1, 2):
            result = self.run_program("eval", "deck.yaml", "--checkpoint", "sound/checkpoints", "--checkpoint",
                                      "lost/checkpoints", "--json", "lost.json",
                                      *support.overrides(*settings, f"parallel.data={ranks}"), ranks=ranks)

            self.assert_refused(result, 7, "lost/checkpoints", "loss of step 1 is", "no finite number")
            losses = [row["loss"] for row in json.loads((self.folder / "lost.json").read_text(encoding="utf-8"))]
            self.assertGreater(losses[0], 0)
            self.assertIsNone(losses[1])


if __name__ == "__main__":
    support.main()
