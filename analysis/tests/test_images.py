# SPDX-License-Identifier: Apache-2.0
"""Runs that sort images: curves, tables and columns of top-1 and top-5."""
from __future__ import annotations

import csv
import json
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from analysis.images import Prediction, chosen, class_name, mark
from analysis.learning import draw_steps
from analysis.packed_images import PackedImages
from analysis.report.page import panel_words
from analysis.runs import Metrics, Run, find_runs, read_metrics
from analysis.scaling import read_cases
from analysis.style import plt
from analysis.study.columns import COLUMNS
from analysis.study.live import rate_text
from analysis.study.measured import eval_values, images_per_second, train_values
from analysis.subject import parameter_count
from analysis.tests.commands import CommandTest, cells, run_command
from analysis.tests.fake_runs import image_metrics_row, metrics_row, write_deck, write_metrics, write_scaled

TI16 = {"family": "vit", "layers": "12", "width": "192", "heads": "3", "kv_heads": "3", "ffn_width": "768",
        "vocabulary": "1000", "context": "197", "position": "learned", "norm": "layernorm", "norm_place": "pre",
        "activation": "gelu", "bias": "true", "tie_embeddings": "false", "image": "224", "patch": "16", "channels": "3",
        "classes": "1000", "pooling": "token", "drop_path": "0.1", "label_smoothing": "0.1"}


def titles(metrics: list[Metrics]) -> list[str]:
    figure = draw_steps(metrics)
    try:
        return [axes.get_title(loc="left") for axes in figure.axes]
    finally:
        plt.close(figure)


class Images(CommandTest):
    def setUp(self) -> None:
        super().setUp()
        self.images, self.text = self.folder / "images", self.folder / "text"
        write_metrics(self.images, [image_metrics_row(step) for step in range(1, 101)])
        write_metrics(self.text, [metrics_row(step) for step in range(1, 101)])

    def read(self, *paths: Path) -> list[Metrics]:
        return [read_metrics(run) for run in find_runs([str(path) for path in paths])]

    def test_panels_are_of_what_runs_sort_or_read(self) -> None:
        self.assertEqual(titles(self.read(self.images)), ["loss (nats)", "top-1 (%)", "top-5 (%)"])
        self.assertEqual(titles(self.read(self.images, self.text)),
                         ["loss (nats per token)", "perplexity", "token accuracy (%)", "top-1 (%)", "top-5 (%)"])
        self.assertEqual(panel_words(self.read(self.images)), "Loss, top-1 and top-5")

    def test_tables_name_top1_and_images_per_second(self) -> None:
        code, _, err = run_command("learning", self.images, "--output", self.output)

        self.assertEqual((code, err), (0, ""))
        self.expect_png(self.output / "learning_steps.png")
        text = (self.output / "learning.txt").read_text()
        last = image_metrics_row(100)
        self.assertEqual(cells(text, "validation top-1, last (%)"), [f"{100 * last['validation_top1']:.2f}"])
        self.assertEqual(cells(text, "training top-5, last (%)"), [f"{100 * last['top5']:.2f}"])
        self.assertEqual(cells(text, "images/s, median"), ["693"])
        for word in ("perplexity", "token"):
            self.assertNotIn(word, text)
        best = max(image_metrics_row(step)["validation_top1"] for step in (50, 100))
        self.assertEqual(cells(text, "validation top-1, best (%)"), [f"{100 * best:.2f}"])

    def test_text_beside_images_has_dashes(self) -> None:
        run_command("learning", self.images, self.text, "--output", self.output)

        text = (self.output / "learning.txt").read_text()
        self.assertEqual(cells(text, "validation perplexity, last")[0], "-")
        self.assertEqual(cells(text, "validation top-1, last (%)")[1], "-")

    def test_summary_reports_top1_and_top5(self) -> None:
        out = run_command("summary", self.images)[1]

        self.assertIn("step 100, 693 images/s", out)
        self.assertRegex(out, r"validation: loss \S+ -> \S+, top-1 \S+ %, top-5 \S+ %")
        self.assertNotIn("perplexity", out)

    def test_a_study_has_columns_of_them(self) -> None:
        write_deck(self.images, model__family="vit", train__global_batch=64)
        write_scaled(self.images, (1, 1, 1, 1), {"forward": 99.0}, tokens=64 * 65)

        values, notes = train_values(self.images, 5)

        self.assertEqual(notes, [])
        self.assertLessEqual({"top1", "top5", "best_top1", "images_per_second"}, COLUMNS.keys())
        self.assertAlmostEqual(values["top1"], image_metrics_row(100)["validation_top1"])
        self.assertAlmostEqual(values["top5"], image_metrics_row(100)["validation_top5"])
        self.assertAlmostEqual(values["images_per_second"], 640.0)
        self.assertAlmostEqual(read_cases(Run(self.images, "images"), 5)[0][0].images_per_second, 640.0)

    def test_evaluations_of_images_have_no_perplexity(self) -> None:
        path = self.folder / "eval.json"
        path.write_text(json.dumps({"loss": 1.5, "top1": 0.5, "top5": 0.75, "images": 100, "images_per_second": 320.0}))

        values = eval_values(path)

        self.assertEqual((values["final_loss"], values["top1"], values["top5"]), (1.5, 0.5, 0.75))
        self.assertEqual(values["images_per_second"], 320.0)
        self.assertEqual(rate_text(json.loads(path.read_text())), "320 images/s")

    def test_bench_reports_images_of_vision_transformers_alone(self) -> None:
        each = {"median_seconds": 0.5}

        self.assertEqual(images_per_second({"model": "vit: 3 layers", "global_batch": 64}, each), 128.0)
        self.assertTrue(math.isnan(images_per_second({"model": "gpt2: 3 layers", "global_batch": 64}, each)))

    def test_parameters_are_counted_with_patches_and_classes(self) -> None:
        deck = {f"model.{key}": value for key, value in TI16.items()}

        self.assertEqual(parameter_count(deck), 5_717_416)  # timm's vit_tiny_patch16_224
        fixed = deck | {"model.position": "sincos2d", "model.pooling": "mean", "model.context": "196"}
        self.assertEqual(parameter_count(fixed), 5_717_416 - 197 * 192 - 192)
        unbiased = deck | {"model.unbiased_qkv": "true"}
        self.assertEqual(parameter_count(unbiased), 5_717_416 - 12 * 3 * 192)


