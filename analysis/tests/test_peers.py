# SPDX-License-Identifier: Apache-2.0
"""Speed beside another program."""
from __future__ import annotations

from pathlib import Path

from analysis.tests.commands import CommandTest, cells, run_command

HEAD = "work,machine,unit,hyperslab,other,source\n"


class Peers(CommandTest):
    def table(self, text: str) -> Path:
        path = self.folder / "table.csv"
        path.write_text(text, encoding="utf-8")
        return path

    def test_ratios_say_how_many_times_as_fast(self) -> None:
        path = self.table(HEAD + "a,1 GPU,tokens/s,300,200,x.txt\nb,1 GPU,ms,2,5,x.txt\n")

        code, out, err = run_command("peers", path, "--output", self.output)

        self.assertEqual((code, err), (0, ""))
        self.assertEqual(cells(out, "a, 1 GPU"), ["1.50"])
        self.assertEqual(cells(out, "b, 1 GPU"), ["2.50"])
        self.expect_png(self.output / "peers.png", at_least=5_000)

    def test_errors_are_one_line(self) -> None:
        row = "a,1 GPU,tokens/s,300,200,x.txt\n"
        for text, says in ((HEAD, "no row"), ("work,unit\n" + row, "expected the columns"),
                           (HEAD + row.replace("tokens/s", "miles"), "unit 'miles'"),
                           (HEAD + row.replace("200", "much"), "table.csv:2"),
                           (HEAD + row.replace(",200,x.txt", ""), "table.csv:2"),
                           (HEAD + row.replace("200", "0"), "above 0"), (HEAD + row.replace("200", "nan"), "finite")):
            with self.subTest(says=says):
                self.expect_error("peers", self.table(text), "--output", self.output, says=says)
        (self.folder / "utf16.csv").write_text(HEAD, encoding="utf-16")
        self.expect_error("peers", self.folder / "utf16.csv", "--output", self.output, says="no CSV file")
        self.expect_error("peers", self.folder / "absent.csv", "--output", self.output, says="cannot read")
