# SPDX-License-Identifier: Apache-2.0
"""What a run of hyperslab trains, from its resolved deck, and the weights in its checkpoints; NumPy alone."""
from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

import numpy as np
import numpy.typing as npt

from analysis.compare.samples import Order, Tokens
from analysis.deck import EARLIER, Deck, read_deck
from analysis.errors import UserError
from analysis.json_files import read_json
from analysis.runs import Run
from analysis.starts import mixed_text

Weights = dict[str, npt.NDArray[np.float32]]

Choices = dict[str, tuple[str, ...]]

# Keys that the PyTorch side knows in one way only.
ONLY: Choices = {
    "model.norm_place": ("pre",), "model.parallel_block": ("false",), "model.dropout": ("0",), "model.position": ("learned", "rope", "none"),
    "model.norm": ("layernorm", "rmsnorm"), "model.activation": ("gelu_tanh", "swiglu"),
    "data.ignore_token": ("-1",), "data.loss_mask": ("false",), "data.token_weights": ("false",), "data.validation_fraction": ("0",), "data.weights": ("[]",), "data.documents": ("joined",), "data.packing": ("contiguous",), "data.predict_starts": ("true",),
    "optimizer.name": ("adamw", "muon"), "optimizer.decay_norms_and_biases": ("false",),
    "optimizer.cautious_decay": ("false",), "optimizer.state": ("fp32",), "precision.compute": ("fp32", "tf32", "bf16"), "precision.gemm": ("compute",),
    "train.overfit_one_batch": ("false",), "train.z_loss": ("0",), "train.loss": ("cross_entropy",),
    "model.head_width": ("0",), "model.qkv_bias": ("false",), "model.unbiased_qkv": ("false",), "model.qk_norm": ("none",), "model.rotary_fraction": ("1",), "model.rope_scaling": ("none",),
    "model.window": ("0",), "model.attention_scale": ("0",), "model.attention_softcap": ("0",), "model.attention_sinks": ("false",), "model.logit_softcap": ("0",),
    "model.mup_base_width": ("0",),
}


_PIECE = {"file": str, "file_offset": int, "offset": [int], "count": [int]}
MANIFEST = {"tensors": {str: {"dtype": str, "global_shape": [int], "pieces": [_PIECE]}}}


def words(text: str) -> list[str]:
    """["a b", c] as the program writes lists."""
    parts = re.findall(r'"((?:[^"\\]|\\.)*)"|([^\s,\[\]"]+)', text)
    return [re.sub(r"\\(.)", r"\1", quoted) if quoted else plain for quoted, plain in parts]


