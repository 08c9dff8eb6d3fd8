# SPDX-License-Identifier: Apache-2.0
"""Why a cell of a table is a dash, by the column that it stands in."""
from __future__ import annotations

import re
from typing import Iterable, Sequence

DASH = "-"
NOT_MEASURED = "not measured"
# By the beginning or a part of a column's name; the first that fits.
REASONS = (
    ("MFU", "more ranks than cores, no metrics.jsonl, or a peak rate that is unknown or that a step exceeded"),
    ("exposed (% of", "nothing was in progress"),
    ("compute / communication", "no communication"),
    ("in flight", "a GPU measures it with timing.groups: true"),
    ("waited for", "a GPU measures it with timing.groups: true"),
    ("threads per rank", "not in the files of that version"),
    ("serial fraction", "of strong scaling alone"),
    ("speed-up", "no base to compare with"),
    ("efficiency", "no base to compare with"),
    (", change", "no base to compare with"),
    ("predicted", "nothing was predicted, or measured to compare with"),
    ("difference", "nothing was predicted, or measured to compare with"),
    ("validation", "no validation"),
)


def reason_of(first: str, column: str) -> str:
    """`first`: the name of the table's first column."""
    if first == "deck key" or re.fullmatch(r"[a-z]+\.\w+", column):
        return "the deck lacks the key"
    return next((reason for part, reason in REASONS if part in column), NOT_MEASURED)


def dash_note(tables: Iterable[tuple[Sequence[str], Sequence[Sequence[str]]]]) -> str:
    """Of headers and rows: every column that has a dash, and why; empty if none has."""
    columns: dict[str, dict[str, None]] = {}
    for header, rows in tables:
        for index, name in enumerate(header):
            if any(row[index] == DASH for row in rows):
                columns.setdefault(reason_of(header[0], name), {})[name] = None
    listed = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in columns.items())
    return f"Where a cell is a dash: {listed}." if listed else ""
