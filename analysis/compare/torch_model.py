# SPDX-License-Identifier: Apache-2.0
"""The models that decks describe as a plain PyTorch module, with hyperslab's names of the parameters.

Query, key and value are one matrix, and so are gate and up; tables may have rows beyond the vocabulary, which are zero
and take no part.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from analysis.compare.recipe import Recipe, Weights
from analysis.errors import UserError

IGNORED = -100  # a target that does not count
FUSED = {"attention.qkv": ("attention.query", "attention.key", "attention.value"),
         "mlp.gate_up": ("mlp.gate", "mlp.up")}


@dataclass(frozen=True)
class Spec:
    """Deck section `model`, resolved, and the multiple of rows that tables have."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn_width: int
    vocabulary: int
    context: int
    position: str  # learned | rope | none
    rope_theta: float
    norm: str  # layernorm | rmsnorm
    norm_eps: float
    activation: str  # gelu_tanh | swiglu
    bias: bool
    tie_embeddings: bool
    row_multiple: int = 1

    @staticmethod
    def of(recipe: Recipe, row_multiple: int = 1) -> Spec:
        integers = ("layers", "width", "heads", "kv_heads", "ffn_width", "vocabulary", "context")
        return Spec(**{key: recipe.integer(f"model.{key}") for key in integers},
                    **{key: recipe.text(f"model.{key}") for key in ("position", "norm", "activation")},
                    **{key: recipe.real(f"model.{key}") for key in ("rope_theta", "norm_eps")},
                    **{key: recipe.flag(f"model.{key}") for key in ("bias", "tie_embeddings")},
                    row_multiple=row_multiple)

    @property
    def rows(self) -> int:
        """Rows of the tables."""
        return -(-self.vocabulary // self.row_multiple) * self.row_multiple

    @property
    def head_width(self) -> int:
        return self.width // self.heads


def make_norm(spec: Spec) -> nn.Module:
    if spec.norm == "rmsnorm":
        return nn.RMSNorm(spec.width, eps=spec.norm_eps)
    return nn.LayerNorm(spec.width, eps=spec.norm_eps, bias=spec.bias)


def rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """x: (B, H, T, Dh); the halves of a head are the two parts of its complex numbers (Su et al. 2021)."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cosines - high * sines, high * cosines + low * sines), dim=-1).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.widths = [heads * spec.head_width for heads in (spec.heads, spec.kv_heads, spec.kv_heads)]
        self.qkv = nn.Linear(spec.width, sum(self.widths), bias=spec.bias)
        self.output = nn.Linear(self.widths[0], spec.width, bias=spec.bias)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        B, T, _ = x.shape
        query, key, value = (part.view(B, T, -1, self.spec.head_width).transpose(1, 2)
                             for part in self.qkv(x).split(self.widths, dim=-1))
        if rope is not None:
            query, key = rotated(query, *rope), rotated(key, *rope)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=self.spec.kv_heads != self.spec.heads)
        return self.output(mixed.transpose(1, 2).reshape(B, T, self.widths[0]))


class Mlp(nn.Module):
    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.gated = spec.activation == "swiglu"
        if self.gated:
            self.gate_up = nn.Linear(spec.width, 2 * spec.ffn_width, bias=spec.bias)
        else:
            self.up = nn.Linear(spec.width, spec.ffn_width, bias=spec.bias)
        self.down = nn.Linear(spec.ffn_width, spec.width, bias=spec.bias)

    def forward(self, x: Tensor) -> Tensor:
        if not self.gated:
            return self.down(functional.gelu(self.up(x), approximate="tanh"))
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(functional.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.norm1, self.attention = make_norm(spec), Attention(spec)
        self.norm2, self.mlp = make_norm(spec), Mlp(spec)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor] | None) -> Tensor:
        x = x + self.attention(self.norm1(x), rope)
        return x + self.mlp(self.norm2(x))


def summed_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """logits: (B, T, V); targets: (B, T), of which IGNORED do not count."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED,
                                    reduction="sum")


