# SPDX-License-Identifier: Apache-2.0
"""A whole training beside PyTorch: the same model, weights, samples, schedule and steps.

python3 -m analysis.compare.training RUN [--output FILE.json] [--device cuda|cpu] ...
torchrun --nproc-per-node 4 -m analysis.compare.training RUN ...

RUN is the directory of a finished run of hyperslab; its resolved deck says what PyTorch trains (`--set key=value`
overrides), its metrics.jsonl holds the losses to compare with. Start it where the run was started, so that its token
files are found. Initial weights come from the checkpoint `--initial`, from RUN/initial, or are made there by `--binary`
(a step of no length on the CPU). PyTorch uses torch.compile, autocast to the deck's precision, scaled dot product
attention, fused AdamW, and with torchrun one process a GPU (DistributedDataParallel).
"""
from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from analysis.compare.recipe import Recipe, Weights, read_recipe, read_weights
from analysis.errors import UserError, one_line, visible
from analysis.runs import Metrics, Run, read_metrics, steady, typical_rate
from analysis.tables import number, sanitized, text_table

# A rate that changes no weight but zeros, and those by less than anything sees.
NO_STEP = "1e-30"
INITIAL = ("run.device=cpu", "precision.compute=fp32", f"optimizer.lr={NO_STEP}", "schedule.warmup_steps=0",
           "train.steps=1", "train.epochs=0", "train.global_batch=1", "train.microbatch=1", "train.validate_every=0",
           "train.log_norms=0", "data.validation=[]", "parallel.data=1", "parallel.tensor=1", "parallel.pipeline=1",
           "parallel.sequence=false", "parallel.schedule=1f1b", "parallel.virtual_stages=1", "parallel.stage_layers=[]",
           "parallel.zero=0", "memory.recompute=none", "model.attention=auto", "checkpoint.directory=null",
           "checkpoint.every=0", "checkpoint.final=true", "checkpoint.resume=never", "timing.trace_steps=[]")
FIRST_LOSS_NATS = {"fp32": 2e-3, "tf32": 1e-2, "bf16": 3e-2}  # how far losses of step 1 may be apart


def make_initial(binary: str, run: Path, folder: Path, overrides: list[str]) -> None:
    """A run that leaves a checkpoint of the initial weights of a deck in `folder`."""
    settings = [*overrides, *INITIAL, f"run.directory={folder}"]
    command = [*binary.split(), "train", str(run / "deck.yaml"), "--resume", "never",
               *(word for setting in settings for word in ("--set", setting))]
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr.strip()[-400:]}")


def initial_weights(arguments: argparse.Namespace, is_first: bool, wait: Any) -> Weights:
    if arguments.initial:
        return read_weights(arguments.initial)
    folder = arguments.run / "initial"
    if not (folder / "checkpoints" / "latest").exists():
        if not arguments.binary:
            raise UserError(f"{folder} holds no checkpoint of the initial weights; give --binary or --initial")
        if is_first:
            make_initial(arguments.binary, arguments.run, folder, arguments.set)
    wait()
    return read_weights(folder)


def measured(metrics: Metrics) -> dict[int, float]:
    """Validation losses of hyperslab by step."""
    losses = metrics.column("validation_loss")
    return {int(step): float(loss) for step, loss in zip(metrics.steps, losses) if not math.isnan(loss)}


def tail(losses: list[float]) -> float:
    """Mean of the last 20."""
    known = [loss for loss in losses[-20:] if not math.isnan(loss)]
    return float(np.mean(known)) if known else math.nan


class Comparison:
    """What both did, as far as PyTorch has come."""

    def __init__(self, recipe: Recipe, metrics: Metrics, training: Any) -> None:
        self.recipe, self.metrics, self.training = recipe, metrics, training
        self.ours = measured(metrics)
        self.theirs: dict[int, float] = {}
        self.started = time.perf_counter()

    def content(self) -> dict[str, Any]:
        import torch
        training, metrics = self.training, self.metrics
        losses, seconds = training.training_losses(), training.step_seconds()
        device = training.group.device
        common = sorted(self.ours.keys() & self.theirs.keys())
        rows = [{"step": step, "hyperslab": self.ours[step], "pytorch": self.theirs[step],
                 "difference": self.ours[step] - self.theirs[step]} for step in common]
        our_losses = metrics.column("loss")[:len(losses)].tolist()
        distance = np.abs(np.array(our_losses) - np.array(losses[:len(our_losses)]))
        return {
            "format": 1, "run": metrics.run.label, "deck": self.recipe.deck,
            "parameters": training.model.parameter_count(), "tokens_per_step": self.recipe.tokens_per_step,
            "steps": training.steps, "steps_done": len(losses), "tokens": len(losses) * self.recipe.tokens_per_step,
            "validation": rows,
            "validation_difference_at_end": rows[-1]["difference"] if rows else None,
            "largest_training_difference": float(np.nanmax(distance)) if distance.size else None,
            "hyperslab": {"ranks": self.recipe.ranks, "tokens_per_second": typical_rate(metrics),
                          "training_loss_last_20": tail(our_losses), "training_losses": our_losses,
                          "wall_seconds": float(np.nanmax(metrics.column("wall_seconds")))},
            "pytorch": {"ranks": training.group.size, "version": torch.__version__,
                        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
                        "compute": training.compute, "compiled": training.compiled,
                        "microbatch": training.microbatch, "table_rows": training.model.spec.rows,
                        "tokens_per_second": self.recipe.tokens_per_step / float(np.median(steady(np.array(seconds)))) if seconds else None,
                        "training_loss_last_20": tail(losses), "training_losses": losses,
                        "wall_seconds": time.perf_counter() - self.started},
        }

    def check_first_step(self) -> None:
        """Losses before the first update say whether model, weights and samples are the same."""
        theirs, ours = self.training.training_losses()[0], float(self.metrics.column("loss")[0])
        limit = FIRST_LOSS_NATS[self.training.compute]
        if not abs(ours - theirs) <= limit:
            raise UserError(f"the loss of step 1 is {ours:.5f} in {self.metrics.run.label} and {theirs:.5f} in "
                            f"PyTorch, more than {limit} apart: not the same weights, samples or model")


