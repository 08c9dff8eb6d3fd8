# SPDX-License-Identifier: Apache-2.0
"""Columns that a study's tables and plots may name: what they are called, in which unit, how exact."""
from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Iterable

from analysis.errors import UserError, nearest
from analysis.runs import TRAINING_LOSS
from analysis.tables import number

GIB = float(1 << 30)
MIB = float(1 << 20)
LARGE_BYTES = 10 * GIB
SAME = 5e-4  # a change that is called none
NO_LOSS = 5e-5  # the same in nats
LARGE_RATIO = 1.5
CHANGE = "_change"  # NAME_change: against the base row, in %


@dataclass(frozen=True)
class Column:
    """`scale` takes what was measured (seconds, bytes, shares) to the unit of `title`."""

    name: str
    title: str
    scale: float = 1.0
    digits: int = 2

    def text(self, value: float) -> str:
        return number(value * self.scale, self.digits)


def described() -> dict[str, tuple[str, float, int]]:
    """Title, scale and decimals by name."""
    per_step = {"step": "step", "compute": "forward and backward", "optimizer": "optimizer",
                "communication": "communication", "context": "exchange of context ranks", "expert": "exchange of expert ranks",
                "exposed": "exposed communication", "wait": "wait for slower ranks", "idle": "pipeline idle", "data": "data", "checkpoint": "checkpoints", "first_step": "first step",
                "step_mean": "mean step", "step_deviation": "deviation of a step"}
    whole_run = {"run": "time", "run_compute": "compute", "run_communication": "communication",
                 "run_exposed": "exposed communication"}
    losses = {"training_loss": TRAINING_LOSS, "validation_loss": "validation loss", "final_loss": "final loss",
              "best_validation_loss": "best validation loss"}
    return {
        **{f"{name}_seconds": (f"{title} (ms)", 1e3, 2) for name, title in per_step.items()},
        **{f"{name}_seconds": (f"{title} (s)", 1.0, 2) for name, title in whole_run.items()},
        **{name: (f"{title} (nats)", 1.0, 4) for name, title in losses.items()},
        "compute_by_communication": ("compute / communication", 1.0, 2),
        "run_compute_by_communication": ("compute / communication", 1.0, 2),
        "tokens_per_second": ("tokens/s", 1.0, 0),
        "tokens_per_second_per_rank": ("tokens/s per rank", 1.0, 0),
        "images_per_second": ("images/s", 1.0, 0),
        "top1": ("top-1 (%)", 100.0, 2), "best_top1": ("best top-1 (%)", 100.0, 2), "top5": ("top-5 (%)", 100.0, 2),
        "speed_up": ("speed-up", 1.0, 2), "run_speed_up": ("speed-up", 1.0, 2),
        "efficiency": ("efficiency (%)", 100.0, 1),
        "mfu": ("MFU, attention as masked (%)", 100.0, 1),
        "memory_peak_bytes": ("peak memory (MiB)", 1 / MIB, 1),
        "parameter_bytes": ("parameters in memory (MiB)", 1 / MIB, 1),
        "matrix_bytes": ("matrices of blocks in memory (MiB)", 1 / MIB, 1),
        "token_seconds": ("token (ms)", 1e3, 2),
        "memory_predicted_bytes": ("predicted memory (MiB)", 1 / MIB, 1),
        "step_predicted_seconds": ("predicted step (ms)", 1e3, 2),
        "step_prediction_error": ("predicted by measured step - 1 (%)", 100.0, 2),
        "memory_prediction_error": ("predicted by measured memory - 1 (%)", 100.0, 2),
        "perplexity": ("perplexity", 1.0, 2), "token_accuracy": ("token accuracy (%)", 100.0, 2),
        "equal_time_loss": ("training loss when the first run ended (nats)", 1.0, 4),
        "accumulated_sum": ("sum", 1.0, 5), "accumulated_error": ("error (%)", 100.0, 4),
        "parameters": ("parameters", 1.0, 0), "tokens": ("tokens", 1.0, 0),
        "steps": ("steps", 1.0, 0), "wall_seconds": ("wall time (s)", 1.0, 1),
        "model_flops": ("model GFLOP a step", 1e-9, 3), "ranks": ("ranks", 1.0, 0), "load_max": ("largest load / mean of its layer", 1.0, 2),
        "attention_seconds": ("attention (ms)", 1e3, 2), "ffn_seconds": ("feed-forward (ms)", 1e3, 2),
        "attention_by_ffn_seconds": ("attention / feed-forward, time", 1.0, 2),
        "attention_by_ffn_flops": ("attention / feed-forward, FLOPs", 1.0, 2),
    }


COLUMNS = {name: Column(name, *words) for name, words in described().items()}
# Ratios to a base row, and what they are of; a run's speed-up is of seconds, the less the better.
RELATIVE = {"speed_up": "tokens_per_second", "efficiency": "tokens_per_second", "run_speed_up": "run_seconds"}


LOSSES = ("training_loss", "validation_loss", "final_loss", "best_validation_loss", "equal_time_loss")
RATES = ("tokens_per_second", "tokens_per_second_per_rank", "images_per_second")
# Columns measured on the validation data, alike in training and evaluation; all others belong to one command.
QUALITY = (*LOSSES, "perplexity", "token_accuracy", "top1", "best_top1", "top5")


def check_column(name: str, where: str) -> None:
    if name.removesuffix(CHANGE) not in COLUMNS:
        raise UserError(f"{where}: there is no column `{name}`{nearest(name, [*COLUMNS, *(each + CHANGE for each in COLUMNS)])}; known are {', '.join(COLUMNS)}, and each with "
                        f"{CHANGE} for its change in %, of a loss in nats")


def column(name: str) -> Column:
    if name in COLUMNS:
        return COLUMNS[name]
    base = COLUMNS[name.removesuffix(CHANGE)]
    if base.name in LOSSES:
        return replace(base, name=name, title=f"{base.title.split(' (')[0]}, change (nats)")
    return replace(base, name=name, title=f"{base.title.split(' (')[0]}, change (%)", scale=100.0, digits=1)


def fitted(name: str, values: Iterable[float]) -> Column:
    """The column; bytes in GiB if the largest of `values` is large enough."""
    found = column(name)
    if name.endswith("_bytes") and max((value for value in values if known(value)), default=0.0) >= LARGE_BYTES:
        return replace(found, title=found.title.replace("MiB", "GiB"), scale=1 / GIB, digits=2)
    return found


def of_mode(each: Column) -> Column:
    """The column where forward and backward passes are measured apart: its times are not of whole steps."""
    titles = {"step (ms)": "time (ms)", "mean step (ms)": "mean (ms)", "deviation of a step (ms)": "deviation (ms)"}
    return replace(each, title=titles.get(each.title, each.title))


def change_words(each: Column, old: float, new: float) -> str:
    """A change as it is read: of losses in nats, of shares in points, of rates as a ratio if it is large."""
    ratio = new / old
    if each.name in LOSSES:
        return "unchanged" if abs(new - old) < NO_LOSS else f"{new - old:+.4f}"
    if abs(ratio - 1.0) < SAME:
        return "unchanged"
    if each.name in QUALITY and each.scale == 100.0:
        return f"{100.0 * (new - old):+.2f} points"
    if each.name in RATES and not 1.0 / LARGE_RATIO < ratio < LARGE_RATIO:
        return f"{ratio:.1f} times as fast"
    return f"{100.0 * (ratio - 1.0):+.1f} %"


def is_relative(name: str) -> bool:
    return name in RELATIVE or name.endswith(CHANGE)


def known(value: float) -> bool:
    return not math.isnan(value)
