#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decks and starts that are refused, in one line and without a trace; e2e/faults_test.py has more of them."""

import os
import shutil
import struct
import subprocess

import fault_support
import support


class Refused(fault_support.FaultCase):
    """Every refusal: exit code, the line, no file touched."""

    def refuse(self, code, words, *settings, deck="deck.yaml", ranks=0):
        """A training that must not begin."""
        before = support.snapshot(self.folder)
        result = self.run_program("train", deck, *support.overrides(*settings), ranks=ranks)
        self.assert_refused(result, code, *words)
        self.assertEqual(support.snapshot(self.folder), before)

    def refuse_on_two(self, words, *, program="", folder=""):
        """Rank 1 starts another program, or in another folder."""
        before = support.snapshot(self.folder)
        one = support.command("train", "deck.yaml", "--set", "parallel.data=2", ranks=1)
        other = [*one[1:3], *(["--wdir", folder] if folder else []), program or one[3], *one[4:]]
        found = subprocess.run([*one, ":", *other], cwd=self.folder, capture_output=True, timeout=60, check=False,
                               env={**os.environ, **support.QUICK_END})
        result = support.Result(found.returncode, b"", found.stderr.decode("utf-8", "replace"), 0)
        self.assert_refused(result, 2, *words)
        self.assertEqual(support.snapshot(self.folder), before)


class Fault03(Refused):
    """Values that are no whole number, and no number."""

    def test_whole_numbers(self):
        for value, word in {"1e3": "write 1000", "010": "looks octal", "1_000": "write 1000", ".nan": "whole number",
                            "-4": "between 1 and", "4.0": "write 4", '"4"': "leave the quotes out", "0x4": "write 4",
                            "~": "has no value", "[4]": "found a list", "100000000000000000000": "64 bits",
                            "\u0664": "whole number"}.items():
            with self.subTest(value):
                self.refuse(2, [f"model.heads={value}: ", word], f"model.heads={value}")

    def test_numbers(self):
        for value, word in {".nan": "finite", ".inf": "finite", "-1": "more than 0", "1e400": "out of the range",
                            "1e-400": "out of the range", "0": "more than 0"}.items():
            with self.subTest(value):
                self.refuse(2, [f"optimizer.lr={value}: ", word], f"optimizer.lr={value}")


class Fault04(Refused):
    """Decks that are no YAML text; a byte-order mark is accepted."""

    def test_bytes(self):
        for name, content, word in [("nul", b"run: {name: a\0b}\n", "nul.yaml:1:14: byte 0x00"),
                                    ("utf16", support.DECK.encode("utf-16"), "utf16.yaml:1:1: byte 0xFF"),
                                    ("two", b"run: {name: a}\n---\nrun: {name: b}\n", "two.yaml:3:1: a second YAML")]:
            with self.subTest(name):
                (self.folder / f"{name}.yaml").write_bytes(content)
                self.refuse(2, [word], deck=f"{name}.yaml")

    def test_pipes_and_devices(self):
        os.mkfifo(self.folder / "pipe.yaml")
        self.addCleanup((self.folder / "pipe.yaml").unlink)
        for deck in ("pipe.yaml", "/dev/null"):
            result = self.run_program("train", deck)  # which would wait for ever
            self.assert_refused(result, 2, f"{deck}: this is a pipe or a device, expected a deck")

    def test_byte_order_mark(self):
        (self.folder / "bom.yaml").write_bytes(b"\xef\xbb\xbf" + support.DECK.encode())

        result = self.run_program("train", "bom.yaml", "--stop-after", 1, "--set", "run.directory=bom")

        self.assertEqual(result.code, 0, result.err)


class Fault05(Refused):
    """Heads that tensor ranks cannot share."""

    def test_heads(self):
        self.refuse(2, ["4 ranks cannot share 6 heads; nearest: 2"], "model.heads=6", "model.width=48",
                    "parallel.tensor=4", ranks=4)


class Fault06(Refused):
    """More stages than parts of the model, and a name that is a path."""

    def test_stages(self):
        self.refuse(2, ["4 stages (4 x 1 virtual) are more than the 1 blocks, embedding and head; nearest: 3"],
                    "model.layers=1", "parallel.pipeline=4", ranks=4)

    def test_names(self):
        self.refuse(2, ["run.name=../../evil: must be a file name"], "run.name=../../evil")


class Fault09(Refused):
    """Rank 1 finds another deck."""

    def test_another_deck(self):
        (self.folder / "other").mkdir(exist_ok=True)
        (self.folder / "other/deck.yaml").write_text(support.DECK.replace("width: 32", "width: 64"), encoding="utf-8")
        shutil.copy(self.folder / "text.bin", self.folder / "other")

        self.refuse_on_two(["the ranks find different decks", "of rank 0 is ", "of rank 1 ",
                            "line 2 has 'width: 32' on rank 0 and 'width: 64' on rank 1"],
                           folder=str(self.folder / "other"))


class Fault10(Refused):
    """Rank 1 runs another program."""

    def test_another_program(self):
        program = self.folder / "other_program"
        shutil.copy(support.command()[0], program)
        with program.open("ab") as file:
            file.write(b"x")

        self.refuse_on_two(["started differently: build of rank 0 is ", "of rank 1 '"], program=str(program))


class Fault13(Refused):
    """Headers of token files that are not ours."""

    def test_headers(self):
        for name, order, words, word in [("version", "<", (20240520, 9, 5), "expected version 1"),
                                         ("count", "<", (20240520, 1, -5), "-5 tokens"),
                                         ("huge", "<", (20240520, 1, 2**31 - 1), "found 3024 bytes"),
                                         ("big", ">", (20240520, 1, 1000), "big-endian")]:
            with self.subTest(name):
                header = struct.pack(f"{order}256i", *words, *([0] * 253))
                (self.folder / f"{name}.bin").write_bytes(header + bytes(2000))
                self.refuse(3, [f"{name}.bin", word], f"data.train=[{name}.bin]")


class Fault38(Refused):
    """A GPU in a program without CUDA."""

    def test_no_gpu(self):
        self.refuse(2, ["run.device", "cuda"], "run.device=cuda")


class Fault39(Refused):
    """More memory than there is."""

    def test_memory(self):
        for settings in (("model.width=65536", "model.layers=96"), ("train.global_batch=16777216",)):
            with self.subTest(settings):
                result = self.run_program("train", "deck.yaml", *support.overrides(*settings))
                self.assert_refused(result, 6, "out of memory: ", "are free", "what would help: ")


if __name__ == "__main__":
    support.main()
