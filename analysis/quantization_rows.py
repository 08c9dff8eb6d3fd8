# SPDX-License-Identifier: Apache-2.0
"""What `quantization` compares: figures of `eval --json`, of `bench --mode decode --json` and of runs."""
from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Sequence

from analysis.deck import Deck, read_deck, whole_in
from analysis.errors import UserError
from analysis.json_files import misfit, parse_json
from analysis.runs import (
    Metrics, Run, best_value, last_value, near_folder, read_metrics, typical_rate,
)
from analysis.subject import parameter_count

EVALUATION, DECODING, TRAINING = "evaluation", "decoding", "training"
STORAGE_KEYS = ("precision", "quantization", "frozen_format", "adapter_rank", "parameter_bytes", "matrix_bytes",
                "memory_peak_bytes", "tokens_per_second")
KEYS = {EVALUATION: (*STORAGE_KEYS, "checkpoint", "loss", "perplexity", "token_accuracy", "tokens", "stride", "files"),
        DECODING: (*STORAGE_KEYS, "token_seconds", "rows", "tokens", "model", "device", "context")}
# What rows must have in common: of files their keys, of runs those of the deck.
SAME = {EVALUATION: ("files", "tokens", "stride"), DECODING: ("model", "device", "context", "rows", "tokens"),
        TRAINING: ("data.train", "data.validation", "model.context", "train.global_batch", "train.validate_batches")}
VALUES = {EVALUATION: ("loss", "perplexity", "token_accuracy", "parameter_bytes", "matrix_bytes", "memory_peak_bytes",
                       "tokens_per_second"),
          DECODING: ("parameter_bytes", "matrix_bytes", "memory_peak_bytes", "tokens_per_second", "token_seconds")}
STORAGE = {"precision": str, "quantization": str, "frozen_format": str, "adapter_rank": int}
QUANTIZED = ("int8", "int4", "nf4")


@dataclass(frozen=True)
class Row:
    """A variant. `weights`: how its matrices are kept or trained; `is_plain`: all of it in the precision that it
    computes in; `data`: what other rows must have in common with it."""

    kind: str
    name: str
    weights: str
    is_plain: bool
    data: dict[str, Any]
    values: dict[str, float]

    def value(self, name: str) -> float:
        return self.values.get(name, math.nan)


def storage_of(content: dict[str, Any]) -> tuple[str, bool]:
    """Such as "int4 groups of 64", "nf4, LoRA r 8"; and whether nothing is rounded or added."""
    is_rounded = content["frozen_format"] not in (content["precision"], "bf16")
    rank = int(content["adapter_rank"])
    base = content["quantization"] if content["quantization"] != "none" else content["frozen_format"]
    return (f"{base}, LoRA r {rank}" if rank else str(base),
            content["quantization"] == "none" and not rank and not is_rounded)


def kind_of(content: Any) -> str:
    """Empty for files of other commands."""
    if not isinstance(content, dict):
        return ""
    if content.get("mode") == "decode":
        return DECODING
    return EVALUATION if "checkpoint" in content and "perplexity" in content else ""


def row_of(path: Path, name: str, content: Any) -> Row:
    kind = kind_of(content)
    if not kind:
        raise UserError(f"{path} is neither of hyperslab eval --json nor of bench --mode decode --json, and no run")
    missing = [key for key in KEYS[kind] if content.get(key) is None]
    if missing:
        raise UserError(f"{path}: {missing[0]} is missing or null; was the file written by this version?")
    problem = misfit(content, {**STORAGE, **dict.fromkeys(VALUES[kind], float)})
    if problem:
        raise UserError(f"{path}: {problem}; was the file damaged?")
    weights, is_plain = storage_of(content)
    values = {key: float(content[key]) for key in VALUES[kind]}
    return Row(kind, name, weights, is_plain, {key: content[key] for key in SAME[kind]}, values)


