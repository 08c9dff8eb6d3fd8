# SPDX-License-Identifier: Apache-2.0
"""Training speed of a vision transformer beside timm under torch.compile, on generated images, on one device.

python3 -m analysis.compare.vit_rate DECK [--set KEY=VALUE] [--mode default] [--steps 20] [--device cuda|cpu]

Both train the model of the deck with its batch and precision by AdamW with clipped gradients; timm's has fused updates,
scaled dot product attention and autocast. A rate is of the median of so many steps after a warm-up. One line of JSON.
"""
from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

from analysis.compare.rates import bench, line_of, make_parser, run
from analysis.errors import UserError

WARMUP = 5


def timm_seconds(found: dict[str, Any], arguments: argparse.Namespace, bf16: bool) -> tuple[float, dict[str, object]]:
    """Of a median step of timm, and what to know of it."""
    import timm
    import torch
    from torch.nn import functional

    torch.set_float32_matmul_precision("high" if bf16 else "highest")
    device = torch.device(arguments.device)
    model = timm.models.vision_transformer.VisionTransformer(
        img_size=found["image"], patch_size=found["patch"], num_classes=found["classes"], embed_dim=found["width"],
        depth=found["layers"], num_heads=found["heads"], mlp_ratio=(found["ffn_width"] or 4 * found["width"]) / found["width"],
        class_token=found["pooling"] == "token", global_pool="token" if found["pooling"] == "token" else "avg").to(device)
    called = torch.compile(model, mode=None if arguments.mode == "default" else arguments.mode) \
        if arguments.mode != "off" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=device.type == "cuda")
    shape = (found["batch"], 3, found["image"], found["image"])
    images, labels = torch.randn(shape, device=device), torch.randint(found["classes"], shape[:1], device=device)

    def step() -> float:
        start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            loss = functional.cross_entropy(called(images), labels, label_smoothing=0.1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    for _ in range(WARMUP):
        step()
    seconds = statistics.median(step() for _ in range(arguments.steps))
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
    return seconds, {"torch": torch.__version__, "timm": timm.__version__, "compile": arguments.mode,
                     "peer_memory_peak_bytes": peak}


def deck_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The sizes of the model, and the images of a step."""
    from analysis.study.settings import deck_value
    from analysis.yaml_files import load_yaml
    deck = load_yaml(arguments.deck)
    settings = dict(setting.partition("=")[::2] for setting in arguments.set)

    def value(key: str, default: Any = None) -> Any:
        found = settings.get(key, deck_value(deck, key))
        if found is None and default is None:
            raise UserError(f"{arguments.deck}: no {key}; give the deck of a vision transformer")
        return default if found is None else found

    found = {name: int(value(f"model.{name}")) for name in ("image", "patch", "classes", "width", "layers", "heads")}
    return found | {"ffn_width": int(value("model.ffn_width", 0)), "pooling": value("model.pooling", "token"),
                    "batch": int(value("train.global_batch"))}


def compare(arguments: argparse.Namespace) -> str:
    found = deck_of(arguments)
    ours = bench(arguments, "--mode", "step", "--warmup", str(WARMUP), "--steps", str(arguments.steps))
    theirs, more = timm_seconds(found, arguments, ours["precision"] == "bf16")
    return line_of(found["batch"] / ours["median_seconds"], found["batch"] / theirs, "timm",
                   {"deck": str(arguments.deck), **found, "precision": ours["precision"], "device": ours["device"],
                    "commit": ours["commit"], "memory_peak_bytes": ours["memory_peak_bytes"], **more})


def main(words: list[str] | None = None) -> int:
    parser = make_parser("vit_rate", __doc__)
    parser.add_argument("--mode", default="default", help="of torch.compile; off: not compiled (default: default)")
    parser.add_argument("--steps", type=int, default=20)
    return run("vit_rate", compare, parser.parse_args(words))


if __name__ == "__main__":
    sys.exit(main())
