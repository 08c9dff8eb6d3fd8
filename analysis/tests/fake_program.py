#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stands for hyperslab where a test needs no training: what it does a key of the deck decides.

It appends its words to calls.txt in the current folder, and ends with the code that run.seed asks for.
"""
from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

KEYS = ("run.name", "run.directory", "run.seed", "parallel.data", "parallel.tensor", "model.context",
        "train.global_batch", "train.steps", "checkpoint.initial", "quantization.weights")
ENDS = {"6": "hyperslab: out of memory: 9 bytes were asked for", "7": "hyperslab: loss is not finite",
        "1": "hyperslab: a fault", "75": "stopped on request"}


def measured(seconds: float, context: int) -> dict[str, object]:
    return {"step_seconds": [2 * seconds, seconds, seconds], "mean_seconds": 4 * seconds / 3,
            "standard_deviation_seconds": 0.01, "median_seconds": seconds, "tokens_per_second": 80 / seconds,
            "model_flops": 1e9, "mfu": 0.5, "memory_peak_bytes": context << 20}


def bench(settings: dict[str, str], mode: str, path: Path) -> None:
    """A step takes 100 ms by its data ranks, forward a quarter of it; the context says how many MiB they
    hold."""
    ranks, context = int(settings.get("parallel.data", "1")), int(settings.get("model.context", "8"))
    content: dict[str, object] = {
        "mode": mode, "ranks": ranks, "parameters": 1000, "model": "llama: tiny", "device": "cpu", "precision": "fp32",
        "commit": "0123456789ab", "global_batch": 10, "context": context}
    if mode == "decode":
        content |= {"tokens_per_second": 50.0, "token_seconds": 0.02, "matrix_bytes": 1 << 20,
                    "parameter_bytes": 2 << 20, "memory_peak_bytes": 3 << 20}
    elif mode == "all":
        content["modes"] = {"forward": measured(0.025 / ranks, context), "step": measured(0.1 / ranks, context)}
    else:
        content |= measured(0.1 / ranks, context)
    path.write_text(json.dumps(content), encoding="utf-8")


def evaluated(settings: dict[str, str], checkpoint: str, path: Path) -> None:
    """A quantized model has a nat more and takes an eighth."""
    quantized = "quantization.weights" in settings
    path.write_text(json.dumps({
        "checkpoint": checkpoint, "loss": 3.0 if quantized else 2.0, "perplexity": 20.0 if quantized else 10.0,
        "token_accuracy": 0.5, "tokens": 64, "tokens_per_second": 640.0,
        "matrix_bytes": (1 if quantized else 8) << 20, "parameter_bytes": 9 << 20, "memory_peak_bytes": 10 << 20}), encoding="utf-8")


def wait_for_signal() -> int:
    """As a run that is asked to stop: it saves and ends with 75."""
    signal.signal(signal.SIGUSR1, lambda number, frame: sys.exit(75))
    Path("waits").touch()
    time.sleep(60)
    return 1


def main(words: list[str]) -> int:
    if "--keys" in words:
        print(" ".join(f"`{key}`" for key in KEYS))
        return 0
    if "--version" in words:
        print("hyperslab 0.0.0 (fake)")
        return 0
    settings = dict(word.split("=", 1) for flag, word in zip(words, words[1:]) if flag == "--set")
    if words[0] == "plan":
        print(f"largest       pipeline 0: {settings.get('model.context', '8')} MiB on each of its 2 ranks")
        return 0
    with Path("calls.txt").open("a", encoding="utf-8") as file:
        file.write(f"{settings['run.name']}\n")
    code = settings.get("run.seed", "0")
    if words[0] == "bench" and code == "0":
        mode = words[words.index("--mode") + 1] if "--mode" in words else "step"
        bench(settings, mode, Path(words[words.index("--json") + 1]))
    if words[0] == "eval" and code == "0":
        evaluated(settings, words[words.index("--checkpoint") + 1], Path(words[words.index("--json") + 1]))
    if code == "wait":
        return wait_for_signal()
    print(ENDS.get(code, "fine"))
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
