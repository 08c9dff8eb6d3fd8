# SPDX-License-Identifier: Apache-2.0
"""What a study shows while it runs: a table that is drawn again on a terminal, else a line per event."""
from __future__ import annotations

import math
import shutil
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

from analysis.errors import UserError, one_line, visible
from analysis.first_steps import SKIPPED_STEPS
from analysis.json_files import NUMBER, misfit, number_of, parse_json, read_json
from analysis.runs import Run
from analysis.study.bench_files import DECODE, EVALUATED, SUMMED, bench_modes, read_bench
from analysis.study.record import AGAIN, BENCH, DONE, RUNNING, WAITING, Record, point_folder
from analysis.tables import counted, number, text_table

MOST_ROWS = 30
MOST_LETTERS = 60  # of a result on a terminal; elsewhere a line has all of it
LINE = {"step": int, "loss?": NUMBER, "tokens_per_second?": NUMBER, "images_per_second?": NUMBER}


def last_line(path: Path) -> dict[str, Any]:
    """The newest whole line of metrics.jsonl; nothing if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            lines = [line for line in file.read().split(b"\n") if line.endswith(b"}")]
        row = parse_json(lines[-1].decode("utf-8")) if lines else {}
    except (OSError, ValueError):
        return {}
    return {} if misfit(row, LINE) else dict(row)


def rate_text(found: dict[str, Any]) -> str:
    """Images per second, or tokens; empty if there is neither."""
    for what in ("images", "tokens"):
        if found.get(f"{what}_per_second") is not None:
            return f"{number(found[f'{what}_per_second'], 0)} {what}/s"
    return ""


def bench_text(path: Path) -> str:
    content = read_bench(path)
    if content["mode"] == DECODE:
        return f"{DECODE} {milliseconds(content.get('token_seconds'))} a token"
    return ", ".join(f"{mode} {milliseconds(each['median_seconds'])}" for mode, each in bench_modes(content).items())


def milliseconds(seconds: float | None) -> str:
    return f"{number(1e3 * number_of(seconds), 2)} ms"


@lru_cache(maxsize=None)
def measured_rate(place: Path, skip: int) -> str:
    """Of a run that ended, as a report has it; empty if it has too few steps, or if there is no h5py."""
    try:
        from analysis.scaling import read_cases
        case = read_cases(Run(place, place.name), skip)[0][-1]
    except (ModuleNotFoundError, UserError):
        return ""
    images = not math.isnan(case.images_per_second)
    rate = rate_text({"images_per_second": case.images_per_second} if images else {"tokens_per_second": case.tokens_per_second})
    return f"{rate} (median of {counted(case.steps, 'step')})"


def train_text(place: Path, state: str, skip: int) -> str:
    """While it runs the rate of its newest step."""
    row = last_line(place / "metrics.jsonl")
    if row.get("loss") is None:
        return ""
    rate = rate_text(row) if state == RUNNING else measured_rate(place.resolve(), skip)
    return f"step {row['step']}, loss {number(row['loss'])}{f', {rate}' if rate else ''}"


def measured_text(place: Path, record: Record, skip: int) -> str:
    """One figure of a point that runs or ended well; UserError if a file of it cannot be read."""
    command = record.settings["command"]
    if command == "train":
        return train_text(place, record.state, skip)
    if record.state != DONE:
        return ""
    if command == "bench":
        return bench_text(place / BENCH)
    if command == "eval":
        found = read_json(place / BENCH, EVALUATED, AGAIN)
        return f"loss {number(number_of(found['loss']))}, {rate_text(found)}"
    if command == "accumulation":
        return f"sum {number(number_of(read_json(place / BENCH, SUMMED, AGAIN)['sum']), 5)}"
    return ""


def result_text(folder: Path, record: Record, skip: int = SKIPPED_STEPS) -> str:
    """One figure of a point: how far it is, what it measured, or why it ended."""
    if record.state not in (RUNNING, DONE):
        return record.message if record.state != WAITING else ""
    try:
        return measured_text(point_folder(folder, record.name), record, skip)
    except UserError as error:
        return str(error)


class Live:
    """Reports a study's progress; rates leave out `skip` steps. `terminal`: whether the stream can move its cursor."""

    def __init__(self, folder: Path, records: dict[str, Record], stream: TextIO = sys.stderr, skip: int = SKIPPED_STEPS) -> None:
        self._folder = folder
        self._skip = skip
        self._records = records
        self._stream = stream
        self._terminal = stream.isatty()
        self._lines = 0
        self._begun = time.monotonic()

    def update(self, record: Record, event: bool = False) -> None:
        """`event`: the point began or ended."""
        if self._terminal:
            self._draw()
        elif event:
            print(one_line(self._event(record)), file=self._stream, flush=True)

    def _event(self, record: Record) -> str:
        done = sum(each.state not in (WAITING, RUNNING) for each in self._records.values())
        seconds = f", {record.seconds:.1f} s" if record.state != RUNNING else ""
        result = result_text(self._folder, record, self._skip) if record.state != RUNNING else ""
        return (f"[{done}/{len(self._records)}] {record.name}: {record.state}{seconds}"
                f"{f'; {result}' if result else ''}")

    def _shown(self) -> list[Record]:
        """As many as fit, around the first that is not finished."""
        records = list(self._records.values())
        most = min(MOST_ROWS, max(4, shutil.get_terminal_size().lines - 5))
        first = next((index for index, each in enumerate(records) if each.state in (RUNNING, WAITING)),
                     len(records))
        begin = max(0, min(first - most // 2, len(records) - most))
        return records[begin:begin + most]

    def _draw(self) -> None:
        rows = [[each.name, each.state, f"{each.seconds:.0f}" if each.seconds else "",
                 result_text(self._folder, each, self._skip)[:MOST_LETTERS]] for each in self._shown()]
        width = shutil.get_terminal_size().columns
        done = sum(each.state not in (WAITING, RUNNING) for each in self._records.values())
        lines = [*text_table(["point", "state", "s", "result"], rows).split("\n"),
                 f"{done} of {len(self._records)} points, {time.monotonic() - self._begun:.0f} s"]
        up = f"\x1b[{self._lines}F\x1b[J" if self._lines else ""
        print(up + "\n".join(visible(line)[:width] for line in lines), file=self._stream, flush=True)
        self._lines = len(lines)
