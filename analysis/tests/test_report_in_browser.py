# SPDX-License-Identifier: Apache-2.0
"""The page of a report as a browser without a network sees it."""
from __future__ import annotations

import re
import shutil
import subprocess
import unittest
from pathlib import Path

import matplotlib.image
import numpy

from analysis.tests.commands import run_command
from analysis.tests.study_case import StudyTest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LEAST_DEVIATION = 0.02  # of the brightness of pixels, from 0 to 1


def drawings(page: str) -> list[str]:
    return re.findall(r"(?s)<svg .*?</svg>", page)


@unittest.skipUnless(BROWSER, "no Chromium (apt install chromium)")
class Browser(StudyTest):
    def setUp(self) -> None:
        super().setUp()
        self.write(scaling="strong", axes={"ranks": [1, 2]},
                   plots=[{"kind": "bars", "name": "time", "title": "Time", "x": "ranks", "y": ["step_seconds"]}])
        code, _, err = self.run_study()
        self.assertEqual(code, 0, err)
        run_command("report", "runs/tiny")
        self.page = Path("runs/tiny/report/report.html").resolve()

    def browse(self, *options: str) -> subprocess.CompletedProcess[str]:
        assert BROWSER is not None
        return subprocess.run(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--log-level=0",
             "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={Path('browser').resolve()}", *options,
             self.page.as_uri()], capture_output=True, text=True, timeout=120, check=True)

    def test_loads_without_errors_and_without_a_network(self) -> None:
        seen = self.browse("--dump-dom")

        self.assertNotRegex(seen.stderr, r"CONSOLE|ERR_|Failed to load")
        self.assertIn("</html>", seen.stdout)
        self.assertEqual(re.findall(r'(?:src|href)="(?!data:|#|https?://)[^"]*"', self.page.read_text("utf-8")), [])
        self.assertEqual(len(drawings(seen.stdout)), len(drawings(self.page.read_text("utf-8"))))

    def test_figures_are_not_blank(self) -> None:
        found = drawings(self.browse("--dump-dom").stdout)

        self.assertGreater(len(found), 0)
        for drawing in found:
            self.assertGreater(drawing.count("<path"), 20)  # marks, lines and letters

    def test_the_page_is_drawn(self) -> None:
        shot = Path("page.png").resolve()
        self.browse(f"--screenshot={shot}", "--window-size=1000,2000")

        pixels = matplotlib.image.imread(shot)[..., :3]
        self.assertGreater(float(numpy.std(pixels.mean(axis=-1))), LEAST_DEVIATION)


if __name__ == "__main__":
    unittest.main()
