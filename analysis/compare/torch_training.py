# SPDX-License-Identifier: Apache-2.0
"""Training in PyTorch by a recipe: the same weights, samples, schedule and optimizer as a run of hyperslab."""
from __future__ import annotations

import contextlib
import importlib
import os
import queue
import sys
import threading
import time
from dataclasses import dataclass
from typing import Iterator

import numpy as np
import torch
from torch import Tensor, distributed, nn

from analysis.compare.recipe import Recipe, Weights
from analysis.compare.samples import Indices, Order, Tokens
from analysis.compare.torch_model import IGNORED, Spec, Transformer
from analysis.compare.torch_muon import Muon
from analysis.errors import UserError

AHEAD = 8  # batches that wait ready for the device


@dataclass(frozen=True)
class Options:
    """How PyTorch trains, beyond what the deck says."""

    device: str = "cpu"
    compiled: bool = False
    compile_mode: str = "default"  # of torch.compile
    microbatch: int = 0  # samples; 0: at most the deck's
    row_multiple: int = 1  # of the tables


class Group:
    """The processes of torchrun, or this one alone."""

    def __init__(self, device: str) -> None:
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.device = torch.device(device)
        if device == "cuda":
            if not torch.cuda.is_available():
                raise UserError("PyTorch sees no GPU; give --device cpu")
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(self.device)
        if self.size > 1 and not distributed.is_initialized():
            distributed.init_process_group("nccl" if device == "cuda" else "gloo")

    def sum(self, values: Tensor) -> Tensor:
        if self.size > 1:
            distributed.all_reduce(values)
        return values

    def wait(self) -> None:
        """Until all processes are here."""
        self.sum(torch.zeros(1, device=self.device)).item()

    def close(self) -> None:
        if self.size > 1:
            distributed.destroy_process_group()


def inputs_and_targets(tokens: np.ndarray, device: torch.device) -> Tensor:
    """(samples, T + 1) tokens -> (2, samples, T) inputs and targets in memory that the device can read."""
    both = torch.from_numpy(np.stack((tokens[:, :-1], tokens[:, 1:])))
    return both.pin_memory() if device.type == "cuda" else both


class Feed:
    """This process' part of the global batches of steps 1 to `steps`, read ahead by a thread."""

    def __init__(self, tokens: Tokens, order: Order, global_batch: int, steps: int, group: Group) -> None:
        self.tokens, self.order, self.group = tokens, order, group
        self.global_batch, self.steps = global_batch, steps
        self.ready: queue.Queue[Tensor | Exception] = queue.Queue(AHEAD)
        threading.Thread(target=self.work, daemon=True).start()

    def work(self) -> None:
        share = self.global_batch // self.group.size
        try:
            if self.group.device.type == "cuda":
                torch.cuda.set_device(self.group.device)  # a choice of the thread
            for step in range(self.steps):
                first = step * self.global_batch + self.group.rank * share
                batch = self.tokens.batch(self.order.starts(first, share), self.order.length)
                self.ready.put(inputs_and_targets(batch, self.group.device))
        except Exception as error:  # handed to the thread that trains
            self.ready.put(error)

    def next(self) -> Tensor:
        """(2, samples, T) on the device; the copy does not wait."""
        batch = self.ready.get()
        if isinstance(batch, Exception):
            raise batch
        return batch.to(self.group.device, non_blocking=True)


class Clock:
    """Seconds of every step, without waiting for the device while it trains."""

    def __init__(self, device: torch.device) -> None:
        self.on_device = device.type == "cuda"
        self.marks: list[tuple[object, object]] = []

    def now(self) -> object:
        if not self.on_device:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        start = self.now()
        yield
        self.marks.append((start, self.now()))

    def seconds(self) -> list[float]:
        """Of all steps, which must be over."""
        if self.on_device:
            return [1e-3 * start.elapsed_time(end) for start, end in self.marks]
        return [end - start for start, end in self.marks]


def largest_part(whole: int, most: int) -> int:
    """The largest divisor of `whole` that is at most `most`."""
    return max(part for part in range(1, min(whole, most) + 1) if whole % part == 0)


