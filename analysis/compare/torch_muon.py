# SPDX-License-Identifier: Apache-2.0
"""Muon as hyperslab has it, by torch.optim.Muon: matrices of blocks, each alone, and AdamW for all else."""
from __future__ import annotations

import contextlib
from typing import Iterator, Sequence
from unittest import mock

import torch
from torch import Tensor, nn


@contextlib.contextmanager
def unrounded() -> Iterator[None]:
    """torch.optim.Muon rounds a matrix to bf16 before it multiplies, and its versions ask for that in two ways; in here
    it goes on with a copy in f32."""
    with mock.patch.object(torch, "bfloat16", torch.float32), \
            mock.patch.object(torch.Tensor, "bfloat16", lambda self: self.clone()):
        yield


class Muon:
    """torch.optim.Muon on the parts of matrices beside another optimizer.

    `matrices`: (parameter, rows of its parts). Learning rates are those of AdamW (adjust_lr_fn match_rms_adamw).
    `rounds`: whether products are in bf16, which is all that torch.optim.Muon knows; if not, its own code runs
    without that rounding.
    """

    def __init__(self, matrices: Sequence[tuple[nn.Parameter, Sequence[int]]], others: torch.optim.Optimizer,
                 *, lr: float, momentum: float, weight_decay: float, rounds: bool) -> None:
        self.matrices = matrices
        self.others = others
        self.rounds = rounds
        self.parts = [[nn.Parameter(part) for part in matrix.detach().split(list(rows))]
                      for matrix, rows in matrices]
        self.muon = torch.optim.Muon([part for parts in self.parts for part in parts], lr=lr, momentum=momentum,
                                     weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
        self.param_groups = [*self.muon.param_groups, *others.param_groups]

    def step(self) -> None:
        """Updates the parts, which have the memory of the parameters, and all else."""
        for (matrix, rows), parts in zip(self.matrices, self.parts):
            assert isinstance(matrix.grad, Tensor)
            for part, gradient in zip(parts, matrix.grad.split(list(rows))):
                part.grad = gradient
        with contextlib.nullcontext() if self.rounds else unrounded():
            self.muon.step()
        self.others.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.others.zero_grad(set_to_none)
        for matrix, _ in self.matrices:
            if set_to_none:
                matrix.grad = None
            elif matrix.grad is not None:
                matrix.grad.zero_()
