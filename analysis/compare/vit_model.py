# SPDX-License-Identifier: Apache-2.0
"""The vision transformers that decks describe as a plain PyTorch module, with timm's names of the parameters."""
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from analysis.compare.recipe import Recipe, Weights
from analysis.errors import UserError


@dataclass(frozen=True)
class Spec:
    """Deck section `model`, resolved."""

    layers: int
    width: int
    heads: int
    ffn_width: int
    image: int
    patch: int
    channels: int
    classes: int
    pooling: str  # token | mean
    position: str  # learned | sincos2d | none
    norm_eps: float

    @staticmethod
    def of(recipe: Recipe) -> Spec:
        integers = ("layers", "width", "heads", "ffn_width", "image", "patch", "channels", "classes")
        return Spec(**{key: recipe.integer(f"model.{key}") for key in integers},
                    **{key: recipe.text(f"model.{key}") for key in ("pooling", "position")},
                    norm_eps=recipe.real("model.norm_eps"))

    @property
    def tokens(self) -> int:
        return (self.image // self.patch) ** 2 + (1 if self.pooling == "token" else 0)


def sincos2d(width: int, grid: int) -> Tensor:
    """(grid^2, width): sine and cosine of the column, then of the row (Chen et al. 2021, section 4.4)."""
    quarter = width // 4
    omega = 10000.0 ** (-torch.arange(quarter, dtype=torch.float64) / quarter)
    row, column = torch.meshgrid(torch.arange(grid), torch.arange(grid), indexing="ij")
    angles = [torch.outer(each.flatten().double(), omega) for each in (column, row)]
    return torch.cat([part for each in angles for part in (each.sin(), each.cos())], dim=1).float()


class Attention(nn.Module):
    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.heads = spec.heads
        self.qkv = nn.Linear(spec.width, 3 * spec.width)
        self.proj = nn.Linear(spec.width, spec.width)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        query, key, value = self.qkv(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return self.proj(mixed.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(spec.width, eps=spec.norm_eps), Attention(spec)
        self.norm2 = nn.LayerNorm(spec.width, eps=spec.norm_eps)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(spec.width, spec.ffn_width), "fc2": nn.Linear(spec.ffn_width, spec.width)})

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp["fc2"](functional.gelu(self.mlp["fc1"](self.norm2(x))))


class VisionTransformer(nn.Module):
    """forward: the logits (B, classes) of images (B, channels, rows, columns)."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(spec.channels, spec.width, spec.patch, spec.patch)})
        if spec.pooling == "token":
            self.cls_token = nn.Parameter(torch.zeros(1, 1, spec.width))
        if spec.position == "learned":
            self.pos_embed = nn.Parameter(torch.zeros(1, spec.tokens, spec.width))
        elif spec.position == "sincos2d":
            table = sincos2d(spec.width, spec.image // spec.patch)
            first = spec.tokens - len(table)
            self.register_buffer("pos_embed", functional.pad(table, (0, 0, first, 0))[None], persistent=False)
        self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.layers))
        self.norm = nn.LayerNorm(spec.width, eps=spec.norm_eps)
        self.head = nn.Linear(spec.width, spec.classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_embed["proj"](images).flatten(2).transpose(1, 2)
        if self.spec.pooling == "token":
            x = torch.cat((self.cls_token.expand(len(x), -1, -1), x), dim=1)
        if self.spec.position != "none":
            x = x + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0] if self.spec.pooling == "token" else x.mean(dim=1)))

    def decay_groups(self, decay_embeddings: bool) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Parameters with weight decay, and those without: norms, biases and, by choice, patch matrix, class token and positions."""
        decayed: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in self.named_parameters():
            table = name in ("cls_token", "pos_embed", "patch_embed.proj.weight")
            free = not decay_embeddings if table else parameter.dim() < 2
            (others if free else decayed).append(parameter)
        return decayed, others

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        """Takes all parameters by timm's names; every tensor must be there, fixed positions may be."""
        left = {name.replace("fc_norm.", "norm."): value for name, value in weights.items()}
        for name, parameter in self.named_parameters():
            value = left.pop(name, None)
            if value is None or value.size != parameter.numel():
                found = "nothing" if value is None else f"{tuple(value.shape)}"
                raise UserError(f"weights: expected {name} of {tuple(parameter.shape)}, found {found}; they are of another "
                                "model")
            parameter.copy_(torch.from_numpy(value.copy()).view(parameter.shape))
        left.pop("pos_embed", None)
        if left:
            raise UserError(f"weights: there is {next(iter(left))} beyond the model; they are of another model")
