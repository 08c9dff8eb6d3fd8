# SPDX-License-Identifier: Apache-2.0
"""The table of speeds: rows, what is recorded of one, and the check of what was recorded."""
from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from analysis.compare import speed

BENCH = {"tokens_per_second": 300.0, "device": "H", "commit": "abc", "memory_peak_bytes": 7}

# Stands for hyperslab: prints a deck, or writes what `bench` found.
PROGRAM = """\
import json, sys
words = sys.argv[1:]
if words[0] == "train":
    print("run:\\n  name: x")
else:
    open(words[words.index("--json") + 1], "w").write(json.dumps(%r))
"""


class Speed(unittest.TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.output = self.folder / "speed.jsonl"
        program = self.folder / "program.py"
        program.write_text(PROGRAM % BENCH, encoding="utf-8")
        self.binary = f"{sys.executable} {program}"

    def call(self, *words: object) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = speed.main([str(word) for word in words])
        return code, out.getvalue(), err.getvalue()

    def record(self, *ratios: float, hardware: str = "1 x H") -> None:
        with self.output.open("a", encoding="utf-8") as file:
            for ratio in ratios:
                file.write(json.dumps({"row": "small", "ratio": ratio, "hardware": hardware}) + "\n")

    def test_rows_are_decks_that_exist(self) -> None:
        code, out, _ = self.call("--list")

        self.assertEqual(code, 0)
        self.assertEqual(len(out.splitlines()), len(speed.ROWS))
        decks = Path(__file__).resolve().parents[2] / "inputs"
        for name, row in speed.ROWS.items():
            with self.subTest(row=name):
                self.assertTrue((decks / f"{row.deck}.yaml").is_file())

    def test_a_row_is_recorded_beside_its_peer(self) -> None:
        with mock.patch.object(speed, "torch_of", return_value={
                "tokens_per_second": 200.0, "torch": "2.0", "memory_peak_bytes": 9}):
            code, out, err = self.call("small", "--binary", self.binary, "--output", self.output)

        self.assertEqual((code, err), (0, ""))
        line = json.loads(self.output.read_text(encoding="utf-8"))
        self.assertEqual(line, json.loads(out))
        self.assertEqual((line["row"], line["ratio"], line["ours"], line["peer"]), ("small", 1.5, 300, 200))
        self.assertEqual((line["hardware"], line["commit"], line["versions"]["torch"]), ("1 x H", "abc", "2.0"))

    def test_fp8_stands_beside_bf16_of_the_program_itself(self) -> None:
        code, out, _ = self.call("llama-8b-fp8-vs-bf16", "--binary", self.binary, "--output", self.output)

        self.assertEqual((code, json.loads(out)["ratio"], json.loads(out)["peer_is"]), (0, 1.0, "hyperslab in bf16"))

    def test_a_ratio_that_fell_ends_with_one(self) -> None:
        self.record(1.20, 1.17)
        self.assertEqual(self.call("--check", "--output", self.output)[:2], (0, ""))

        self.record(1.10)
        self.record(2.0, hardware="another")
        code, out, _ = self.call("--check", "--output", self.output)

        self.assertEqual((code, out), (1, "small on 1 x H: 1.100 after 1.200, 8.3% less\n"))

    def test_another_peer_starts_anew(self) -> None:
        self.record(1.20)
        with self.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"row": "small", "ratio": 1.0, "hardware": "1 x H", "peer_is": "a faster one"}) + "\n")
        self.assertEqual(self.call("--check", "--output", self.output)[0], 0)

    def test_a_ratio_that_falls_a_little_each_time_is_found(self) -> None:
        self.record(1.20, 1.17, 1.14)
        self.assertEqual(self.call("--check", "--output", self.output)[0], 1)

    def test_a_peer_that_alone_ran_faster_is_no_loss(self) -> None:
        first = {"ratio": 1.64, "ours": 310, "versions": {"torch": "1"}}
        same = {"versions": {"torch": "1"}}
        for says, row, lines, code in (
                ("ours as fast", "small", [first, {"ratio": 1.5, "ours": 309, **same}], 0),
                ("ours slower", "small", [first, {"ratio": 1.5, "ours": 280, **same}], 1),
                ("ours slower than in between", "small", [first, {"ratio": 1.6, "ours": 336, **same}, {"ratio": 1.43, "ours": 300, **same}], 1),
                ("a peer of other versions", "small", [first, {"ratio": 1.5, "ours": 309, "versions": {"torch": "2"}}], 1),
                ("a first line without our rate", "small", [{"ratio": 1.64, **same}, {"ratio": 1.5, "ours": 309, **same}], 1),
                ("a row that does not wait for the host", "gpt2-124m-b64", [first, {"ratio": 1.5, "ours": 309, **same}], 1)):
            with self.subTest(says):
                self.output.write_text("".join(json.dumps({"row": row, "hardware": "1 x H", **line}) + "\n" for line in lines),
                                       encoding="utf-8")
                found, out, _ = self.call("--check", "--output", self.output)
                self.assertEqual((found, "the peer ran faster" in out), (code, code == 0))

    def test_errors_are_one_line(self) -> None:
        broken = self.folder / "broken.jsonl"
        broken.write_text('{"row": "small"}\n', encoding="utf-8")
        for words, says in ((("large",), "no row large"), ((), "name a row"),
                            (("--check", "--output", self.folder / "none"), "no such file"),
                            (("--check", "--output", broken), "broken.jsonl:1"),
                            (("small", "--binary", "false", "--output", self.output), "ended with 1")):
            with self.subTest(says=says):
                code, out, err = self.call(*words)
                self.assertEqual((code, out, len(err.splitlines())), (2, "", 1))
                self.assertIn(says, err)
        self.assertFalse(self.output.exists())

    def test_a_python_without_pytorch_is_named(self) -> None:
        script = "raise ModuleNotFoundError(\"No module named 'torch'\")"
        with self.assertRaisesRegex(speed.UserError, f"{sys.executable} has no PyTorch"):
            speed.output_of([sys.executable, "-c", script])

    def test_processors_of_one_name_differ_by_their_vectors(self) -> None:
        info = "processor : 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu {}\n"
        for flags, expected in (("avx2 avx512f avx512_bf16", "AMD EPYC, AVX512_BF16"), ("avx2 avx512f", "AMD EPYC, AVX-512"),
                                ("avx2", "AMD EPYC, AVX2"), ("sse2", "AMD EPYC")):
            self.assertEqual(speed.processor(info.format(flags)), expected)
        self.assertEqual(speed.processor(""), speed.platform.machine())

    def test_kernels_for_another_processor_are_other_hardware(self) -> None:
        row = speed.ROWS["tiny-17m-cpu"]
        with mock.patch.dict(os.environ, {name: "" for name in speed.KERNEL_VARIABLES}):
            plain = speed.hardware(row, "cpu")
        with mock.patch.dict(os.environ, {"OPENBLAS_CORETYPE": "Haswell"}):
            forced = speed.hardware(row, "cpu")
            self.assertTrue(forced.startswith(plain))
            self.assertIn("OPENBLAS_CORETYPE=Haswell", forced)
            self.assertEqual(speed.hardware(speed.ROWS["small"], "H"), "1 x H")


if __name__ == "__main__":
    unittest.main()
