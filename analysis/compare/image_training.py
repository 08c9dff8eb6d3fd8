# SPDX-License-Identifier: Apache-2.0
"""A whole training on images beside PyTorch: the same model, weights, order of images, schedule and steps.

python3 -m analysis.compare.image_training RUN --weights FOLDER [--output FILE.json] [--device cuda|cpu]

RUN is the directory of a finished run of hyperslab without augmentation, on packed images of the model's own size; its
resolved deck says what PyTorch trains (`--set key=value` overrides), its metrics.jsonl holds the accuracies to compare
with. FOLDER holds the run's initial weights, from `hyperslab checkpoint export ... --format timm`; `--binary` makes
them there. Start it where the run was started, so that its images are found.
"""
from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.compare.recipe import Recipe, read_recipe
from analysis.compare.samples import Indices, permuted
from analysis.compare.training import make_initial, write
from analysis.compare.vit_weights import FILE, read_export
from analysis.errors import UserError, one_line
from analysis.packed_images import PackedImages, Pixels
from analysis.runs import Metrics, Run, read_metrics, typical_rate
from analysis.tables import number, text_table

# Keys that the PyTorch side knows in one way only; without augmentation an image is what its file holds.
ONLY = {
    "model.family": ("vit",), "model.norm": ("layernorm",), "model.norm_place": ("pre",), "model.bias": ("true",), "model.unbiased_qkv": ("false",),
    "model.activation": ("gelu",), "model.dropout": ("0",), "model.drop_path": ("0",), "model.channels": ("3",), "model.mup_base_width": ("0",),
    "augment.crop": ("center",), "augment.validation_crop": ("1",), "augment.flip": ("0",), "augment.policy": ("none",),
    "augment.brightness": ("0",), "augment.contrast": ("0",), "augment.saturation": ("0",), "augment.mixup": ("0",),
    "augment.cutmix": ("0",), "augment.erase": ("0",), "augment.repeats": ("1",), "optimizer.name": ("adamw",), "optimizer.decay_norms_and_biases": ("false",),
    "optimizer.cautious_decay": ("false",), "optimizer.state": ("fp32",),
    "precision.compute": ("fp32", "tf32", "bf16"),
    "train.overfit_one_batch": ("false",), "data.sampling": ("blocks",),
}
FIRST_LOSS_NATS = {"fp32": 2e-3, "tf32": 1e-2, "bf16": 3e-2}  # how far losses of step 1 may be apart


@dataclass(frozen=True)
class ImageOrder:
    """Which image of a set a sample is, as io::ImageSamples of the program."""

    images: int
    seed: int

    def indices(self, first: int, count: int) -> Indices:
        """Of samples [first, first + count) of training."""
        epochs, places = np.divmod(np.arange(first, first + count, dtype=np.uint64), np.uint64(self.images))
        out = np.empty_like(places)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            out[here] = permuted(places[here], self.images, self.seed, int(epoch))
        return out.astype(np.int64)


def read_images(folder: str, size: int) -> tuple[Pixels, Indices]:
    """All images of a packed set, (images, size, size, 3), and their labels."""
    packed = PackedImages(Path(folder))
    pixels = np.empty((len(packed), size, size, 3), np.uint8)
    for index in range(len(packed)):
        image = packed[index]
        if image.shape != (size, size, 3):
            raise UserError(f"{folder}: image {index} has {image.shape[1]} x {image.shape[0]} pixels, expected {size} x "
                            f"{size}; compare images of the model's own size")
        pixels[index] = image
    return pixels, packed.labels


