# SPDX-License-Identifier: Apache-2.0
"""Sentences on many rows of a study: how far a change reaches over all pairs of rows that differ in it alone."""
from __future__ import annotations

import math
from statistics import median
from typing import Sequence

from analysis.report.studies import beside_base, change_of, shown_columns, words_of
from analysis.study.columns import LOSSES, RATES, SAME, change_words
from analysis.study.draw import numbers_of
from analysis.study.record import DONE, OUT_OF_MEMORY
from analysis.study.rows import Result, Row
from analysis.study.spec import Axis
from analysis.study.tabulate import columns_of
from analysis.tables import counted

Pairs = list[tuple[Row, Row]]  # a row, and the one that it is compared with
SIZES = ("deck", "size")  # axes that are ordered though their labels are no numbers
MEMORY = "memory_peak_bytes"
SAME_MEMORY, SAME_SPEED = 0.005, 0.02  # changes that are called none
FAST = "times as fast"
# By the signs of the changes of memory and of the rate.
VERDICTS = {(-1, -1): "it trades speed for memory", (-1, 1): "it saves memory and is faster", (1, 1): "it trades memory for speed",
            (1, -1): "it costs memory and speed", (-1, 0): "it saves memory at the same speed", (0, 1): "it is faster with the same memory",
            (1, 0): "it costs memory", (0, -1): "it is slower with the same memory"}


def base_pairs(result: Result) -> dict[str, Pairs]:
    """By what differs, such as "tf32 beside fp32"."""
    found: dict[str, Pairs] = {}
    for row in result.rows:
        base = result.base_of(row)
        if base is not None and base is not row and row.state == DONE:
            found.setdefault(beside_base(result, row, base)[1], []).append((row, base))
    return found


def axis_pairs(result: Result, axis: Axis) -> tuple[str, Pairs]:
    """The last value of an axis beside its first, for every choice of the others."""
    first, last = axis.labels[0], axis.labels[-1]
    by_others = {tuple(label for name, label in row.labels.items() if name != axis.name): row for row in result.rows
                 if row.labels.get(axis.name) == first and row.state == DONE}
    pairs = [(row, by_others[others]) for row in result.rows if row.labels.get(axis.name) == last and row.state == DONE
             for others in [tuple(label for name, label in row.labels.items() if name != axis.name)] if others in by_others]
    own, other = (words_of(result, {axis.name: label}) for label in (last, first))
    return f"{own} beside {other}", pairs


def ordered_axes(result: Result) -> list[Axis]:
    """Sizes, contexts, batches: axes along which more and less mean something."""
    return [axis for axis in result.axes if len(axis.labels) > 1 and axis.name not in result.study.base
            and (axis.name in SIZES or numbers_of(axis.labels))]


def known_pairs(pairs: Pairs, name: str) -> Pairs:
    return [(row, base) for row, base in pairs if base.value(name) > 0 and not math.isnan(row.value(name))
            and row.can_be_compared(base, name)]


def range_of(result: Result, pairs: Pairs, name: str) -> str:
    """Such as "peak memory -40.0 % to -12.5 %"; of one pair with its values; empty if nothing was measured."""
    found = known_pairs(pairs, name)
    if len(found) == 1:
        return change_of(result, *found[0], name)
    if not found:
        return ""
    each = columns_of(result, [row for row, _ in found], [name])[0]

    def size(pair: tuple[Row, Row]) -> float:
        old, new = pair[1].value(name), pair[0].value(name)
        return new - old if name in LOSSES else new / old

    title, ends = each.title.split(" (")[0], [min(found, key=size), max(found, key=size)]
    least, most = (change_words(each, pair[1].value(name), pair[0].value(name)) for pair in ends)
    if FAST in least + most:  # both ends in one way
        low, high = (f"{size(pair):.1f}" for pair in ends)
        return f"{title} {low if low == high else f'{low} to {high}'} {FAST}"
    unit = " nats" if name in LOSSES else ""
    return f"{title} {least if least == most else f'{least} to {most}'}{unit}"


def range_sentence(result: Result, what: str, pairs: Pairs) -> str:
    """Of all columns that the study reports; empty without any."""
    parts = [text for text in (range_of(result, pairs, name) for name in shown_columns(result)) if text]
    several = f" ({counted(len(pairs), 'pair')})" if len(pairs) > 1 else ""
    return f"{what}{several}: {'; '.join(parts)}." if parts else ""


def median_change(pairs: Pairs, name: str) -> float:
    changes = [row.value(name) / base.value(name) - 1.0 for row, base in known_pairs(pairs, name)]
    return median(changes) if changes else math.nan


def sign(change: float, same: float) -> int:
    return 0 if abs(change) < same else 1 if change > 0 else -1


def verdict(result: Result, what: str, pairs: Pairs) -> str:
    """What is paid for what, by the medians of memory and rate; empty if one was not measured or nothing changed."""
    rate = next((name for name in RATES if name in shown_columns(result)), "")
    memory, speed = median_change(pairs, MEMORY), median_change(pairs, rate) if rate else math.nan
    if MEMORY not in shown_columns(result) or math.isnan(memory) or math.isnan(speed):
        return ""
    signs = sign(memory, SAME_MEMORY), sign(speed, SAME_SPEED)
    if signs == (0, 0):
        return ""
    every = "" if len(pairs) == 1 else f", in the median of {counted(len(pairs), 'pair')}"
    return f"{what}: {VERDICTS[signs]} ({percent('memory', memory)}, {percent(rate_title(rate), speed)}{every})."


def percent(what: str, change: float) -> str:
    return f"{what} {100 * change:+.1f} %" if abs(change) >= SAME else f"{what} unchanged"


def rate_title(name: str) -> str:
    return "images/s" if name.startswith("images") else "tokens/s"


def range_sentences(result: Result) -> list[str]:
    """Beside the base; of a study without one nothing."""
    return [text for text in (range_sentence(result, what, pairs) for what, pairs in base_pairs(result).items()) if text]


def trade_sentences(result: Result) -> list[str]:
    """What changes beside the base cost and gain, and what more of an axis does."""
    found = [verdict(result, what, pairs) for what, pairs in base_pairs(result).items()]
    found += [range_sentence(result, *axis_pairs(result, axis)) for axis in ordered_axes(result)]
    return [text for text in found if text]


def memory_sentence(rows: Sequence[Row]) -> str:
    gone = sum(row.state == OUT_OF_MEMORY for row in rows)
    return f"{gone} of {counted(len(rows), 'row')} ran out of memory." if gone else ""

