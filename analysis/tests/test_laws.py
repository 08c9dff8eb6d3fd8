# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
import unittest
from typing import Any

from analysis.report.fits import amdahl, fit_amdahl, fit_gustafson, gustafson, karp_flatt
from analysis.report.sentences import trend_sentence
from analysis.tests.fake_runs import metrics_row, write_deck, write_metrics, write_scaled
from analysis.tests.test_report import FOUR, ONE, TWO, ReportTest


class Laws(unittest.TestCase):
    """Against fractions worked out by hand: S(2) = 5/3 and S(4) = 10/3."""

    def test_karp_flatt(self) -> None:
        self.assertAlmostEqual(karp_flatt(2, 5 / 3), 0.2)  # (0.6 - 0.5) / 0.5
        self.assertAlmostEqual(karp_flatt(4, 10 / 3), 1 / 15)  # (0.3 - 0.25) / 0.75
        self.assertAlmostEqual(karp_flatt(8, 8.0), 0.0)

    def test_amdahl(self) -> None:
        fit = fit_amdahl([(2, 5 / 3), (4, 10 / 3)])

        self.assertAlmostEqual(fit.serial, 0.0875 / 0.8125)  # sums of (1 - 1/p)(1/S - 1/p) and (1 - 1/p)^2
        self.assertAlmostEqual(fit.limit, 0.8125 / 0.0875)
        # 1 / (s + (1 - s) / 4) = 3.0233 for 3.3333
        self.assertAlmostEqual(fit.worst, 1 - amdahl(4, fit.serial) / (10 / 3))

    def test_gustafson(self) -> None:
        fit = fit_gustafson([(2, 1.9), (4, 3.6)])

        self.assertAlmostEqual(fit.serial, 0.13)  # (0.1 x 1 + 0.4 x 3) / (1 + 9)
        self.assertAlmostEqual(fit.worst, abs(1.87 / 1.9 - 1))

    def test_fits_find_the_share_that_made_the_numbers(self) -> None:
        for serial in (0.0, 0.03, 0.5):
            counts = (2, 3, 8, 64)
            self.assertAlmostEqual(fit_amdahl([(p, amdahl(p, serial)) for p in counts]).serial, serial)
            self.assertAlmostEqual(fit_gustafson([(p, gustafson(p, serial)) for p in counts]).serial, serial)

    def test_trends_say_what_the_fractions_do(self) -> None:
        for fractions, words in (([0.1], ""), ([0.1, 0.2], "rises with the ranks (from 0.1000 to 0.2000)"),
                                 ([0.2, 0.1], "falls with the ranks"), ([0.1, 0.105, 0.102], "stays within 0.01"),
                                 ([0.1, 0.3, 0.2], "neither rising nor falling")):
            self.assertIn(words, trend_sentence(fractions))
        self.assertEqual(trend_sentence([0.1]), "")