class Training:
    """One training of a recipe; every process of the group makes one."""

    def __init__(self, recipe: Recipe, weights: Weights, options: Options, group: Group) -> None:
        self.recipe, self.options, self.group = recipe, options, group
        self.set_precision()
        dtype = recipe.text("data.dtype")
        tokens = Tokens(recipe.files("train"), dtype)
        self.order = recipe.order(tokens)
        self.steps = recipe.steps(self.order)
        self.global_batch = recipe.integer("train.global_batch")
        self.microbatch = self.choose_microbatch()
        self.validation = Tokens(recipe.files("validation"), dtype) if recipe.files("validation") else None
        self.model = Transformer(Spec.of(recipe, options.row_multiple))
        self.model.load(weights)
        self.model.to(group.device)
        self.compiled = options.compiled
        self.wrap()
        self.optimizer = self.make_optimizer()
        self.losses = torch.zeros(self.steps + 1, dtype=torch.float64, device=group.device)  # by step
        self.norms = torch.zeros(self.steps + 1, device=group.device)
        self.clock = Clock(group.device)
        self.feed = Feed(tokens, self.order, self.global_batch, self.steps, group)

    def set_precision(self) -> None:
        self.compute = self.recipe.text("precision.compute")
        torch.set_float32_matmul_precision("highest" if self.compute == "fp32" else "high")

    def choose_microbatch(self) -> int:
        if self.global_batch % self.group.size:
            raise UserError(f"train.global_batch {self.global_batch} is no multiple of {self.group.size} processes")
        share = self.global_batch // self.group.size
        expected = self.options.microbatch
        if expected and share % expected:
            raise UserError(f"--microbatch {expected} does not divide the {share} samples of a process; nearest: "
                            f"{largest_part(share, expected)}")
        return expected or largest_part(share, self.recipe.integer("train.microbatch"))

    def wrap(self) -> None:
        """The model as it is called: compiled, and with its gradients averaged over the group."""
        mode = self.options.compile_mode
        self.callable = torch.compile(self.model, mode=mode) if self.compiled else self.model
        self.trained: nn.Module = self.callable
        if self.group.size > 1:
            ids = [self.group.device.index] if self.group.device.type == "cuda" else None
            self.trained = nn.parallel.DistributedDataParallel(self.callable, device_ids=ids,
                                                               gradient_as_bucket_view=True)

    def make_optimizer(self) -> torch.optim.AdamW | Muon:
        if self.recipe.text("optimizer.name") == "adamw":
            return self.make_adamw([])
        matrices = self.model.matrices()
        recipe = self.recipe
        return Muon(matrices, self.make_adamw([matrix for matrix, _ in matrices]), lr=recipe.real("optimizer.lr"),
                    momentum=recipe.real("optimizer.momentum"), rounds=self.compute == "bf16",
                    weight_decay=recipe.real("optimizer.weight_decay"))

    def make_adamw(self, without: list[nn.Parameter]) -> torch.optim.AdamW:
        recipe = self.recipe
        groups_of_all = self.model.decay_groups(recipe.flag("optimizer.decay_embeddings"))
        decayed, others = ([parameter for parameter in group if all(parameter is not other for other in without)]
                           for group in groups_of_all)
        beta1, beta2 = (float(beta) for beta in recipe.text("optimizer.betas").strip("[]").split(","))
        groups = [{"params": decayed, "weight_decay": recipe.real("optimizer.weight_decay")},
                  {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW([part for part in groups if part["params"]], lr=recipe.real("optimizer.lr"),
                                 betas=(beta1, beta2), eps=recipe.real("optimizer.eps"),
                                 fused=self.group.device.type == "cuda")

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.group.device.type, torch.bfloat16, enabled=self.compute == "bf16")

    def gradients(self, batch: Tensor) -> Tensor:
        """Gradients of the mean loss of the global batch; returns the summed loss of this process."""
        tokens = self.global_batch * self.order.length
        parts = batch.split(self.microbatch, dim=1)
        loss = torch.zeros((), dtype=torch.float64, device=self.group.device)
        for index, (inputs, targets) in enumerate(parts):
            waits = self.group.size > 1 and index + 1 < len(parts)
            torch.compiler.cudagraph_mark_step_begin()
            with self.trained.no_sync() if waits else contextlib.nullcontext():
                with self.autocast():
                    part = self.trained(inputs, targets)
                (part * (self.group.size / tokens)).backward()  # the group averages
            loss += part.detach()
        return loss

    def passes(self) -> None:
        """All kinds of passes over a batch of zeros."""
        self.optimizer.zero_grad(set_to_none=True)
        share = self.global_batch // self.group.size
        shape = (2, share, self.order.length)
        self.gradients(torch.zeros(shape, dtype=torch.int64, device=self.group.device))
        self.loss_of(np.zeros((1, self.order.length + 1), np.int64))
        self.optimizer.zero_grad(set_to_none=True)

    def warm_up(self) -> None:
        """Compiles; if that fails, goes on with one graph for all gradients, then without compiling."""
        while True:
            try:
                self.passes()
                break
            except torch.OutOfMemoryError as error:
                raise UserError(f"the GPU's memory does not hold a microbatch of {self.microbatch}; give a smaller "
                                "--microbatch") from error
            except Exception as error:
                if not self.compiled:
                    raise
                self.simplify(error)
        self.group.wait()

    def simplify(self, error: Exception) -> None:
        """The next simpler way to call the model after one that failed."""
        why = (str(error).splitlines() or [repr(error)])[0]
        print(f"torch.compile failed, going on more simply: {why}", file=sys.stderr, flush=True)
        dynamo = importlib.import_module("torch._dynamo")
        if self.group.size > 1 and dynamo.config.optimize_ddp:
            dynamo.config.optimize_ddp = False
        else:
            self.compiled = False
        dynamo.reset()
        self.wrap()

    def step(self, number: int) -> None:
        """Enqueues step `number`, from 1; nothing waits for the device."""
        recipe = self.recipe
        with self.clock.step():
            for part in self.optimizer.param_groups:
                part["lr"] = recipe.learning_rate(number, self.steps)
            self.losses[number] = self.gradients(self.feed.next())
            clip = recipe.real("optimizer.clip_norm")
            self.norms[number] = nn.utils.clip_grad_norm_(self.model.parameters(), clip or float("inf"))
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def loss_of(self, tokens: np.ndarray) -> Tensor:
        """Summed loss of at most a microbatch, made up to a whole one by samples that do not count."""
        batch = inputs_and_targets(np.resize(tokens, (self.microbatch, tokens.shape[1])), self.group.device)
        batch[1, len(tokens):] = IGNORED
        inputs, targets = batch.to(self.group.device, non_blocking=True)
        torch.compiler.cudagraph_mark_step_begin()
        with self.autocast():
            return self.callable(inputs, targets)

    def evaluate(self) -> float:
        """Mean loss of the samples that a validation of the run takes, in nats."""
        assert self.validation is not None
        length, size = self.order.length, self.microbatch
        order = Order("blocks", len(self.validation), length, 0)
        count = self.recipe.validation_samples(order)
        starts: Indices = np.arange(count) * length
        loss = torch.zeros(1, dtype=torch.float64, device=self.group.device)
        for first in range(self.group.rank * size, count, self.group.size * size):
            loss += self.loss_of(self.validation.batch(starts[first:first + size], length))
        return self.group.sum(loss).item() / (count * length)

    def training_losses(self) -> list[float]:
        """Mean losses of all steps so far, index 0 is step 1; waits for the device."""
        tokens = self.global_batch * self.order.length
        return (self.group.sum(self.losses.clone()) / tokens).tolist()[1:len(self.clock.marks) + 1]

    def gradient_norms(self) -> list[float]:
        """Of all steps so far, before clipping; waits for the device."""
        return self.norms.tolist()[1:len(self.clock.marks) + 1]

    def step_seconds(self) -> list[float]:
        """Of all steps so far; waits for the device."""
        if self.group.device.type == "cuda":
            torch.cuda.synchronize()
        return self.clock.seconds()
