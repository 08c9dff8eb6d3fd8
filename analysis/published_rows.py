# SPDX-License-Identifier: Apache-2.0
"""Published measurements of training: one line of a table each, with the model, the layout and what was measured.

The tables are CSV files with the columns of Row, tests/data/published.csv for one. `assumed` names the columns that the
source does not report, or reports in two ways, `not_modelled` says why the program cannot express a row; it is empty for rows that it can.
"""
from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Sequence

from analysis.csv_files import Lines, read_csv
from analysis.errors import UserError

UNITS = {"tflops_per_gpu": "TFLOP/s", "tokens_per_second_per_gpu": "tokens/s", "step_seconds": "s"}
CHOICES = {
    "family": ("gpt2", "llama"),
    "schedule": ("1f1b", "gpipe", "interleaved", "zero_bubble"),
    "recompute": ("none", "selective", "full"),
    # What data ranks share beside samples: nothing, optimizer state, gradients too, parameters too.
    "sharding": ("none", "state", "gradients", "full"),
    "unit": tuple(UNITS),
    # Attention counts all T x T scores, or the half below the diagonal, or the row reports no FLOPs.
    "convention": ("full", "causal", "none"),
}
# What decides how much a step computes and in what sizes: a row is open if its source leaves one of these.
DECISIVE = ("microbatch", "recompute")
# The value of `parallel.zero` that shards so.
ZERO = {"none": 0, "state": 1, "gradients": 2, "full": 3}


@dataclass(frozen=True)
class Row:
    """One measurement. `data`, `tensor`, `pipeline` and `context_parallel` multiply to `gpus`."""

    number: int
    source: str
    model: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn_width: int
    vocabulary: int
    family: str
    tied: bool
    gpu: str
    gpus: int
    gpus_per_node: int
    data: int
    tensor: int
    pipeline: int
    virtual_stages: int
    schedule: str
    context: int
    context_parallel: int
    expert_parallel: int
    microbatch: int
    global_batch: int
    sequence: bool
    recompute: str
    precision: str
    sharding: str
    measured: float
    unit: str
    convention: str
    not_modelled: str
    assumed: str

    @property
    def is_modelled(self) -> bool:
        return not self.not_modelled

    @property
    def is_open(self) -> bool:
        """Whether what is predicted may not be the configuration that was measured."""
        return any(name in self.assumed.split() for name in DECISIVE)

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.global_batch * self.context

    @property
    def layout(self) -> str:
        """The axes in short: those of size 1 are left out."""
        parts = [f"{name} {size}" for name, size in
                 (("data", self.data), ("tensor", self.tensor), ("pipeline", self.pipeline)) if size > 1]
        parts += [f"{self.virtual_stages} virtual stages"] if self.virtual_stages > 1 else []
        parts += [self.schedule] if self.pipeline > 1 and self.schedule != "interleaved" else []
        parts += {"state": ["sharded state"], "gradients": ["sharded gradients"],
                  "full": ["fully sharded"]}.get(self.sharding, [])
        parts += ["sequence"] if self.sequence else []
        parts += [f"recompute {self.recompute}"] if self.recompute != "none" else []
        return ", ".join(parts) or "one GPU"


def matrix_parameters(row: Row) -> int:
    """Parameters of matrix products: those of all blocks, and the head's."""
    keys = row.width // row.heads * row.kv_heads
    feed_forward = (3 if row.family == "llama" else 2) * row.width * row.ffn_width
    block = 2 * row.width * row.width + 2 * row.width * keys + feed_forward
    return row.layers * block + row.vocabulary * row.width


def flops_per_token(row: Row, convention: str) -> float:
    """Model FLOPs of a token in a training step, without what is computed a second time."""
    attention = {"full": 12, "causal": 6}[convention] * row.layers * row.width * row.context
    return 6.0 * matrix_parameters(row) + attention


