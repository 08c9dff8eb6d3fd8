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
            "reduce_exposed": 3.0, "tensor_comm": 6.0, "context_comm": 0.0, "expert_comm": 0.0, "pipeline_comm": 2.0,
            "pipeline_idle": 4.0, "wait": 1.0, "checkpoint": 0.0}


DECK: dict[str, Any] = {
    "run.name": "fake", "run.directory": "runs/fake", "run.seed": 1234, "run.device": "auto",
    "run.deterministic": "false", "model.family": "llama", "model.layers": 4, "model.width": 192,
    "model.context": 128, "data.train": '["a b.bin", c.bin]', "parallel.data": 1,
    "parallel.tensor": 1, "parallel.pipeline": 1, "parallel.schedule": "1f1b",
    "parallel.virtual_stages": 1, "parallel.zero": 0, "precision.compute": "fp32",
    "memory.recompute": "none", "optimizer.name": "adamw", "optimizer.lr": 0.002,
    "train.steps": 400, "train.global_batch": 32, "train.microbatch": 2, "timing.every": 1,
}


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


def image_metrics_row(step: int) -> dict[str, Any]:
    """As metrics_row of a run that sorts images: top-1 and top-5 in the place of perplexity and accuracy."""
    row = metrics_row(step)
    for prefix in [prefix for prefix in ("", "validation_") if f"{prefix}loss" in row]:
        del row[f"{prefix}perplexity"], row[f"{prefix}token_accuracy"]
        top1 = 0.9 - row[f"{prefix}loss"] / 10.0
        row |= {f"{prefix}top1": top1, f"{prefix}top5": 0.5 + top1 / 2.0}
    return row | {"images_per_second": 640.0 + step}


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
        file.attrs.update(rank=rank, world_size=world_size, host=np.bytes_(f"n{rank // 2}"),
                          device="cpu", commit="0123456789ab", start_time="2026-01-02T03:04:05Z")
        for name, value in parts.items():
            file[f"steps/{name}_seconds"] = 1e-3 * value * factor
        file["steps/step_seconds"] = 1e-3 * (sum(PARTS_MS.values()) + 2.0) * factor
        file["steps/reduce_seconds"] = 12e-3 * factor
        file["steps/step"] = np.arange(1, steps + 1)
        file["steps/tokens"] = np.full(steps, 512)
        file["steps/memory_peak_bytes"] = np.full(steps, (100 + rank) << 20)
        file["steps/memory_now_bytes"] = np.full(steps, 90 << 20)
    return path


def write_deck(run: Path, **changes: Any) -> Path:
    """`changes` name a key with two underlines for its dot: model__width=256."""
    run.mkdir(parents=True, exist_ok=True)
    path = run / "deck.yaml"
    path.write_text(deck_text(**changes), encoding="utf-8")
    return path


def write_start_deck(run: Path, number: int, **changes: Any) -> Path:
    """The deck of one start, which is deck.yaml too until a later start writes its own."""
    write_deck(run, **changes)
    path = run / "decks" / f"start_{number:04d}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(deck_text(**changes), encoding="utf-8")
    return path


def deck_text(**changes: Any) -> str:
    deck = DECK | {key.replace("__", "."): value for key, value in changes.items()}
    lines, section = [], ""
    for key, value in deck.items():
        if key.split(".")[0] != section:
            section = key.split(".")[0]
            lines.append(f"{section}:")
        lines.append(f"  {key.split('.')[1]}: {value}")
    return "\n".join(lines) + "\n"


def write_steps(run: Path, number: int, first: int, last: int, **attributes: Any) -> Path:
    """The timing file of a start of one rank with steps first to last, all alike; none if last < first."""
    path = write_rank(run / "timing" / f"start_{number:04d}", 0, (0, 0, 0, 0), world_size=1)
    with h5py.File(path, "r+") as file:
        file.attrs.update(attributes)
        for name in list(file["steps"]):
            value = file[f"steps/{name}"][-1]
            del file[f"steps/{name}"]
            file[f"steps/{name}"] = np.full(last - first + 1, value)
        file["steps/step"][...] = np.arange(first, last + 1)
    return path


def write_scaled(run: Path, sizes: tuple[int, int, int, int], parts_ms: dict[str, float],
                 tokens: int = 4096, steps: int = 25, start: str = "start_0001",
                 slow: tuple[int, float] | None = None, **attributes: Any) -> Path:
    """A start of any layout in which steps last 1, 0.9 and 1.1 times `parts_ms` in turns, the first
    five a hundred times; they hold 1 ms beyond their parts. Backward of rank slow[0] lasts slow[1]
    ms longer, the others wait for it. `tokens` are of a step of the whole job."""
    folder = run / "timing" / start
    for rank, coordinates in enumerate(np.ndindex(*sizes)):
        parts = dict.fromkeys(PARTS_MS, 0.0) | {"reduce": 0.0} | parts_ms
        if slow is not None:
            parts["backward" if rank == slow[0] else "wait"] += slow[1]
        write_columns(folder, rank, coordinates, parts, tokens // sizes[0], steps,
                      {"world_size": math.prod(sizes), "host": f"n{rank // 4}"} | attributes)
    return folder


def write_columns(folder: Path, rank: int, coordinates: tuple[int, ...], parts: dict[str, float],
                  tokens: int, steps: int, attributes: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    factor = np.array([1.0, 0.9, 1.1])[np.arange(steps) % 3]
    factor[:5] *= 100.0
    with h5py.File(folder / f"rank_{rank:05d}.h5", "w") as file:
        file.attrs.update(zip(("data", "pipeline", "context", "tensor"), coordinates))
        file.attrs.update({"rank": rank, "device": "NVIDIA H200", "commit": "0123456789ab",
                           "start_time": "2026-01-02T03:04:05Z"} | attributes)
        for name, value in parts.items():
            file[f"steps/{name}_seconds"] = 1e-3 * value * factor
        whole = sum(value for name, value in parts.items() if name != "reduce") + 1.0
        file["steps/step_seconds"] = 1e-3 * whole * factor
        file["steps/step"] = np.arange(1, steps + 1)
        file["steps/tokens"] = np.full(steps, tokens)
        file["steps/memory_peak_bytes"] = np.full(steps, 100 << 20)
        file["steps/memory_now_bytes"] = np.full(steps, 90 << 20)
