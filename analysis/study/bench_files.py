# SPDX-License-Identifier: Apache-2.0
"""Reads bench.json of a point: what bench, eval or accumulation measured."""
from __future__ import annotations

from pathlib import Path
from typing import Any

from analysis.json_files import NUMBER, read_json, require
from analysis.study.record import AGAIN

DECODE = "decode"
STORED = ("tokens_per_second", "images_per_second", "top1", "top5", "perplexity", "token_accuracy", "tokens", "token_seconds",
          "parameter_bytes", "matrix_bytes", "memory_peak_bytes")
# Forms of what bench writes of every mode, of a mode that has steps and of tokens one by one; of eval and accumulation.
SETUP = {"mode": str, "ranks": int, "parameters": int, "model": str, "device": str, "precision": str, "commit": str,
         "global_batch": int, "context": int}
_COMPONENT = {"seconds": NUMBER, "flops": NUMBER}
MEASURED = {**dict.fromkeys(("median_seconds", "mean_seconds", "standard_deviation_seconds", "tokens_per_second", "mfu",
                             "model_flops", "memory_peak_bytes"), NUMBER),
            "step_seconds": [NUMBER, 1], "components?": ({"attention?": _COMPONENT, "ffn?": _COMPONENT}, None)}
DECODED = {f"{name}?": NUMBER for name in STORED}
EVALUATED = {**DECODED, "loss": NUMBER}
SUMMED = {"sum": NUMBER, "exact": NUMBER}


def bench_modes(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Of what bench wrote, by mode: `--mode all` measures three, any other mode itself."""
    return content["modes"] if "modes" in content else {content["mode"]: content}


def read_bench(path: Path) -> dict[str, Any]:
    """What bench wrote."""
    content = read_json(path, SETUP, AGAIN)
    form = DECODED if content["mode"] == DECODE else {"modes": {str: MEASURED}} if "modes" in content else MEASURED
    return dict(require(path, content, form, AGAIN))