def value_of(row: Row, seconds: float) -> float:
    """What the source would have printed for a step of so many seconds."""
    if row.unit == "step_seconds":
        return seconds
    rate = row.tokens / seconds / row.gpus
    return rate if row.unit == "tokens_per_second_per_gpu" else 1e-12 * rate * flops_per_token(row, row.convention)


def seconds_of(row: Row) -> float:
    """The measured seconds of a step, whatever unit the source has."""
    if row.unit == "step_seconds":
        return row.measured
    per_token = 1.0 if row.unit == "tokens_per_second_per_gpu" else 1e-12 * flops_per_token(row, row.convention)
    return row.tokens * per_token / (row.measured * row.gpus)


def parsed(name: str, kind: Any, text: str) -> Any:
    """A cell as a value of its column; ValueError says what is wrong with it."""
    if kind == "str":
        if text not in CHOICES.get(name, (text,)):
            raise ValueError(f"{name} '{text}' is not one of {', '.join(CHOICES[name])}")
        return text
    if kind == "bool":
        if text not in ("true", "false"):
            raise ValueError(f"{name} '{text}' is not true or false")
        return text == "true"
    try:
        value = int(text) if kind == "int" else float(text)
    except ValueError as error:
        raise ValueError(f"{name} '{text}' is not a number") from error
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} {text} is not above 0")
    return value


def complaint(row: Row) -> str:
    """What contradicts itself in a row; empty if nothing does."""
    ranks = row.data * row.tensor * row.pipeline * row.context_parallel
    if ranks != row.gpus:
        return f"data x tensor x pipeline x context_parallel is {ranks}, gpus is {row.gpus}"
    if row.global_batch % (row.data * row.microbatch):
        return f"global_batch {row.global_batch} is no multiple of data x microbatch"
    if row.unit == "tflops_per_gpu" and row.convention == "none":
        return "TFLOP/s need a convention, full or causal"
    unknown = [name for name in row.assumed.split() if name not in COLUMNS]
    return f"assumed names no column '{unknown[0]}'" if unknown else ""


COLUMNS = {each.name: each.type for each in fields(Row)}


def read_row(cells: dict[str, str]) -> Row:
    row = Row(**{name: parsed(name, kind, cells[name].strip()) for name, kind in COLUMNS.items()})
    wrong = complaint(row)
    if wrong:
        raise ValueError(wrong)
    return row


def read_lines(path: Path, columns: Sequence[str]) -> Lines:
    """The lines of a CSV file that has these columns, with their numbers in the file."""
    names, lines = read_csv(path)
    missing = [name for name in columns if name not in names]
    if missing:
        raise UserError(f"{path}: there is no column '{missing[0]}'; tests/data/published.csv has all of them")
    if not lines:
        raise UserError(f"{path}: no row")
    return lines


def read_rows(paths: Sequence[Path]) -> list[Row]:
    """The rows of all files; their numbers differ."""
    rows: dict[int, Row] = {}
    for path in paths:
        for number, cells in read_lines(path, list(COLUMNS)):
            try:
                row = read_row(cells)
            except ValueError as error:
                raise UserError(f"{path}:{number}: {error}") from error
            if row.number in rows:
                raise UserError(f"{path}:{number}: there are two rows {row.number}")
            rows[row.number] = row
    return list(rows.values())


@dataclass(frozen=True)
class CurvePoint:
    """The model and batch of one row on another number of data ranks."""

    row: int
    gpus: int
    data: int
    pflops: float
    tflops_per_gpu: float


def read_curve(path: Path) -> list[CurvePoint]:
    names = {each.name: each.type for each in fields(CurvePoint)}
    points = []
    for number, cells in read_lines(path, list(names)):
        try:
            points.append(CurvePoint(**{name: parsed(name, kind, cells[name]) for name, kind in names.items()}))
        except ValueError as error:
            raise UserError(f"{path}:{number}: {error}") from error
    return points
