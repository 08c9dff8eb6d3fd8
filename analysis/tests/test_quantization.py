# SPDX-License-Identifier: Apache-2.0
"""`quantization`: recorded figures against ratios worked out by hand, and files that do not compare."""
from __future__ import annotations

import csv
import json
import unittest
from pathlib import Path
from typing import Any

from analysis.tests.commands import CommandTest, run_command
from analysis.tests.fake_runs import write_deck, write_metrics

MIB = 1 << 20
STORED = {"precision": "bf16", "quantization": "none", "frozen_format": "bf16", "adapter_rank": 0,
          "parameter_bytes": 100 * MIB, "matrix_bytes": 80 * MIB, "memory_peak_bytes": 200 * MIB,
          "tokens_per_second": 1000.0}
EVALUATED = {"checkpoint": "runs/a", "step": 9, "loss": 2.0, "perplexity": 8.0, "token_accuracy": 0.5, "tokens": 640,
             "stride": 32, "files": ["text.bin"], "seconds": 0.64} | STORED
DECODED = {"mode": "decode", "model": "llama: tiny", "device": "cpu", "context": 64, "rows": 1, "tokens": 32,
           "seconds": 0.32, "token_seconds": 0.01} | STORED | {"tokens_per_second": 100.0}
INT4 = {"quantization": "int4 groups of 64", "parameter_bytes": 40 * MIB, "matrix_bytes": 20 * MIB,
        "memory_peak_bytes": 150 * MIB}
MODEL = {"model__kv_heads": 2, "model__heads": 6, "model__ffn_width": 512, "model__vocabulary": 4096,
         "model__activation": "swiglu", "model__position": "rope", "model__norm": "rmsnorm", "model__norm_place": "pre",
         "model__bias": "false", "model__tie_embeddings": "false", "model__frozen_format": "compute"}