class Sections(ReportTest):
    def page(self, *words: object) -> str:
        self.report(*words)
        return (self.output / "report.html").read_text(encoding="utf-8")

    def test_sentences_are_those_of_the_numbers(self) -> None:
        page = self.page(self.write("one", (1, 1, 1, 1), ONE), self.write("two", (2, 1, 1, 1), TWO),
                         self.write("four", (4, 1, 1, 1), FOUR | {"reduce": 20.0}))

        for sentence in (
                "2 ranks (data 2) are 1.67 times as fast as 1 rank: 83.3 % of the ideal 2 times.",
                "4 ranks (data 4) are 3.33 times as fast as 1 rank: 83.3 % of the ideal 4 times.",
                "A median step of four (data 4) is 73.3 % forward and backward; 13.3 % exposed communication, "
                "6.7 % the optimizer, 3.3 % waiting for data, 3.3 % other.",
                "falls with the ranks (from 0.2000 to 0.0667): more ranks are faster than the fraction on the fewest",
                "a serial share of 0.1077 (fitted to 2 rank counts, from which its speed-ups differ by at most 9.3 %); "
                "it would limit the speed-up to 9.3 times the base."):
            self.assertIn(sentence, page)
        self.assertIn("<td>3.333</td>\n<td>3.023</td>\n<td>-9.3</td>\n<td>0.0667</td>", page)

    def test_weak_scaling_has_gustafsons_law(self) -> None:
        page = self.page(*(self.write(f"w{ranks}", (ranks, 1, 1, 1), {"forward": 99.0 + ranks}, tokens=512 * ranks,
                                      deck={"train__global_batch": 4 * ranks}) for ranks in (1, 2, 4)))

        # Steps of 101, 102 and 104 ms with the 1 ms beyond their parts: S = 2 x 101 / 102 and 4 x 101 / 104.
        serial = ((2 - 202 / 102) * 1 + (4 - 404 / 104) * 3) / 10
        self.assertIn(f"Gustafson&#39;s law has a serial share of the scaled work of {serial:.4f}", page)
        self.assertNotIn("Amdahl", page)

    def test_a_law_that_does_not_fit_is_said_not_to(self) -> None:
        page = self.page(self.write("one", (1, 1, 1, 1), ONE), self.write("two", (2, 1, 1, 1), {"forward": 39.0}),
                         self.write("four", (4, 1, 1, 1), {"forward": 79.0}))

        self.assertIn("too far for the law to describe these runs", page)
        self.assertIn("more than ideal", page)  # 2.5 times on 2 ranks

    def test_ranks_that_are_slower_than_one_have_no_limit(self) -> None:
        page = self.page(self.write("one", (1, 1, 1, 1), ONE), self.write("two", (2, 1, 1, 1), {"forward": 150.0}))

        self.assertIn("No number of ranks is faster than the base, so no law of speed-ups is fitted.", page)
        self.assertNotIn("Amdahl", page)
        self.assertNotIn("Karp", page)

    def test_single_runs_share_a_section_and_a_fit_to_one_rank_count_is_said_to_be_untested(self) -> None:
        named = (("none", 1), ("none", 2), ("selective", 1), ("full", 1))
        page = self.page(*(self.write(f"{name}{ranks}", (ranks, 1, 1, 1), TWO if ranks == 2 else ONE,
                                      deck={"memory__recompute": name}) for name, ranks in named))

        self.assertEqual(page.count("Runs that are in no group with others"), 1)
        self.assertIn("from one rank count alone, so that nothing tests it", page)
        self.assertNotIn("Layouts of one rank count", page)

    def test_optimizations_are_reported_with_source_and_pair(self) -> None:
        plain = self.write("plain", (1, 1, 1, 1), ONE, deck={"model__attention": "reference"})
        full = self.write("full", (1, 1, 1, 1), ONE | {"backward": 85.0},
                          deck={"model__attention": "reference", "memory__recompute": "full"})
        for run, loss in ((plain, 4.0), (full, 4.0)):
            write_metrics(run, [metrics_row(1) | {"loss": loss}])

        page = self.page(plain, full)

        self.assertIn("Optimization: Full recomputation", page)
        self.assertIn("T. Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016.", page)
        self.assertIn("full (one rank) beside plain (one rank): peak memory 100.0 to 100.0 MiB (unchanged); "
                      "tokens/s 40,960 to 32,768 (-20.0 %); final loss 4.0000 to 4.0000 nats (unchanged).", page)
        self.assertNotIn("Optimization: Fused attention", page)

    def test_a_pair_of_which_few_steps_were_measured_says_so(self) -> None:
        page = self.page(self.write("plain", (1, 1, 1, 1), ONE),
                         self.write("full", (1, 1, 1, 1), ONE | {"backward": 61.0}, deck={"memory__recompute": "full"}),
                         "--skip", 24)

        self.assertIn("(-1.0 %), measured over 1 step", page)

    def test_an_optimization_without_a_pair_claims_nothing(self) -> None:
        page = self.page(self.write("a", (1, 1, 1, 1), ONE, deck={"memory__recompute": "selective"}))

        self.assertIn("Used by 1 of 1 layout; no two runs differ in it alone, so these figures do not show its "
                      "effect.", page)

    def test_the_setup_opens_the_report(self) -> None:
        run = self.write("one", (1, 1, 1, 1), ONE)

        page = self.page(run)

        first = re.search(r"<h2[^>]*>([^<]*)</h2>", page)
        self.assertEqual(first[1] if first else "", "Setup")
        for cell in ("NVIDIA H200", "0123456789ab", "fp32", "32 samples, 4,096 tokens", str(run / "deck.yaml")):
            self.assertIn(f"<td>{cell}</td>", page)

    def test_predictions_stand_beside_what_was_measured(self) -> None:
        run = self.write("one", (1, 1, 1, 1), ONE)
        (run / "plan.json").write_text('{"memory_bytes": 110100480, "step_seconds": 0.09}', encoding="utf-8")

        page = self.page(run)

        self.assertIn("<td>105.00</td>\n<td>100.00</td>\n<td>5.0</td>\n<td>90.00</td>\n<td>100.00</td>\n<td>-10.0</td>",
                      page)
        self.assertIn("time of a step of the plans, made before each run, differs from the measured one by at most 10.0 %",
                      page)

    def test_markdown_has_the_same_tables(self) -> None:
        self.report(self.write("one", (1, 1, 1, 1), ONE))

        text = (self.output / "report.md").read_text(encoding="utf-8")
        self.assertTrue(text.startswith("# Scaling report\n\n1 layout of 1 run. The first 5 steps"))
        self.assertIn("\n| one | 1 | one rank | 1 | 20 | 100.00 |", text)
        self.assertNotRegex(text, r"\n\n\n")

    def test_runs_need_a_place_for_their_report(self) -> None:
        self.expect_error("report", *(self.write(name, (1, 1, 1, 1), ONE) for name in ("one", "two")), says="give --output DIR")


class Pdf(ReportTest):
    draws = True

    def test_the_page_is_a_pdf_too_or_a_note_says_why_not(self) -> None:
        run = self.folder / "one"
        deck: dict[str, Any] = {"parallel__data": 1}
        write_deck(run, **deck)
        write_scaled(run, (1, 1, 1, 1), ONE)

        out, _ = self.report(run)

        pdf = self.output / "report.pdf"
        if pdf.is_file():
            self.assertEqual(pdf.read_bytes()[:5], b"%PDF-")
            self.assertGreater(pdf.stat().st_size, 40_000)
        else:
            self.assertIn("note: there is no", out)


if __name__ == "__main__":
    unittest.main()