def make_weights(arguments: argparse.Namespace) -> None:
    """The initial weights of the deck, exported, unless they are there."""
    if (arguments.weights / FILE).is_file() or not arguments.binary:
        return
    folder = arguments.run / "initial"
    make_initial(arguments.binary, arguments.run, folder, arguments.set)
    done = subprocess.run([*arguments.binary.split(), "checkpoint", "export", str(folder / "checkpoints"), "--format", "timm",
                           "--output", str(arguments.weights)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(f"checkpoint export ended with {done.returncode}: {done.stderr.strip()[-400:]}")


def one_folder(recipe: Recipe, part: str) -> str:
    folders = recipe.files(part)
    if len(folders) != 1:
        raise UserError(f"{recipe.path}: data.{part} names {len(folders)} sets, expected one packed folder")
    return folders[0]


def content_of(metrics: Metrics, rows: list[dict[str, float]], losses: list[float], rate: float, seconds: float) -> dict[str, Any]:
    ours = metrics.column("loss")[:len(losses)]
    return {
        "format": 1, "run": metrics.run.label, "validation": rows,
        "top1_difference_at_end": rows[-1]["hyperslab"] - rows[-1]["pytorch"] if rows else None,
        "largest_training_difference": float(np.nanmax(np.abs(ours - np.array(losses[:ours.size])))) if losses else None,
        "hyperslab": {"images_per_second": typical_rate(metrics)},
        "pytorch": {"images_per_second": rate, "training_losses": losses, "wall_seconds": seconds},
    }


def check_first_loss(metrics: Metrics, loss: float, compute: str) -> None:
    """The loss before the first update says whether model, weights and images are the same."""
    ours = float(metrics.column("loss")[0])
    if not abs(ours - loss) <= FIRST_LOSS_NATS[compute]:
        raise UserError(f"the loss of step 1 is {ours:.5f} in {metrics.run.label} and {loss:.5f} in PyTorch, more than "
                        f"{FIRST_LOSS_NATS[compute]} apart: not the same weights, images or model")


def compare(arguments: argparse.Namespace) -> None:
    from analysis.compare.torch_images import ImageTraining
    recipe = read_recipe(arguments.run, arguments.set, ONLY)
    metrics = read_metrics(Run(arguments.run, arguments.run.resolve().name))
    make_weights(arguments)
    size = recipe.integer("model.image")
    train, validation = (read_images(one_folder(recipe, part), size) for part in ("train", "validation"))
    order = ImageOrder(len(train[1]), recipe.integer("run.seed"))
    training = ImageTraining(recipe, read_export(arguments.weights), train, validation, order, arguments.device)
    ours = {int(step): float(top1) for step, top1 in zip(metrics.steps, metrics.column("validation_top1"))
            if not np.isnan(top1)}
    rows: list[dict[str, float]] = []
    start = time.perf_counter()
    for step in range(1, (arguments.stop_after or training.steps) + 1):
        training.step(step)
        if step == 1:
            check_first_loss(metrics, training.losses()[0], recipe.text("precision.compute"))
        if recipe.validates(step, training.steps) and step in ours:
            rows.append({"step": step, "hyperslab": ours[step], "pytorch": training.top1()})
            print(f"step {step}/{training.steps}: top-1 {100 * ours[step]:.2f} %, pytorch {100 * rows[-1]['pytorch']:.2f} %",
                  flush=True)
            write(arguments.output, content_of(metrics, rows, training.losses(), training.rate(),
                                               time.perf_counter() - start))
    table = [[str(row["step"]), *(number(100 * row[key], 2) for key in ("hyperslab", "pytorch")),
              f"{100 * (row['hyperslab'] - row['pytorch']):+.2f}"] for row in rows]
    print(text_table(["top-1 (%) at step", "hyperslab", "pytorch", "difference"], table))


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m analysis.compare.image_training", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--weights", type=Path, metavar="FOLDER", help="of the initial weights (default: RUN/weights)")
    parser.add_argument("--binary", metavar="COMMAND", help="hyperslab, to make the initial weights")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="default: RUN/pytorch.json")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="overrides a key of the deck")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--stop-after", type=int, default=0, metavar="STEP")
    arguments = parser.parse_args(words)
    arguments.weights = arguments.weights or arguments.run / "weights"
    arguments.output = arguments.output or arguments.run / "pytorch.json"
    try:
        compare(arguments)
    except (UserError, OSError) as error:
        print(f"compare.image_training: {one_line(str(error))}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"compare.image_training: Python module {error.name} is missing; install PyTorch", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
