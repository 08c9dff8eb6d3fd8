# SPDX-License-Identifier: Apache-2.0
"""How many times as fast as a peer: bars from a table of results measured beside it.

The table is a CSV file with the columns work, machine, unit (tokens/s, or ms of a step), hyperslab,
one column named after the peer, and source, the file that says how the row was measured.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from analysis.csv_files import read_csv
from analysis.errors import UserError
from analysis.style import RUN_COLOURS, add_head, plt, save
from analysis.tables import output_folder, text_table

COLUMNS = ("work", "machine", "unit", "hyperslab", "source")
HIGHER_IS_FASTER = {"tokens/s": True, "ms": False}


@dataclass(frozen=True)
class Row:
    """One measurement beside the peer."""

    label: str
    ratio: float  # how many times as fast as the peer


def read_row(where: str, row: dict[str, str], peer: str) -> Row:
    """A line of the table, which is at `where`; UserError if it cannot be a measurement."""
    if row["unit"] not in HIGHER_IS_FASTER:
        raise UserError(f"{where}: unit '{row['unit']}' is not one of {', '.join(HIGHER_IS_FASTER)}")
    try:
        ours, theirs = float(row["hyperslab"]), float(row[peer])
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error
    if not (0 < ours < math.inf and 0 < theirs < math.inf):
        raise UserError(f"{where}: a measured value is above 0, and finite")
    ratio = ours / theirs if HIGHER_IS_FASTER[row["unit"]] else theirs / ours
    return Row(f"{row['work']}, {row['machine']}", ratio)


def read_table(path: Path) -> tuple[str, list[Row]]:
    """The name of the peer and all rows."""
    names, lines = read_csv(path)
    peers = [name for name in names if name not in COLUMNS]
    if len(peers) != 1 or set(COLUMNS) - set(names):
        raise UserError(f"{path}: expected the columns {', '.join(COLUMNS)} and one more, the peer's")
    if not lines:
        raise UserError(f"{path}: no row")
    return peers[0], [read_row(f"{path}:{number}", row, peers[0]) for number, row in lines]


def compare_with_peers(path: Path, output: Path) -> str:
    """Writes peers.png, .pdf and .svg to output; returns the ratios as a table."""
    peer, rows = read_table(path)
    name = {"pytorch": "PyTorch"}.get(peer, peer)
    figure, axes = plt.subplots(figsize=(7.5, max(3.3, 1.2 + 0.38 * len(rows))))
    top = add_head(figure, f"Speed as a multiple of {name}'s", "measured in the same run on the same GPUs")
    positions = list(range(len(rows), 0, -1))
    bars = axes.barh(positions, [row.ratio for row in rows], height=0.62, color=RUN_COLOURS[0])
    axes.bar_label(bars, [f"{row.ratio:.2f}" for row in rows], padding=4)
    axes.axvline(1.0, color="#000000", linewidth=1.0)
    axes.set_yticks(positions, [row.label for row in rows])
    axes.set_xlim(0.0, 1.1 * max(1.0, *(row.ratio for row in rows)))
    axes.set_xlabel(f"times {name}")
    axes.grid(visible=False, axis="y")
    figure.tight_layout(rect=(0.0, 0.0, 1.0, top))
    output_folder(output)
    save(figure, output / "peers")
    return text_table(["work", f"times {name}"], [[row.label, f"{row.ratio:.2f}"] for row in rows])