def read_file(path: Path, name: str) -> list[Row]:
    """A row, or one for each checkpoint that eval measured."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    if isinstance(content, list) and content:
        return [row_of(path, f"{name} {index}", each) for index, each in enumerate(content, 1)]
    return [row_of(path, name, content)]


def group_text(weights: str, group: str) -> str:
    return f"int4 groups of {group}" if weights == "int4" else weights


def method_of(deck: Deck) -> tuple[str, bool]:
    """How a run trains, in words; and whether it trains the whole model without rounding."""
    rank, stored = deck.get("adapter.rank", "0"), deck.get("model.frozen_format", "compute")
    weights = deck.get("quantization.weights", "none")
    if rank != "0":
        return (f"QLoRA {stored} r {rank}" if stored in QUANTIZED else f"LoRA r {rank}"), False
    if weights != "none":
        inputs = deck.get("quantization.activations", "none")
        return (f"fake quantization {group_text(weights, deck.get('quantization.group', '64'))}"
                f"{f', {inputs} activations' if inputs != 'none' else ''}"), False
    return "full", deck.get("train.trainable", "[]") == "[]"


def adapter_parameters(deck: Deck) -> float:
    """A (r, in) and B (out, r) of every linear layer of a block that is adapted, over all blocks."""
    layers, width, heads, kv_heads, ffn, rank = (
        whole_in(deck, key, 0) for key in ("model.layers", "model.width", "model.heads", "model.kv_heads",
                                             "model.ffn_width", "adapter.rank"))
    if min(layers, width, heads, kv_heads, ffn, rank) < 1:
        return math.nan
    kv_width = width // heads * kv_heads
    sizes = {"attention.query": 2 * width, "attention.key": width + kv_width, "attention.value": width + kv_width,
             "attention.output": 2 * width, "mlp.up": width + ffn, "mlp.down": width + ffn}
    if deck.get("model.activation") in ("swiglu", "geglu", "geglu_tanh"):
        sizes["mlp.gate"] = width + ffn
    named = [name for name in sizes if name in deck.get("adapter.targets", "[]")]
    return float(layers * rank * sum(sizes[name] for name in named or sizes))


def trained_parameters(deck: Deck) -> float:
    """NaN if the deck does not report it."""
    if deck.get("adapter.rank", "0") != "0":
        return adapter_parameters(deck)
    if deck.get("train.trainable", "[]") != "[]":
        return math.nan
    return float(parameter_count(deck) or math.nan)


def run_values(metrics: Metrics, deck: Deck) -> dict[str, float]:
    peaks, losses = metrics.column("memory_peak_bytes"), metrics.column("validation_loss")
    return {"memory_peak_bytes": -best_value(-peaks), "tokens_per_second": typical_rate(metrics),
            "validation_loss": last_value(losses), "best_validation_loss": best_value(losses),
            "trained_parameters": trained_parameters(deck)}


def read_run(path: Path, name: str) -> list[Row]:
    run = Run(path, name)
    metrics, deck = read_metrics(run), read_deck(run)
    method, is_plain = method_of(deck)
    data = {key: deck.get(key, "-") for key in SAME[TRAINING]}
    if "synthetic" in data["data.train"]:
        data["run.seed"] = deck.get("run.seed", "-")  # which tokens are generated
    return [Row(TRAINING, name, method, is_plain, data, run_values(metrics, deck))]


def find(name: str) -> Path:
    path = next((each for each in (Path(name), Path("runs") / name) if each.exists()), None)
    if path is None:
        raise UserError(f"there is no {name} (nor {Path('runs') / name}){near_folder(name)}; name files of --json and run directories")
    inner = path / "bench.json"  # of a study's point
    return inner if path.is_dir() and inner.is_file() else path


def read_rows(names: Sequence[str]) -> list[Row]:
    """Called by the names of files without suffix and of run directories; by the whole path if two are equal."""
    paths = [find(name) for name in names]
    short = [path.parent.name if path.name == "bench.json" else path.resolve().name if path.is_dir() else path.stem
             for path in paths]
    rows: list[Row] = []
    for path, name in zip(paths, short):
        reader: Callable[[Path, str], list[Row]] = read_run if path.is_dir() else read_file
        rows += reader(path, name if short.count(name) == 1 else str(path))
    return rows


def base_of(rows: Sequence[Row], name: str) -> Row:
    """The row of this name, else the only plain one. `rows`: of one kind."""
    named = next((row for row in rows if row.name == name), None)
    if named is not None:
        return named
    plain = [row for row in rows if row.is_plain]
    if not plain:
        raise UserError(f"{rows[0].kind}: nothing without quantization and adapters to compare with; add it, or name "
                        f"the base with --base: {', '.join(row.name for row in rows)}")
    if len(plain) > 1:
        raise UserError(f"{rows[0].kind}: several could be the base; name one with --base: "
                        f"{', '.join(row.name for row in plain)}")
    return plain[0]


def require_same_data(rows: Sequence[Row], base: Row) -> None:
    for row in rows:
        for key, value in base.data.items():
            if row.data.get(key, "-") != value:
                raise UserError(f"{row.name} and {base.name} do not compare: {key} is {row.data.get(key, '-')} "
                                f"against {value}; measure both on the same")


def grouped(rows: Sequence[Row], base: str) -> dict[str, tuple[Row, list[Row]]]:
    """By kind: the base, and all rows with the base first."""
    if base and all(row.name != base for row in rows):
        raise UserError(f"--base {base} is none of {', '.join(row.name for row in rows)}")
    found: dict[str, tuple[Row, list[Row]]] = {}
    for kind in (EVALUATION, DECODING, TRAINING):
        of_kind = [row for row in rows if row.kind == kind]
        if not of_kind:
            continue
        first = base_of(of_kind, base)
        require_same_data(of_kind, first)
        found[kind] = (first, [first, *(row for row in of_kind if row is not first)])
    return found