@dataclass(frozen=True)
class Recipe:
    """The resolved deck, by "section.key", with typed access."""

    deck: Deck
    path: str

    def text(self, key: str) -> str:
        if key not in self.deck:
            raise UserError(f"{self.path}: no key {key}; give the deck.yaml that `hyperslab train` wrote")
        return self.deck[key].strip('"')

    def integer(self, key: str) -> int:
        return int(self.real(key))

    def real(self, key: str) -> float:
        try:
            value = float(self.text(key))
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise UserError(f"{self.path}: {key} is `{self.text(key)}`, expected a number")
        return value

    def flag(self, key: str) -> bool:
        return self.text(key) == "true"

    def files(self, part: str) -> list[str]:
        return words(self.deck.get(f"data.{part}", ""))

    @property
    def ranks(self) -> int:
        return math.prod(self.integer(f"parallel.{axis}") for axis in ("data", "tensor", "pipeline"))

    @property
    def tokens_per_step(self) -> int:
        return self.integer("train.global_batch") * self.integer("model.context")

    def check(self, only: Choices) -> None:
        """Refuses what the PyTorch side does not do."""
        for key, values in only.items():
            value = self.deck.get(key, EARLIER.get(key))
            if (self.text(key) if value is None else value.strip('"')) not in values:
                raise UserError(f"{self.path}: {key} is {value}, the comparison does only {', '.join(values)}")
        for part in ("train", "validation"):
            if "synthetic" in self.files(part):
                raise UserError(f"{self.path}: data.{part} is synthetic, the comparison wants files")

    def order(self, tokens: Tokens) -> Order:
        return Order(self.text("data.sampling"), len(tokens), self.integer("model.context"),
                     self.integer("run.seed"))

    def steps(self, order: Order) -> int:
        """Steps of the whole run, of which the schedule knows."""
        return self.steps_of(order.epoch)

    def steps_of(self, epoch: int) -> int:
        """With so many samples in an epoch."""
        steps = self.integer("train.steps")
        return steps or self.integer("train.epochs") * epoch // self.integer("train.global_batch")

    def learning_rate(self, step: int, steps: int) -> float:
        """optim::learning_rate of step 1 to steps."""
        peak, warmup = self.real("optimizer.lr"), self.integer("schedule.warmup_steps")
        if step < warmup:
            return peak * step / warmup

        def progress(start: float) -> float:
            return min(max((step - start) / (steps - start), 0.0), 1.0) if steps > start else 1.0

        low, name = peak * self.real("schedule.final_fraction"), self.text("schedule.name")
        if name == "linear":
            return peak + (low - peak) * progress(warmup)
        if name == "cosine":
            return low + 0.5 * (peak - low) * (1.0 + math.cos(math.pi * progress(warmup)))
        if name == "wsd":
            start = max(warmup, steps * (1.0 - self.real("schedule.decay_fraction")))
            return peak if step <= start else peak + (low - peak) * progress(start)
        return peak

    def validates(self, step: int, steps: int) -> bool:
        """Whether the run measures the validation loss after this step."""
        every = self.integer("train.validate_every")
        return bool(self.files("validation")) and (step == steps or (every > 0 and step % every == 0))

    def validation_samples(self, order: Order) -> int:
        """Samples from the front of the validation text that a measurement takes."""
        batches = self.integer("train.validate_batches")
        return min(order.epoch, batches * self.integer("train.global_batch") or order.epoch)


def read_recipe(run: Path, overrides: Sequence[str] = (), only: Choices = ONLY) -> Recipe:
    """The deck of a run directory with key=value overrides; a run whose starts differ has none."""
    if mixed := mixed_text(Run(run, run.name)):
        raise UserError(f"{run}: {mixed}; compare a run that one deck trained from its first step on")
    deck = read_deck(Run(run, run.name))
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or key not in deck:
            raise UserError(f"--set {override}: expected key=value with a key of {run / 'deck.yaml'}")
        deck[key] = value
    recipe = Recipe(deck, str(run / "deck.yaml"))
    recipe.check(only)
    return recipe


def step_folder(path: Path) -> Path:
    """The newest checkpoint of a run, of a folder of checkpoints, or the checkpoint itself."""
    for folder in (path, path / "checkpoints"):
        if (folder / "manifest.json").is_file():
            return folder
        if steps := sorted(folder.glob("step_*/manifest.json")):
            return steps[-1].parent
    raise UserError(f"no checkpoint in {path}; name the folder of one")


def read_tensor(folder: Path, entry: dict[str, Any]) -> npt.NDArray[np.float32]:
    """Of its pieces; NaN where there is none."""
    whole = np.full(entry["global_shape"], np.nan, np.float32)
    for piece in entry["pieces"]:
        count = piece["count"]
        data = np.fromfile(folder / piece["file"], "<f4", math.prod(count), offset=piece["file_offset"])
        region = tuple(slice(first, first + size) for first, size in zip(piece["offset"], count))
        whole[region] = data.reshape(count)
    return whole


def read_weights(path: Path) -> Weights:
    """The parameters of a checkpoint of any layout as whole tensors, by their names without `model/`."""
    folder = step_folder(path)
    manifest = read_json(folder / "manifest.json", MANIFEST, "give another checkpoint")
    weights: Weights = {}
    for name, entry in manifest["tensors"].items():
        if not name.startswith("model/"):
            continue
        if entry["dtype"] != "f32":
            raise UserError(f"{folder}: {name} is {entry['dtype']}, expected f32; give a checkpoint of a training run")
        try:
            whole = read_tensor(folder, entry)
        except (IndexError, MemoryError, OverflowError, ValueError) as error:
            raise UserError(f"{folder}: the pieces of {name} make no tensor ({error}); give another checkpoint") from error
        if not np.isfinite(whole).all():
            raise UserError(f"{folder}: {name} is not whole or not finite in float32; give another checkpoint")
        weights[name.removeprefix("model/")] = whole
    return weights