class Transformer(nn.Module):
    """forward: the summed loss of a batch in nats, as float32."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.summed_loss = summed_loss
        self.stream_dtype: torch.dtype | None = None  # of what blocks add to; None: that of the tables
        tables = {"token": nn.Embedding(spec.rows, spec.width)}
        if spec.position == "learned":
            tables["position"] = nn.Embedding(spec.context, spec.width)
        self.embedding = nn.ModuleDict(tables)
        self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.layers))
        self.final_norm = make_norm(spec)
        self.head = nn.Linear(spec.width, spec.rows, bias=False)
        if spec.tie_embeddings:
            self.head.weight = self.embedding["token"].weight
        half = spec.head_width // 2
        angles = torch.outer(torch.arange(spec.context, dtype=torch.float64),
                             spec.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half))
        self.register_buffer("cosines", angles.cos().float(), persistent=False)
        self.register_buffer("sines", angles.sin().float(), persistent=False)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """inputs, targets: (B, T) of one length up to the context; targets of IGNORED do not count."""
        T = inputs.shape[1]
        x = self.embedding["token"](inputs)
        if self.spec.position == "learned":
            x = x + self.embedding["position"].weight[:T]
        x = x.to(self.stream_dtype or x.dtype)
        rope = (self.cosines[:T], self.sines[:T]) if self.spec.position == "rope" else None
        for block in self.blocks:
            x = block(x, rope)
        logits = self.head(self.final_norm(x))[..., :self.spec.vocabulary]
        return self.summed_loss(logits, targets)

    def decay_groups(self, decay_embeddings: bool) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Parameters with weight decay, and those without: norms, biases and, by choice, tables."""
        tables = [] if decay_embeddings else list(self.embedding.parameters())
        decayed: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for parameter in self.parameters():
            free = parameter.dim() < 2 or any(parameter is table for table in tables)
            (others if free else decayed).append(parameter)
        return decayed, others

    def matrices(self) -> list[tuple[nn.Parameter, list[int]]]:
        """The matrices of blocks, each with the rows of the parts that are matrices of their own."""
        found: list[tuple[nn.Parameter, list[int]]] = []
        for block in self.blocks:
            for name, module in block.named_modules():
                if not isinstance(module, nn.Linear):
                    continue
                rows = module.weight.shape[0]
                parts = {"attention.qkv": block.attention.widths, "mlp.gate_up": [rows // 2, rows // 2]}
                found.append((module.weight, parts.get(name, [rows])))
        return found

    @torch.no_grad()
    def load(self, weights: Weights) -> None:
        """Takes all parameters from a checkpoint's; every tensor must be there."""
        left = dict(weights)
        for name, parameter in self.named_parameters():
            layer, _, kind = name.rpartition(".")
            members = [layer]
            for fused, parts in FUSED.items():
                if layer.endswith(fused):
                    members = [layer.removesuffix(fused) + part for part in parts]
            missing = [member for member in members if f"{member}.{kind}" not in left]
            if missing:
                raise UserError(f"the checkpoint has no {missing[0]}.{kind}; it is of another model")
            value = torch.cat([torch.from_numpy(left.pop(f"{member}.{kind}")) for member in members])
            padded = parameter.dim() == 2 and parameter.shape[0] == self.spec.rows and (
                name.startswith(("embedding.token.", "head.")))
            rows = self.spec.vocabulary if padded else parameter.shape[0]
            if value.shape != (rows, *parameter.shape[1:]):
                raise UserError(f"the checkpoint's {name} is {tuple(value.shape)}, expected "
                                f"{(rows, *parameter.shape[1:])}; it is of another model")
            parameter.zero_()
            parameter[:rows].copy_(value)
        if left:
            raise UserError(f"the checkpoint has {next(iter(left))} beyond the model; it is of another model")

    def parameter_count(self) -> int:
        """Without the rows beyond the vocabulary."""
        tables = 1 if self.spec.tie_embeddings else 2
        extra = (self.spec.rows - self.spec.vocabulary) * self.spec.width * tables
        return sum(parameter.numel() for parameter in self.parameters()) - extra
