# SPDX-License-Identifier: Apache-2.0
"""Training on images in PyTorch by a recipe: the same weights, images, schedule and optimizer as a run of hyperslab."""
from __future__ import annotations

import time
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from analysis.compare.recipe import Recipe, Weights
from analysis.compare.samples import Indices
from analysis.compare.vit_model import Spec, VisionTransformer
from analysis.errors import UserError
from analysis.packed_images import Pixels
from analysis.runs import steady

ImagesAndLabels = tuple[Pixels, Indices]


class Order(Protocol):
    def indices(self, first: int, count: int) -> Indices: ...


def numbers(recipe: Recipe, key: str) -> list[float]:
    return [float(word) for word in recipe.text(key).strip("[]").split(",")]


class ImageTraining:
    """One training in one process; all images stay in the memory of the device."""

    def __init__(self, recipe: Recipe, weights: Weights, train: ImagesAndLabels, validation: ImagesAndLabels, order: Order,
                 device: str) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise UserError("PyTorch sees no GPU; give --device cpu")
        self.recipe, self.order, self.device = recipe, order, torch.device(device)
        self.compute = recipe.text("precision.compute")
        torch.set_float32_matmul_precision("highest" if self.compute == "fp32" else "high")
        self.train, self.validation = self.on_device(train), self.on_device(validation)
        self.mean, self.deviation = (torch.tensor(numbers(recipe, f"augment.{key}"), device=self.device).view(1, 3, 1, 1)
                                     for key in ("mean", "deviation"))
        self.batch = recipe.integer("train.global_batch")
        self.steps = recipe.steps_of(len(train[1]))
        self.model = VisionTransformer(Spec.of(recipe))
        self.model.load(weights)
        self.model.to(self.device)
        self.optimizer = self.make_optimizer()
        self.step_losses: list[Tensor] = []
        self.seconds: list[float] = []

    def on_device(self, part: ImagesAndLabels) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(part[0]).to(self.device), torch.from_numpy(part[1]).to(self.device)

    def make_optimizer(self) -> torch.optim.AdamW:
        recipe = self.recipe
        decayed, others = self.model.decay_groups(recipe.flag("optimizer.decay_embeddings"))
        beta1, beta2 = numbers(recipe, "optimizer.betas")
        return torch.optim.AdamW([{"params": decayed, "weight_decay": recipe.real("optimizer.weight_decay")},
                                  {"params": others, "weight_decay": 0.0}], lr=recipe.real("optimizer.lr"),
                                 betas=(beta1, beta2), eps=recipe.real("optimizer.eps"))

    def logits(self, images: Tensor) -> Tensor:
        """Of (B, rows, columns, 3) bytes."""
        x = (images.permute(0, 3, 1, 2).float() / 255.0 - self.mean) / self.deviation
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.compute == "bf16"):
            return self.model(x).float()

    def step(self, number: int) -> None:
        """Step `number`, from 1."""
        start = time.perf_counter()
        recipe = self.recipe
        for part in self.optimizer.param_groups:
            part["lr"] = recipe.learning_rate(number, self.steps)
        index = torch.from_numpy(self.order.indices((number - 1) * self.batch, self.batch)).to(self.device)
        loss = functional.cross_entropy(self.logits(self.train[0][index]), self.train[1][index],
                                        label_smoothing=recipe.real("model.label_smoothing"))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        clip = recipe.real("optimizer.clip_norm")
        nn.utils.clip_grad_norm_(self.model.parameters(), clip or float("inf"))
        self.optimizer.step()
        self.step_losses.append(loss.detach())
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - start)

    @torch.no_grad()
    def top1(self) -> float:
        """Share of all validation images whose class has the largest logit."""
        right = sum(int((self.logits(images).argmax(dim=1) == labels).sum()) for images, labels in
                    zip(*(part.split(self.batch) for part in self.validation)))
        return right / len(self.validation[1])

    def losses(self) -> list[float]:
        """Of all steps so far."""
        return [float(loss) for loss in self.step_losses]

    def rate(self) -> float:
        """Images per second of a median step."""
        return self.batch / float(np.median(steady(np.array(self.seconds))))