def tables(content: dict[str, Any]) -> str:
    ours, theirs = content["hyperslab"], content["pytorch"]
    validation = [[str(row["step"]), *(number(row[key]) for key in ("hyperslab", "pytorch")),
                   f"{row['difference']:+.4f}"] for row in content["validation"]]
    numbers = [["tokens/s, median step", *(number(each["tokens_per_second"], 0) for each in (ours, theirs)),
                f"x {ours['tokens_per_second'] / theirs['tokens_per_second']:.3f}"],
               ["training loss, last 20 steps",
                *(number(each["training_loss_last_20"]) for each in (ours, theirs)),
                f"{ours['training_loss_last_20'] - theirs['training_loss_last_20']:+.4f}"],
               ["wall time (s)", *(number(each["wall_seconds"], 1) for each in (ours, theirs)), ""],
               ["ranks", *(str(each["ranks"]) for each in (ours, theirs)), ""]]
    compiled = "compiled" if theirs["compiled"] else "not compiled"
    head = (f"{content['run']}: {content['parameters']:,} parameters, {content['tokens']:,} tokens in "
            f"{content['steps_done']} of {content['steps']} steps; PyTorch {theirs['version']} {compiled}, "
            f"{theirs['compute']}, {theirs['device']}")
    return "\n\n".join([
        head,
        text_table(["validation loss at step", "hyperslab", "pytorch", "difference"], validation) if validation
        else "No validation was measured by both.",
        text_table(["", "hyperslab", "pytorch", ""], numbers)])


def write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(sanitized(content), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    part.replace(path)


def compare(arguments: argparse.Namespace) -> None:
    """Trains, says at every validation how far both are apart, and writes the file each time."""
    from analysis.compare.torch_training import Group, Options, Training
    recipe = read_recipe(arguments.run, arguments.set)
    metrics = read_metrics(Run(arguments.run, arguments.run.resolve().name))
    on_gpu = arguments.device == "cuda"
    compiled = arguments.compile == "on" or (arguments.compile == "auto" and on_gpu)
    options = Options(arguments.device, compiled, arguments.compile_mode, arguments.microbatch,
                      arguments.row_multiple or (128 if on_gpu else 1))
    group = Group(arguments.device)
    say = (lambda text: print(visible(text), flush=True)) if group.rank == 0 else (lambda text: None)
    training = Training(recipe, initial_weights(arguments, group.rank == 0, group.wait), options, group)
    start = time.perf_counter()
    training.warm_up()
    say(f"ready after {time.perf_counter() - start:.1f} s: {training.steps} steps of {recipe.tokens_per_step:,} "
        f"tokens, {group.size} process(es), microbatch {training.microbatch}")
    comparison = Comparison(recipe, metrics, training)
    last = min(training.steps, arguments.stop_after or training.steps)
    for step in range(1, last + 1):
        training.step(step)
        if step == 1:
            comparison.check_first_step()
        if recipe.validates(step, training.steps) or step == last:
            if training.validation is not None:
                comparison.theirs[step] = training.evaluate()
            report(comparison, step, arguments.output if group.rank == 0 else None, say)
    content = comparison.content()
    say("\n" + tables(content))
    group.close()


def report(comparison: Comparison, step: int, output: Path | None, say: Any) -> None:
    """A line on this validation, and all so far in the file."""
    content = comparison.content()
    ours, theirs = comparison.ours.get(step, math.nan), comparison.theirs.get(step, math.nan)
    rate = content["pytorch"]["tokens_per_second"]
    say(f"step {step}/{comparison.training.steps}  validation loss: hyperslab {number(ours)}, pytorch "
        f"{number(theirs)}, difference {number(ours - theirs)}; pytorch {number(rate, 0)} tokens/s")
    if output is not None:
        write(output, content)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m analysis.compare.training", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="default: RUN/pytorch.json")
    parser.add_argument("--initial", type=Path, metavar="CHECKPOINT", help="of the initial weights")
    parser.add_argument("--binary", metavar="COMMAND", help="hyperslab, to make the initial weights in RUN/initial")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="overrides a key of the deck")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--compile", choices=("auto", "on", "off"), default="auto", help="auto: on a GPU")
    parser.add_argument("--compile-mode", default="default", help="of torch.compile, such as reduce-overhead")
    parser.add_argument("--microbatch", type=int, default=0, metavar="N",
                        help="samples of a pass (default: the deck's, or the largest part of a process' share below)")
    parser.add_argument("--row-multiple", type=int, default=0, metavar="N",
                        help="rows of the tables are made up to a multiple by zeros (default: 128 on a GPU, else 1)")
    parser.add_argument("--stop-after", type=int, default=0, metavar="STEP")
    return parser


def main(words: list[str] | None = None) -> int:
    arguments = make_parser().parse_args(words)
    arguments.output = arguments.output or arguments.run / "pytorch.json"
    try:
        compare(arguments)
    except (UserError, OSError) as error:
        print(f"compare.training: {one_line(str(error))}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"compare.training: Python module {error.name} is missing; install PyTorch", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
