# SPDX-License-Identifier: Apache-2.0
"""What a study shows while it runs: a table that is drawn again on a terminal, else a line per event."""
from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from analysis.study.record import BENCH, DONE, RUNNING, WAITING, Record, bench_modes, point_folder
from analysis.tables import number, text_table

MOST_ROWS = 30
MOST_LETTERS = 60  # of a result on a terminal; elsewhere a line has all of it


def last_line(path: Path) -> dict[str, Any]:
    """The newest whole line of metrics.jsonl."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            lines = [line for line in file.read().split(b"\n") if line.endswith(b"}")]
        return dict(json.loads(lines[-1])) if lines else {}
    except (OSError, ValueError):
        return {}


def rate_text(found: dict[str, Any]) -> str:
    """Images per second, or tokens; empty if there is neither."""
    for what in ("images", "tokens"):
        if found.get(f"{what}_per_second") is not None:
            return f"{number(found[f'{what}_per_second'], 0)} {what}/s"
    return ""


def result_text(folder: Path, record: Record) -> str:
    """One figure of a point: how far it is, what it measured, or why it ended."""
    place = point_folder(folder, record.name)
    if record.state not in (RUNNING, DONE):
        return record.message if record.state != WAITING else ""
    if record.settings["command"] == "train":
        row = last_line(place / "metrics.jsonl")
        rate, loss = rate_text(row), row.get("loss")
        return f"step {row['step']}, {rate}, loss {number(loss or 0.0)}" if rate and loss is not None else ""
    if record.settings["command"] == "bench" and record.state == DONE:
        modes = bench_modes(json.loads((place / BENCH).read_text(encoding="utf-8")))
        return ", ".join(f"{mode} {1e3 * each['median_seconds']:.2f} ms" if "median_seconds" in each else
                         f"{mode} {1e3 * each['token_seconds']:.2f} ms a token" for mode, each in modes.items())
    if record.settings["command"] == "eval" and record.state == DONE:
        found = json.loads((place / BENCH).read_text(encoding="utf-8"))
        return f"loss {number(found['loss'])}, {rate_text(found)}"
    if record.settings["command"] == "accumulation" and record.state == DONE:
        return f"sum {number(json.loads((place / BENCH).read_text(encoding='utf-8'))['sum'], 5)}"
    return ""


class Live:
    """Reports a study's progress. `terminal`: whether the stream can move its cursor."""

    def __init__(self, folder: Path, records: dict[str, Record], stream: TextIO = sys.stderr) -> None:
        self._folder = folder
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
            print(self._event(record), file=self._stream, flush=True)

    def _event(self, record: Record) -> str:
        done = sum(each.state not in (WAITING, RUNNING) for each in self._records.values())
        seconds = f", {record.seconds:.1f} s" if record.state != RUNNING else ""
        result = result_text(self._folder, record) if record.state != RUNNING else ""
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
                 result_text(self._folder, each)[:MOST_LETTERS]] for each in self._shown()]
        width = shutil.get_terminal_size().columns
        done = sum(each.state not in (WAITING, RUNNING) for each in self._records.values())
        lines = [*text_table(["point", "state", "s", "result"], rows).split("\n"),
                 f"{done} of {len(self._records)} points, {time.monotonic() - self._begun:.0f} s"]
        up = f"\x1b[{self._lines}F\x1b[J" if self._lines else ""
        print(up + "\n".join(line[:width] for line in lines), file=self._stream, flush=True)
        self._lines = len(lines)
