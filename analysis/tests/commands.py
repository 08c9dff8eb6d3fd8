# SPDX-License-Identifier: Apache-2.0
"""Runs commands in this process, in a folder of their own."""
from __future__ import annotations

import contextlib
import io
import struct
import tempfile
import unittest
import warnings
from pathlib import Path

from analysis.__main__ import main


def run_command(*words: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    out, err = io.StringIO(), io.StringIO()
    with (contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
          warnings.catch_warnings()):
        warnings.simplefilter("error")
        code = main([str(word) for word in words])
    return code, out.getvalue(), err.getvalue()


def cells(text: str, first: str) -> list[str]:
    """The cells after the first cell `first` of the first such line."""
    line = next(line for line in text.splitlines() if line.startswith(first + "  "))
    return line[len(first):].split()


class CommandTest(unittest.TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.output = self.folder / "report"

    def expect_png(self, path: Path, at_least: int = 20_000) -> None:
        content = path.read_bytes()
        self.assertEqual(content[:8], b"\x89PNG\r\n\x1a\n")
        width, height = struct.unpack(">II", content[16:24])
        self.assertGreater(width, 800)
        self.assertGreater(height, 400)
        self.assertGreater(len(content), at_least)
        self.assertEqual(path.with_suffix(".pdf").read_bytes()[:5], b"%PDF-")
        self.assertIn(b"<svg", path.with_suffix(".svg").read_bytes()[:1000])

    def expect_error(self, *words: object, says: str) -> None:
        code, out, err = run_command(*words)
        self.assertEqual(code, 2)
        self.assertEqual(out, "")
        self.assertRegex(err, r"\Aanalysis: [^\n]+\n\Z")
        self.assertIn(says, err)
