# SPDX-License-Identifier: Apache-2.0
"""How fast PyTorch trains the model of a resolved deck, on generated tokens; one line of JSON.

python3 -m analysis.compare.torch_speed DECK.yaml [--mode default] [--fp8] [--shards] [--steps 20] [--device cuda|cpu]
torchrun --nproc-per-node 2 -m analysis.compare.torch_speed DECK.yaml ...

torch.compile, scaled dot product attention, autocast to the deck's precision, fused AdamW and clipped gradients. With
several processes DistributedDataParallel, or FSDP2 with --shards, which keeps gathered parameters for the backward pass.
--fp8: linear layers of the blocks multiply in 8-bit floats with a scale a tensor (torch._scaled_mm). With either, blocks
are compiled one by one and add to bf16, which is faster. Started by analysis.compare.speed.
"""
from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from analysis.compare.recipe import Recipe
from analysis.compare.torch_model import Spec, Transformer
from analysis.deck import read_deck
from analysis.runs import Run

WARMUP = 5
GROUPS = 3  # of steps that are timed together; the median counts


def eight_bits(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """FP8 values and their scale, chosen from the amax of x."""
    largest = torch.finfo(dtype).max
    inverse = largest / x.abs().amax().float().clamp(min=1e-12)
    return (x.float() * inverse).clamp(-largest, largest).to(dtype), 1 / inverse


class Fp8Product(torch.autograd.Function):
    """x weight^T; inputs and weights in e4m3, gradients in e5m2."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        values, scale = eight_bits(x, torch.float8_e4m3fn)
        weights, weight_scale = eight_bits(weight, torch.float8_e4m3fn)
        ctx.save_for_backward(values, scale, weights, weight_scale)
        return torch._scaled_mm(values, weights.t(), scale_a=scale, scale_b=weight_scale, out_dtype=x.dtype,
                                use_fast_accum=True)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        values, scale, weights, weight_scale = ctx.saved_tensors
        gradient, its_scale = eight_bits(dy, torch.float8_e5m2)
        dx = torch._scaled_mm(gradient, weights.t().contiguous().t(), scale_a=its_scale, scale_b=weight_scale,
                              out_dtype=dy.dtype)
        dweight = torch._scaled_mm(gradient.t().contiguous(), values.t().contiguous().t(), scale_a=its_scale,
                                   scale_b=scale, out_dtype=dy.dtype)
        return dx, dweight


class Fp8Linear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        rows = input.reshape(-1, input.shape[-1]).to(torch.bfloat16)
        product = Fp8Product.apply(rows, self.weight.to(torch.bfloat16))
        return product.view(*input.shape[:-1], -1)


class StreamNorm(nn.RMSNorm):
    """Of a stream in bf16 without another type between; the weight stays in float32."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def use_fp8(model: Transformer) -> None:
    for module in model.modules():
        if isinstance(module, nn.RMSNorm):
            module.__class__ = StreamNorm
    for block in model.blocks:
        for module in block.modules():
            if isinstance(module, nn.Linear) and module.bias is None:
                module.__class__ = Fp8Linear


def make_model(recipe: Recipe, arguments: argparse.Namespace, device: torch.device) -> Transformer:
    torch.manual_seed(1)
    spec = Spec.of(recipe, 128 if device.type == "cuda" else 1)
    with device:
        model = Transformer(dataclasses.replace(spec, vocabulary=spec.rows))  # faster without cutting the logits
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, 0, 0.02)
    if arguments.fp8:
        use_fp8(model)
    return model


def wrapped(model: Transformer, arguments: argparse.Namespace, device: torch.device) -> nn.Module:
    """The model as it is called."""
    mode = None if arguments.mode == "default" else arguments.mode
    by_blocks = arguments.shards or arguments.fp8
    if by_blocks:
        model.stream_dtype = torch.bfloat16
    if by_blocks and arguments.mode != "off":
        model.summed_loss = torch.compile(model.summed_loss, mode=mode)
        for block in model.blocks:
            block.compile(mode=mode)
    if arguments.shards:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for module in (*model.blocks, model):
            fully_shard(module, mp_policy=policy, reshard_after_forward=False)
        return model
    called = model if by_blocks or arguments.mode == "off" else torch.compile(model, mode=mode)
    if distributed.is_initialized():
        called = nn.parallel.DistributedDataParallel(
            called, device_ids=[device.index] if device.type == "cuda" else None, gradient_as_bucket_view=True)
    return called


def measure(recipe: Recipe, arguments: argparse.Namespace) -> dict[str, Any]:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device(arguments.device)
    if arguments.device == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if ranks > 1:
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    bf16 = recipe.text("precision.compute") == "bf16"
    torch.set_float32_matmul_precision("high" if bf16 else "highest")
    model = make_model(recipe, arguments, device)
    called = wrapped(model, arguments, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=device.type == "cuda")
    share = recipe.integer("train.global_batch") // ranks
    length, microbatch = recipe.integer("model.context"), min(share, recipe.integer("train.microbatch"))
    tokens = torch.randint(recipe.integer("model.vocabulary"), (2, share, length), device=device)

    def step() -> None:
        for inputs, targets in tokens.split(microbatch, dim=1):
            torch.compiler.cudagraph_mark_step_begin()
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16 and not arguments.shards):
                loss = called(inputs, targets)
            (loss / (share * length)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def seconds(steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / steps

    seconds(WARMUP)
    found = statistics.median(seconds(max(1, arguments.steps // GROUPS)) for _ in range(GROUPS))
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
    if ranks > 1:
        distributed.destroy_process_group()
    return {"step_seconds": found, "tokens_per_second": share * ranks * length / found, "torch": torch.__version__,
            "memory_peak_bytes": peak}


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m analysis.compare.torch_speed", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("deck", type=Path, metavar="DECK.yaml")
    parser.add_argument("--mode", default="default", help="of torch.compile; off: not compiled")
    parser.add_argument("--fp8", action="store_true")
    parser.add_argument("--shards", action="store_true", help="FSDP2 in place of DistributedDataParallel")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments = parser.parse_args(words)
    folder = arguments.deck.parent
    found = measure(Recipe(read_deck(Run(folder, folder.name)), str(arguments.deck)), arguments)
    if int(os.environ.get("RANK", "0")) == 0:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