class Quantization(CommandTest):
    def write(self, name: str, content: Any, **changes: Any) -> Path:
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(content | changes if isinstance(content, dict) else content), encoding="utf-8")
        return path

    def run_of(self, name: str, peak: int, rate: float, losses: tuple[float, float], **deck: Any) -> Path:
        run = self.folder / name
        write_deck(run, **MODEL | {"data__train": "[a.bin]", "data__validation": "[b.bin]"} | deck)
        rows = [{"step": step, "loss": 3.0, "tokens_per_second": rate, "memory_peak_bytes": peak,
                 "tokens": 64 * step} for step in range(1, 7)]
        rows[2]["validation_loss"], rows[5]["validation_loss"] = losses
        write_metrics(run, rows)
        return run

    def compare(self, *words: object) -> tuple[str, str]:
        """What it printed, and the page."""
        code, out, err = run_command("quantization", *words, "--output", self.output)
        self.assertEqual((code, err), (0, ""))
        return out, (self.output / "quantization.md").read_text(encoding="utf-8")

    def table(self, kind: str) -> dict[str, dict[str, str]]:
        with (self.output / f"{kind}.csv").open(encoding="utf-8", newline="") as file:
            return {row["variant"]: row for row in csv.DictReader(file)}

    def test_evaluations_beside_the_base(self) -> None:
        few = self.write("few", EVALUATED, **INT4, loss=2.1, perplexity=8.2, token_accuracy=0.48,
                         tokens_per_second=1500.0)
        out, page = self.compare(few, self.write("whole", EVALUATED))
        row = self.table("evaluation")["few"]

        self.assertEqual(row["base"], "whole")
        self.assertAlmostEqual(float(row["perplexity_change"]), 0.025)
        self.assertAlmostEqual(float(row["parameter_bytes_ratio"]), 0.4)
        self.assertAlmostEqual(float(row["matrix_bytes_ratio"]), 0.25)
        self.assertAlmostEqual(float(row["memory_peak_bytes_ratio"]), 0.75)
        self.assertAlmostEqual(float(row["tokens_per_second_ratio"]), 1.5)
        self.assertIn("Beside whole, few (int4 groups of 64) takes 0.400 times the memory of its parameters, has a perplexity "
                      "of 8.200 against 8.000 (+2.50 %) and evaluates 1.500 times as many tokens a second.\n", out)
        self.assertIn("| few | int4 groups of 64 | 2.1000 | 8.200 | +2.50 | 48.00 | 40.0 | 0.400 | 20.0 | 0.250 | "
                      "150.0 | 0.750 | 1,500.0 | 1.500 |", page)
        self.assertLess(page.index("| whole "), page.index("| few "))
        self.expect_png(self.output / "evaluation.png")

    def test_several_checkpoints_of_one_file_are_rows_each(self) -> None:
        both = self.write("both", [EVALUATED, EVALUATED | INT4 | {"checkpoint": "runs/b"}])
        self.compare(both)

        self.assertEqual(list(self.table("evaluation")), ["both 1", "both 2"])

    def test_decoding_is_as_many_times_as_fast_as_a_token_is_shorter(self) -> None:
        few = self.write("few", DECODED, **INT4, token_seconds=0.004, tokens_per_second=250.0)
        out, _ = self.compare(self.write("whole", DECODED), few)
        row = self.table("decoding")["few"]

        self.assertAlmostEqual(float(row["token_seconds_speed"]), 2.5)
        self.assertAlmostEqual(float(row["tokens_per_second_ratio"]), 2.5)
        self.assertIn("makes a token in 4.000 ms against 10.000, 2.500 times as fast.", out)
        self.expect_png(self.output / "decoding.png")

    def test_ways_of_training(self) -> None:
        full = self.run_of("full", 400 * MIB, 100.0, (2.5, 2.6))
        lora = self.run_of("lora", 300 * MIB, 130.0, (2.7, 2.73), adapter__rank=8)
        qlora = self.run_of("qlora", 100 * MIB, 80.0, (2.8, 2.75), adapter__rank=4, model__frozen_format="nf4",
                            adapter__targets="[attention.query, attention.value]")
        fake = self.run_of("fake", 420 * MIB, 70.0, (2.6, 2.65), quantization__weights="int4", quantization__group=32)
        out, _ = self.compare(fake, lora, full, qlora)
        rows = self.table("training")

        self.assertEqual({name: row["weights"] for name, row in rows.items()},
                         {"full": "full", "fake": "fake quantization int4 groups of 32", "lora": "LoRA r 8",
                          "qlora": "QLoRA nf4 r 4"})
        # Width 192, 6 heads and 2 of keys and values: 64 columns of those; 4 layers.
        whole = 2 * 4096 * 192 + 4 * (2 * 192 ** 2 + 2 * 192 * 64 + 3 * 192 * 512 + 2 * 192) + 192
        lora_r8 = 4 * 8 * (2 * 384 + 2 * 256 + 3 * 704)
        self.assertEqual({name: int(row["trained_parameters"]) for name, row in rows.items()},
                         {"full": whole, "fake": whole, "lora": lora_r8, "qlora": 4 * 4 * (384 + 256)})
        self.assertAlmostEqual(float(rows["lora"]["memory_peak_bytes_ratio"]), 0.75)
        self.assertAlmostEqual(float(rows["lora"]["tokens_per_second_ratio"]), 1.3)
        self.assertAlmostEqual(float(rows["lora"]["validation_loss_change"]), 0.05)
        self.assertEqual((rows["lora"]["validation_loss"], rows["lora"]["best_validation_loss"]), ("2.73", "2.7"))
        self.assertIn("Beside full, qlora (QLoRA nf4 r 4) trains ", out)
        self.assertIn("takes 0.250 times the memory, goes through 0.800 times as many tokens a second and ends at a "
                      "validation loss of 2.7500 against 2.6000 (+5.77 %).\n", out)
        self.expect_png(self.output / "training.png")

    def test_kinds_have_a_base_each_and_one_can_be_named(self) -> None:
        whole, other = self.write("whole", EVALUATED), self.write("other", EVALUATED, perplexity=4.0)
        decoded = self.write("decoded", DECODED)
        self.expect_error("quantization", whole, other, "--output", self.output, says="--base: whole, other")
        out, page = self.compare(whole, other, decoded, "--base", "other")

        self.assertIn("Beside other, whole (bf16)", out)
        self.assertIn("(+100.00 %)", out)
        self.assertIn("| decoded | bf16 |", page)

    def test_a_studys_points_are_called_by_their_folders(self) -> None:
        for name, changes in (("base", {}), ("int4", INT4)):
            (self.folder / name).mkdir()
            (self.folder / name / "bench.json").write_text(json.dumps(EVALUATED | changes), encoding="utf-8")
        self.compare(self.folder / "base", self.folder / "int4")

        self.assertEqual(list(self.table("evaluation")), ["base", "int4"])

    def test_what_does_not_compare_is_refused(self) -> None:
        whole, few = self.write("whole", EVALUATED), self.write("few", EVALUATED, **INT4)
        other = self.write("other", EVALUATED, **INT4, files=["more.bin"])
        longer = self.write("longer", DECODED, **INT4, rows=4)
        old = self.write("old", {key: value for key, value in EVALUATED.items() if key != "matrix_bytes"})
        step = self.write("step", DECODED, mode="step")
        text = self.write("text", EVALUATED, parameter_bytes="many")
        lora = self.write("lora", EVALUATED, adapter_rank=8, frozen_format="nf4")
        cases = [((few,), "nothing without quantization and adapters to compare with"),
                 ((lora,), "nothing without quantization and adapters"),
                 ((whole, other), "other and whole do not compare: files is ['more.bin'] against ['text.bin']"),
                 ((self.write("decoded", DECODED), longer), "rows is 4 against 1"),
                 ((old,), "matrix_bytes is missing"), ((text,), "was the file damaged?"),
                 ((step,), "is neither of hyperslab eval --json nor of bench --mode decode --json, and no run"),
                 ((self.write("list", [1]),), "is neither of"), ((self.write("none", []),), "is neither of"),
                 ((self.folder / "nowhere",), "there is no"), ((self.folder,), "metrics.jsonl is missing"),
                 ((whole, few, "--base", "third"), "--base third is none of whole, few")]
        for words, says in cases:
            with self.subTest(says):
                self.expect_error("quantization", *words, "--output", self.output, says=says)
        (self.folder / "cut.json").write_text("{", encoding="utf-8")
        self.expect_error("quantization", self.folder / "cut.json", "--output", self.output, says="cannot read")

    def test_runs_on_other_data_are_refused(self) -> None:
        full = self.run_of("full", 1, 1.0, (2.0, 2.0), data__train="[synthetic]", run__seed=1)
        lora = self.run_of("lora", 1, 1.0, (2.0, 2.0), data__train="[synthetic]", run__seed=2, adapter__rank=8)
        self.expect_error("quantization", full, lora, "--output", self.output, says="run.seed is 2 against 1")


if __name__ == "__main__":
    unittest.main()
