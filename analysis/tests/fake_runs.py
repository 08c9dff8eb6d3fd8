# SPDX-License-Identifier: Apache-2.0
"""Small run directories as hyperslab writes them."""
from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np

PARTS_MS = {"data": 1.0, "forward": 20.0, "backward": 40.0, "optimizer": 5.0,
            "reduce_exposed": 3.0, "tensor_comm": 6.0, "pipeline_comm": 2.0,
            "pipeline_idle": 4.0, "checkpoint": 0.0}


def metrics_row(step: int, start_loss: float = 8.0) -> dict[str, Any]:
    noise = 0.08 * math.sin(12.9898 * step)
    loss = 2.0 + (start_loss - 2.0) * math.exp(-step / 60.0) + noise
    row = {"step": step, "loss": loss, "grad_norm": 1.0, "lr": 1e-3, "tokens": 512 * step,
           "step_seconds": 0.1, "tokens_per_second": 5000.0 + step, "mfu": None,
           "perplexity": math.exp(loss), "token_accuracy": 0.5 - loss / 20.0,
           "wall_seconds": 0.11 * step}
    if step % 50 == 0:
        row |= {"validation_loss": loss + 0.1, "validation_perplexity": math.exp(loss + 0.1),
                "validation_token_accuracy": 0.48 - loss / 20.0}
    return row


def write_metrics(run: Path, rows: list[dict[str, Any]], ending: str = "") -> None:
    run.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (run / "metrics.jsonl").write_text(text + ending, encoding="utf-8")


def write_rank(start: Path, rank: int, coordinates: tuple[int, int, int, int], world_size: int = 4,
               steps: int = 12, slowdown_ms: float = 0.0) -> Path:
    """The first two steps are a hundred times as long; backward lasts `slowdown_ms` longer."""
    start.mkdir(parents=True, exist_ok=True)
    parts = dict(PARTS_MS)
    parts["backward"] += slowdown_ms
    parts["pipeline_idle"] -= slowdown_ms
    factor = np.ones(steps)
    factor[:2] = 100.0
    path = start / f"rank_{rank:05d}.h5"
    with h5py.File(path, "w") as file:
        file.attrs.update(zip(("data", "pipeline", "context", "tensor"), coordinates))
        file.attrs.update(rank=rank, world_size=world_size, host=np.bytes_(f"n{rank // 2}"))
        for name, value in parts.items():
            file[f"steps/{name}_seconds"] = 1e-3 * value * factor
        file["steps/step_seconds"] = 1e-3 * (sum(PARTS_MS.values()) + 2.0) * factor
        file["steps/reduce_seconds"] = 12e-3 * factor
        file["steps/step"] = np.arange(1, steps + 1)
        file["steps/tokens"] = np.full(steps, 512)
        file["steps/memory_peak_bytes"] = np.full(steps, (100 + rank) << 20)
        file["steps/memory_now_bytes"] = np.full(steps, 90 << 20)
    return path