class Sheets(CommandTest):
    def setUp(self) -> None:
        super().setUp()
        self.samples = self.folder / "samples.npy"
        np.save(self.samples, np.random.default_rng(1).integers(0, 256, (20, 16, 16, 3), dtype=np.uint8))
        self.predictions = self.folder / "predictions.csv"
        with self.predictions.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["index", "name", "label", "prediction", "correct"])
            writer.writerows([i, f"set.tar: {i}.jpg", i % 3, i % 3 if i % 5 else 2, int(i % 5 > 0)] for i in range(20))
        self.classes = self.folder / "set.json"
        self.classes.write_text(json.dumps({"classes": ["circle", "square", "triangle with a long name"]}))
        self.sheet = self.folder / "sheet.png"

    def test_augmented_images(self) -> None:
        code, out, err = run_command("images", "--samples", self.samples, "--output", self.sheet)

        self.assertEqual((code, out.strip(), err), (0, str(self.sheet), ""))
        self.assertEqual(self.sheet.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        self.assertGreater(self.sheet.stat().st_size, 20_000)

    def test_predictions_are_counted_and_named(self) -> None:
        code, out, err = run_command("images", "--samples", self.samples, "--predictions", self.predictions,
                                     "--classes", self.classes, "--images", 6, "--output", self.sheet)

        self.assertEqual((code, err), (0, ""))
        # Of the four that are marked as wrong, one (index 5) has label 2 all the same.
        self.assertIn("17 of 20 right (85.0 %); 3 of the 6 shown are wrong", out)
        self.assertTrue(self.sheet.is_file())

    def write_set(self, **changes: object) -> Path:
        """A packed set of two PPM images, the second one larger."""
        folder = self.folder / "set"
        folder.mkdir(exist_ok=True)
        encoded = [b"P6 2 1 255\n" + bytes(range(6)), b"P6 3 3 255\n" + bytes(27)]
        shard = b"x" * 512 + encoded[0] + b"y" * 100 + encoded[1]
        (folder / "shard_00000.tar").write_bytes(shard)
        np.save(folder / "index.npy", np.array([[0, 512, 17, 1], [0, 629, 38, 0]], np.int64))
        content = {"format": "hyperslab images", "version": 1, "classes": ["cat", "dog"],
                   "shards": [{"file": "shard_00000.tar"}]} | changes
        (folder / "set.json").write_text(json.dumps(content))
        return folder

    def test_images_of_a_packed_set(self) -> None:
        folder = self.write_set()
        images = PackedImages(folder)
        predictions = self.folder / "two.csv"
        predictions.write_text("index,label,prediction\n0,1,1\n1,0,1\n")

        code, out, _ = run_command("images", "--samples", folder, "--predictions", predictions, "--output", self.sheet)

        self.assertEqual((code, images.classes, images.labels.tolist()), (0, ["cat", "dog"], [1, 0]))
        np.testing.assert_array_equal(images[0], np.arange(6, dtype=np.uint8).reshape(1, 2, 3))
        self.assertEqual(images[1].shape, (3, 3, 3))
        self.assertIn("1 of 2 right (50.0 %)", out)
        predictions.write_text("index,label,prediction\n0,1,1\n1,1,1\n")
        self.expect_error("images", "--samples", folder, "--predictions", predictions, "--output", self.sheet,
                          says="image 1 has label 1, in")
        shard = folder / "shard_00000.tar"
        shard.write_bytes(shard.read_bytes()[:-3])
        self.expect_error("images", "--samples", folder, "--output", self.sheet, says="image 1 is broken (")
        self.expect_error("images", "--samples", self.write_set(version=9), "--output", self.sheet, says="version 9")
        (folder / "set.json").unlink()
        self.expect_error("images", "--samples", folder, "--output", self.sheet, says="has no set.json")

    def test_of_grey_of_16_bits_the_high_byte_is_shown(self) -> None:
        folder = self.write_set()
        grey = np.array([[0x1234, 0xFF00]], np.uint16)
        rows = struct.pack(">B2H", 0, *grey[0])
        encoded = b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            for kind, data in ((b"IHDR", struct.pack(">IIBBBBB", 2, 1, 16, 0, 0, 0, 0)), (b"IDAT", zlib.compress(rows)),
                               (b"IEND", b"")))
        (folder / "shard_00000.tar").write_bytes(encoded)
        np.save(folder / "index.npy", np.array([[0, 0, len(encoded), 1]], np.int64))

        np.testing.assert_array_equal(PackedImages(folder)[0], [[[0x12] * 3, [0xFF] * 3]])

    def test_right_and_wrong_share_the_sheet(self) -> None:
        reported = [Prediction(i, 0, 0 if i < 18 else 1) for i in range(20)]

        self.assertEqual([each.index for each in chosen(reported, 20, 4)], [0, 9, 18, 19])
        self.assertEqual(len(chosen(reported, 20, 20)), 20)
        self.assertEqual([each.index for each in chosen(reported[18:], 20, 2)], [18, 19])
        self.assertEqual([each.index for each in chosen(reported, 3, 8)], [0, 1, 2])

    def test_a_wrong_one_says_label_and_prediction(self) -> None:
        _, (right, wrong) = plt.subplots(1, 2)
        self.addCleanup(plt.close)

        mark(right, Prediction(0, 1, 1), ["red_cross", "red_disc"])
        mark(wrong, Prediction(0, 0, 1), ["red_cross", "red_disc"])

        self.assertEqual((right.get_xlabel(), wrong.get_xlabel()), ("red_disc", "red_cross,\npredicted red_disc"))

    def test_names_are_short_and_may_be_missing(self) -> None:
        self.assertEqual(class_name(["a" * 40], 0), "a" * 19 + "...")
        self.assertEqual(class_name([], 7), "7")

    def test_other_files_are_refused_by_name(self) -> None:
        np.save(self.folder / "floats.npy", np.zeros((2, 4, 4, 3), np.float32))
        (self.folder / "text.npy").write_text("no array")
        (self.folder / "columns.csv").write_text("index,label\n0,1\n")
        (self.folder / "words.csv").write_text("index,label,prediction\n0,cat,1\n")
        (self.folder / "none.csv").write_text("index,label,prediction\n")
        (self.folder / "far.csv").write_text("index,label,prediction\n99,1,1\n")
        (self.folder / "list.json").write_text("[]")
        output = ("--output", self.sheet)
        self.expect_error("images", "--samples", self.folder / "floats.npy", *output, says="holds float32 of shape")
        self.expect_error("images", "--samples", self.folder / "text.npy", *output, says="no .npy file")
        self.expect_error("images", "--samples", self.folder / "gone.npy", *output, says="No such file")
        self.expect_error("images", "--samples", self.samples, "--output", self.folder / "a.jpg", says="a .png file")
        self.expect_error("images", "--samples", self.samples, "--images", 65, *output, says="at most 64")
        for name, says in (("columns", "no column prediction"), ("words", ":2: expected whole numbers"),
                           ("none", "names no image"), ("far", "is of the 20 images")):
            self.expect_error("images", "--samples", self.samples, "--predictions", self.folder / f"{name}.csv",
                              *output, says=says)
        self.expect_error("images", "--samples", self.samples, "--classes", self.folder / "list.json", *output,
                          says="no list `classes`")
