#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden files of vision transformers from a NumPy model in float64, or checks both; README.md says how."""
from __future__ import annotations

import argparse
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import generate
import reference
from reference import IGNORED, NORM_EPS, Array, Arrays, Var, add, apply_linear, first_rows, linear

GOLDEN = Path(__file__).parent


@dataclass(frozen=True)
class Vision:
    """The settings of one case; the names are those of the deck's section `model`."""

    pooling: str  # token | mean
    position: str  # learned | sincos2d
    seed: int
    label_smoothing: float = 0.0
    layers: int = 2
    width: int = 24
    heads: int = 4
    ffn_width: int = 26
    image: int = 12
    patch: int = 4
    channels: int = 3
    classes: int = 7
    batch: int = 5

    @property
    def patches(self) -> int:
        return (self.image // self.patch) ** 2

    @property
    def tokens(self) -> int:
        return self.patches + (1 if self.pooling == "token" else 0)

    @property
    def block(self) -> reference.Model:
        """What a block is made of."""
        return reference.Model("none", "layernorm", "gelu", bias=True, layers=self.layers, width=self.width,
                               heads=self.heads, kv_heads=self.heads, ffn_width=self.ffn_width)


CASES = {
    "vit_token": Vision("token", "learned", 11, label_smoothing=0.125),
    "vit_mean": Vision("mean", "sincos2d", 12, channels=1),
}


def sincos2d(model: Vision) -> Array:
    """(tokens, width): sine and cosine of the column, then of the row; zeros for the class token."""
    grid, quarter = model.image // model.patch, model.width // 4
    frequencies = 10000.0 ** (-np.arange(quarter) / quarter)
    row, column = (index.reshape(-1, 1) * frequencies for index in np.indices((grid, grid)))
    table = np.concatenate([np.sin(column), np.cos(column), np.sin(row), np.cos(row)], axis=1)
    return np.concatenate([np.zeros((model.tokens - model.patches, model.width)), table])


def with_class_token(x: Var, token: Var) -> Var:
    """x: (B, N, C) -> (B, 1 + N, C)."""
    first = np.broadcast_to(token.value, (len(x.value), 1, x.value.shape[2]))
    out = Var(np.concatenate([first, x.value], axis=1), (x, token))

    def pull(grad: Array) -> None:
        token.grad += grad[:, 0].sum(axis=0)
        x.grad += grad[:, 1:]

    out.pull = pull
    return out


def pooled(h: Var, pooling: str) -> Var:
    """(B, T, C) -> (B, 1, C): the first token or the mean of all."""
    T = h.value.shape[1]
    share = np.zeros((T, 1))
    if pooling == "token":
        share[0] = 1.0
    else:
        share[:] = 1.0 / T
    out = Var((h.value * share).sum(axis=1, keepdims=True), (h,))

    def pull(grad: Array) -> None:
        h.grad += grad * share

    out.pull = pull
    return out


def attend_all(query: Var, key: Var, value: Var, heads: int) -> Var:
    """softmax(q k^T / sqrt(Dh)) v; every token sees every other."""
    B, T, width = query.value.shape
    q, k, v = (x.value.reshape(B, T, heads, width // heads) for x in (query, key, value))
    scale = 1.0 / math.sqrt(width // heads)
    scores = np.einsum("bthd,bshd->bhts", q, k) * scale
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    out = Var(np.einsum("bhts,bshd->bthd", p, v).reshape(B, T, width), (query, key, value))

    def pull(grad: Array) -> None:
        d = grad.reshape(B, T, heads, width // heads)
        dp = np.einsum("bthd,bshd->bhts", d, v)
        ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * scale
        query.grad += np.einsum("bhts,bshd->bthd", ds, k).reshape(query.value.shape)
        key.grad += np.einsum("bhts,bthd->bshd", ds, q).reshape(key.value.shape)
        value.grad += np.einsum("bhts,bthd->bshd", p, d).reshape(value.value.shape)

    out.pull = pull
    return out


def block(model: Vision, p: dict[str, Var], name: str, h: Var) -> Var:
    x = reference.apply_norm(model.block, p, f"{name}.norm1", h)
    query, key, value = (apply_linear(p, f"{name}.attention.{part}", x) for part in ("query", "key", "value"))
    h = add(h, apply_linear(p, f"{name}.attention.output", attend_all(query, key, value, model.heads)))
    x = reference.apply_norm(model.block, p, f"{name}.norm2", h)
    return add(h, reference.mlp(model.block, p, f"{name}.mlp", x))


def mixed_cross_entropy(logits: Var, labels: Array, shares: Array, smoothing: float) -> Var:
    """Mean nats over the rows that count; labels (B, 2), shares (B) of the first."""
    counts = labels[:, 0] != IGNORED
    classes = logits.value.shape[-1]
    onehot = np.eye(classes)[np.maximum(labels, 0)]
    target = shares[:, None] * onehot[:, 0] + (1 - shares[:, None]) * onehot[:, 1]
    target = ((1 - smoothing) * target + smoothing / classes) * counts[:, None]
    shifted = logits.value[:, 0] - logits.value[:, 0].max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    out = Var(np.array(-(target * log_p).sum() / counts.sum()), (logits,))

    def pull(grad: Array) -> None:
        logits.grad[:, 0] += grad * (np.exp(log_p) * counts[:, None] - target) / counts.sum()

    out.pull = pull
    return out


def forward(model: Vision, weights: Arrays, batch: Arrays) -> reference.Pass:
    p = {name: Var(value) for name, value in weights.items()}
    h = apply_linear(p, "embedding.patch", Var(batch["patches"]))
    if model.pooling == "token":
        h = with_class_token(h, p["embedding.class_token"])
    table = p["embedding.position.weight"] if model.position == "learned" else Var(sincos2d(model))
    h = add(h, first_rows(table, model.tokens))
    activations = {"embedding": h.value}
    for i in range(model.layers):
        h = block(model, p, f"blocks.{i}", h)
        activations[f"blocks.{i}.output"] = h.value
    h = reference.apply_norm(model.block, p, "final_norm", pooled(h, model.pooling))
    logits = linear(h, p["head.weight"], p["head.bias"])
    activations["logits"] = logits.value[:, 0]
    loss = mixed_cross_entropy(logits, batch["labels"], batch["label_weights"], model.label_smoothing)
    return reference.Pass(loss, p, activations)


def parameter_shapes(model: Vision) -> dict[str, tuple[int, ...]]:
    C = model.width
    shapes: dict[str, tuple[int, ...]] = {"embedding.patch.weight": (C, model.channels * model.patch**2),
                                          "embedding.patch.bias": (C,)}
    if model.pooling == "token":
        shapes["embedding.class_token"] = (C,)
    if model.position == "learned":
        shapes["embedding.position.weight"] = (model.tokens, C)
    for i in range(model.layers):
        shapes |= generate.block_shapes(model.block, f"blocks.{i}")
    shapes |= generate.norm_shapes(model.block, "final_norm")
    return shapes | {"head.weight": (model.classes, C), "head.bias": (model.classes,)}


def singles(values: Array) -> Array:
    """What float32 holds exactly."""
    return values.astype(np.float32).astype(np.float64)


def make_weights(model: Vision, rng: np.random.Generator) -> Arrays:
    """Larger than an initialization, so that every part matters."""
    out: Arrays = {}
    for name, shape in parameter_shapes(model).items():
        noise = rng.standard_normal(shape)
        if "norm" in name:
            out[name] = singles(0.2 * noise + (1.0 if name.endswith(".weight") else 0.0))
        else:
            out[name] = singles((0.25 if len(shape) == 2 else 0.1) * noise)
    return out


def make_batch(model: Vision, rng: np.random.Generator) -> Arrays:
    """The second image is mixed with the third; the last does not count."""
    first = rng.integers(0, model.classes, model.batch)
    labels = np.stack([first, first], axis=1).astype(np.int32)
    labels[1, 1], labels[2, 1] = first[2], first[1]
    labels[-1] = IGNORED
    shares = np.ones(model.batch)
    shares[1:3] = 0.625
    patches = rng.standard_normal((model.batch, model.patches, model.channels * model.patch**2))
    return {"patches": singles(patches), "labels": labels, "label_weights": shares}


def compute(name: str, model: Vision) -> generate.Golden:
    rng = np.random.Generator(np.random.PCG64(model.seed))
    weights, batch = make_weights(model, rng), make_batch(model, rng)
    result = forward(model, weights, batch)
    reference.backward(result.loss)
    counts = batch["labels"][:, 0] != IGNORED
    main = np.where(batch["label_weights"] >= 0.5, batch["labels"][:, 0], batch["labels"][:, 1])
    order = np.argsort(-result.activations["logits"], axis=1, kind="stable")
    datasets: Arrays = batch | {
        "loss": result.loss.value, "counted_images": np.array(counts.sum(), np.int64),
        "correct_images": np.array((counts & (order[:, 0] == main)).sum(), np.int64),
        "correct5_images": np.array((counts & (order[:, :5] == main[:, None]).any(axis=1)).sum(), np.int64)}
    gradients = {key: var.grad for key, var in result.parameters.items()}
    for prefix, arrays in ((generate.WEIGHTS, weights), (generate.ACTIVATIONS, result.activations),
                           (generate.GRADIENTS, gradients)):
        datasets |= {prefix + key: value for key, value in arrays.items()}
    return generate.Golden({"name": name, "format": generate.FORMAT, "norm_eps": NORM_EPS} | asdict(model), datasets)


def farthest_gradient(model: Vision, golden: generate.Golden, step: float = 1e-5) -> float:
    """Largest difference to central differences along two directions of each tensor, relative to its gradient."""
    weights = {key: golden.datasets[generate.WEIGHTS + key] for key in parameter_shapes(model)}
    rng = np.random.Generator(np.random.PCG64(model.seed + 1000))
    worst = 0.0
    for name, value in weights.items():
        gradient = golden.datasets[generate.GRADIENTS + name]
        floor = max(float(np.abs(gradient).max()), 1e-4)
        for _ in range(2):
            direction = rng.standard_normal(value.shape) / math.sqrt(value.size)
            ends = [float(forward(model, weights | {name: value + sign * step * direction}, golden.datasets).loss.value)
                    for sign in (1.0, -1.0)]
            slope = (ends[0] - ends[1]) / (2.0 * step)
            worst = max(worst, abs(slope - float((gradient * direction).sum())) / floor)
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true",
                        help="write nothing; compare gradients with differences, files with both")
    check = parser.parse_args().check
    failed = False
    for name, model in CASES.items():
        golden = compute(name, model)
        path = GOLDEN / f"{name}.h5"
        if not check:
            generate.write(path, golden)
        worst = farthest_gradient(model, golden)
        problems = generate.check_file(path, golden)
        print(f"{name}: loss {float(golden.datasets['loss']):.6f}, gradients against differences {worst:.1e}")
        for problem in problems:
            print(f"  {problem}", file=sys.stderr)
        failed = failed or bool(problems) or worst > 1e-6
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
