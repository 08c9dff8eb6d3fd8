# SPDX-License-Identifier: Apache-2.0
"""The page of `report`: one file of HTML with its plots inside, for a screen or for paper."""
from __future__ import annotations

from html import escape
from typing import Sequence

from analysis.report_tables import (
    Table, base_text, communication_rows, deck_rows, machine_rows, mfu_note, numbered_title, part_rows, scaling_rows,
    slowest_rows, traffic_rows,
)
from analysis.runs import Run
from analysis.scaling import Case, Group

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; margin: 2rem auto;
  max-width: 80rem; padding: 0 1rem; }
h1, h2 { line-height: 1.2; }
figure { margin: 1rem 0; }
svg { width: 100%; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums;
  margin: 1rem 0; }
caption { text-align: left; font-weight: 600; padding: 0.3rem 0; }
th, td { border-bottom: 1px solid #bbb; padding: 0.25rem 0.6rem; text-align: right; }
thead th { border-bottom: 2px solid #555; vertical-align: bottom; }
th:first-child, td:first-child, .text td, .text th { text-align: left; }
tbody th { font-weight: 600; }
tr.base { background: #eef4fa; }
@media print {
  body { font-size: 10pt; margin: 0; max-width: none; }
  table { font-size: 7pt; }
  .wide { overflow: visible; }
  table, figure { break-inside: avoid; }
  h2 { break-after: avoid; }
  @page { size: A4 landscape; margin: 12mm; }
}
"""

METHOD = (
    "Seconds come from the timing files of every rank. A step lasts until its slowest rank ends "
    "it; the time per step is the median over steps, its spread the first and third quartile. The "
    "parts are means over ranks and over the steps between the quartiles, scaled to the median, so "
    "that they add up to it.",
    "Compute is forward and backward. Checkpoints per step are the mean over all steps, since the "
    "median step writes none. Other is what a rank's step has beyond its named parts. Skew "
    "is the time from the mean rank's end of a step to the slowest rank's.",
    "Speed-up is the ratio of tokens per second to the base, efficiency the speed-up divided by "
    "the ratio of ranks. The base is the fastest run with its rank count.",
    "Runs of equal tokens per step are strong scaling. Runs of equal tokens per step and rank are weak "
    "scaling if two rank counts have runs that are in no strong scaling, or one has and the runs begin at "
    "the fewest ranks: between strong runs of several batches equal tokens per rank are chance.",
    "Reductions are counted from start to end, each by itself: if several are under way at "
    "once their sum can exceed the step, the time with one or more under way cannot. What of it is "
    "waited for is exposed, and part of the step; waiting for slower ranks is no part of it, but "
    "stands by itself (wait). Tensor and pipeline communication is counted while a rank waits for "
    "it. "
    "Traffic is the mean over steps and over the ranks of a group: bytes of the buffers handed in, "
    "time in flight from each call to its end, and the time that the host waits.",
    "The slowest rank is the one with the most work of its own: its step without the time that it "
    "waits for other ranks, which ranks share.",
)


def html_table(caption: str, table: Table, text: bool = False, base: int = -1) -> str:
    header, rows = table
    lines = [f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption)}">',
             '<table class="text">' if text else "<table>",
             f"<caption>{escape(caption)}</caption>", "<thead><tr>"]
    lines += [f'<th scope="col">{escape(cell)}</th>' for cell in header]
    lines.append("</tr></thead><tbody>")
    for index, (first, *others) in enumerate(rows):
        is_base = index == base
        lines.append('<tr class="base">' if is_base else "<tr>")
        lines.append(f'<th scope="row">{escape(first)}{" (base)" if is_base else ""}</th>')
        lines += [f"<td>{escape(cell)}</td>" for cell in others]
        lines.append("</tr>")
    return "\n".join([*lines, "</tbody></table></div>"])


def group_section(number: int, group: Group, drawing: str) -> str:
    base = next(index for index, case in enumerate(group.cases) if case is group.base)
    traffic = traffic_rows(group)
    tables = {
        "Parts of a step, adding up to it": part_rows(group),
        "Communication": communication_rows(group),
        "Slowest rank": slowest_rows(group),
    }
    return "\n".join([
        f'<section aria-labelledby="title-{number}">',
        f'<h2 id="title-{number}">{escape(numbered_title(number, group))}</h2>',
        f"<p>{escape(base_text(group))}</p>",
        f"<figure>{drawing}<figcaption>Rate, speed-up and efficiency by ranks, and where the time of a "
        "median step went. Filled marks: the fastest layout of a rank count; hollow marks: others."
        "</figcaption></figure>",
        html_table("Time per step, rate, speed-up", scaling_rows(group), base=base),
        *([f"<p>{escape(mfu_note(group))}</p>"] if mfu_note(group) else []),
        *(html_table(caption, table, base=base) for caption, table in tables.items()),
        *([html_table("Traffic of a step and rank, by group", traffic)] if traffic[1] else []),
        "</section>"])


def deck_part(cases: Sequence[Case]) -> str:
    table = deck_rows(cases)
    if not table[1]:
        return "<p>The decks differ in nothing but names and layout.</p>"
    return html_table("Deck keys that differ, without names and layout", table, text=True)


def counted(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def page(groups: Sequence[Group], drawings: Sequence[str], runs: Sequence[Run],
         cases: Sequence[Case], notes: Sequence[str], skip: int) -> str:
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return "\n".join([
        "<!DOCTYPE html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<title>Scaling report</title>", f"<style>{STYLE}</style>", "</head>", "<body>", "<main>",
        "<h1>Scaling report</h1>",
        f"<p>{counted(len(cases), 'layout')} of {counted(len(runs), 'run')} in {counted(len(groups), 'group')}; "
        f"only runs of one group are compared. The first {skip} steps of each start are left out.</p>",
        f"<h2>Notes</h2><ul>{listed}</ul>" if notes else "",
        *(group_section(number, group, drawing)
          for number, (group, drawing) in enumerate(zip(groups, drawings), 1)),
        "<h2>Runs</h2>",
        html_table("Starts, hardware and commits", machine_rows(cases), text=True),
        deck_part(cases),
        "<h2>How it is measured</h2>", *(f"<p>{escape(text)}</p>" for text in METHOD),
        "</main>", "</body>", "</html>", ""])
