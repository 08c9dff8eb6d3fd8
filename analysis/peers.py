# SPDX-License-Identifier: Apache-2.0
"""How many times as fast as a peer: bars from a table of results measured beside it.

The table is a CSV file with the columns work, machine, unit (tokens/s, or ms of a step), hyperslab,
one column named after the peer, and source, the file that says how the row was measured.
"""
from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from analysis.errors import UserError
from analysis.style import RUN_COLOURS, add_head, plt, save

COLUMNS = ("work", "machine", "unit", "hyperslab", "source")
HIGHER_IS_FASTER = {"tokens/s": True, "ms": False}


@dataclass(frozen=True)
class Row:
    """One measurement beside the peer."""

    label: str
    ratio: float  # how many times as fast as the peer


def read_row(path: Path, number: int, row: dict[str, str], peer: str) -> Row:
    """One line of the table; UserError if it cannot be a measurement."""
    if row["unit"] not in HIGHER_IS_FASTER:
        raise UserError(f"{path}:{number}: unit '{row['unit']}' is not one of {', '.join(HIGHER_IS_FASTER)}")
    try:
        ours, theirs = float(row["hyperslab"]), float(row[peer])
    except ValueError as error:
        raise UserError(f"{path}:{number}: {error}") from error
    if ours <= 0 or theirs <= 0:
        raise UserError(f"{path}:{number}: a measured value is above 0")
    ratio = ours / theirs if HIGHER_IS_FASTER[row["unit"]] else theirs / ours
    return Row(f"{row['work']}, {row['machine']}", ratio)


def read_table(path: Path) -> tuple[str, list[Row]]:
    """The name of the peer and all rows."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            names = reader.fieldnames or []
            peers = [name for name in names if name not in COLUMNS]
            if len(peers) != 1 or set(COLUMNS) - set(names):
                raise UserError(f"{path}: expected the columns {', '.join(COLUMNS)} and one more, the peer's")
            rows = [read_row(path, number, row, peers[0]) for number, row in enumerate(reader, 2)]
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    if not rows:
        raise UserError(f"{path}: no row")
    return peers[0], rows


def peers_command(path: Path, output: Path) -> None:
    """Writes peers.png, .pdf and .svg to output and prints the ratios."""
    peer, rows = read_table(path)
    figure, axes = plt.subplots(figsize=(7.5, 0.9 + 0.38 * len(rows)))
    top = add_head(figure, "Speed as a multiple of PyTorch's", "the same GPUs, the same run, bf16"
                   if peer == "pytorch" else f"peer: {peer}")
    positions = range(len(rows), 0, -1)
    bars = axes.barh(list(positions), [row.ratio for row in rows], height=0.62, color=RUN_COLOURS[0])
    axes.bar_label(bars, [f"{row.ratio:.2f}" for row in rows], padding=4)
    axes.axvline(1.0, color="#000000", linewidth=1.0)
    axes.set_yticks(list(positions), [row.label for row in rows])
    axes.set_xlim(0.0, 1.1 * max(1.0, *(row.ratio for row in rows)))
    axes.grid(visible=False, axis="y")
    figure.tight_layout(rect=(0.0, 0.0, 1.0, top))
    output.mkdir(parents=True, exist_ok=True)
    save(figure, output / "peers")
    width = max(len(row.label) for row in rows)
    print("\n".join(f"{row.label:<{width}}  {row.ratio:5.2f}" for row in rows))
