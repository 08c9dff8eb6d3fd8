# SPDX-License-Identifier: Apache-2.0
"""The model in float64 NumPy, forward and backward. It shares no code with the program."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable

import numpy as np

NORM_EPS = 1e-5
IGNORED = -1

Array = np.ndarray
Arrays = dict[str, Array]


@dataclass(frozen=True)
class Model:
    """The settings of one case; the names are those of the deck's section `model`."""

    position: str  # learned | sinusoidal | rope | none
    norm: str  # layernorm | rmsnorm | none
    activation: str
    norm_place: str = "pre"  # pre | post
    bias: bool = False
    tie_embeddings: bool = False
    layers: int = 2
    width: int = 24
    heads: int = 4
    kv_heads: int = 4
    ffn_width: int = 26
    vocabulary: int = 29
    context: int = 13
    rope_theta: float = 10000.0

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def gated(self) -> bool:
        return self.activation in ("swiglu", "geglu")

    @property
    def has_final_norm(self) -> bool:
        return self.norm != "none" and self.norm_place == "pre"


class Var:
    """A value, its gradient, and what `pull` adds to the gradients of the inputs."""

    def __init__(self, value: Array, inputs: tuple[Var, ...] = ()) -> None:
        self.value = value
        self.grad = np.zeros_like(value)
        self.inputs = inputs
        self.pull: Callable[[Array], None] = lambda grad: None


def backward(result: Var) -> None:
    """Adds d(result)/d(variable) to the `grad` of every variable that `result` depends on."""
    order: list[Var] = []
    seen: set[int] = set()

    def visit(node: Var) -> None:
        if id(node) in seen:
            return
        seen.add(id(node))
        for parent in node.inputs:
            visit(parent)
        order.append(node)

    visit(result)
    result.grad += 1.0
    for node in reversed(order):
        node.pull(node.grad)


def add(a: Var, b: Var) -> Var:
    """a + b of equal shapes, or b broadcast over the leading dimension of a."""
    out = Var(a.value + b.value, (a, b))

    def pull(grad: Array) -> None:
        a.grad += grad
        b.grad += grad if b.value.shape == grad.shape else grad.sum(axis=0)

    out.pull = pull
    return out


def first_rows(table: Var, count: int) -> Var:
    out = Var(table.value[:count], (table,))

    def pull(grad: Array) -> None:
        table.grad[:count] += grad

    out.pull = pull
    return out


def lookup(table: Var, tokens: Array, scale: float) -> Var:
    out = Var(scale * table.value[tokens], (table,))

    def pull(grad: Array) -> None:
        np.add.at(table.grad, tokens, scale * grad)

    out.pull = pull
    return out


def linear(x: Var, weight: Var, bias: Var | None) -> Var:
    """y = x W^T + b; x (B, T, in), weight (out, in)."""
    value = x.value @ weight.value.T
    out = Var(value if bias is None else value + bias.value,
              (x, weight) if bias is None else (x, weight, bias))

    def pull(grad: Array) -> None:
        x.grad += grad @ weight.value
        weight.grad += np.einsum("bto,bti->oi", grad, x.value)
        if bias is not None:
            bias.grad += grad.sum(axis=(0, 1))

    out.pull = pull
    return out


def normalize(x: Var, kind: str, weight: Var, bias: Var | None) -> Var:
    """LayerNorm or RMSNorm over the last dimension, eps inside the root."""
    centered = x.value - x.value.mean(-1, keepdims=True) if kind == "layernorm" else x.value
    rstd = 1.0 / np.sqrt((centered**2).mean(-1, keepdims=True) + NORM_EPS)
    unit = centered * rstd
    value = unit * weight.value
    out = Var(value if bias is None else value + bias.value,
              (x, weight) if bias is None else (x, weight, bias))

    def pull(grad: Array) -> None:
        weight.grad += (grad * unit).sum(axis=(0, 1))
        if bias is not None:
            bias.grad += grad.sum(axis=(0, 1))
        dunit = grad * weight.value
        dx = dunit - unit * (dunit * unit).mean(-1, keepdims=True)
        if kind == "layernorm":
            dx -= dunit.mean(-1, keepdims=True)
        x.grad += dx * rstd

    out.pull = pull
    return out


def value_and_slope(kind: str, x: Array) -> tuple[Array, Array]:
    """An activation and its derivative at x."""
    if kind in ("gelu", "geglu"):
        phi = 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))
        return x * phi, phi + x * np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    if kind == "gelu_tanh":
        root = math.sqrt(2.0 / math.pi)
        t = np.tanh(root * (x + 0.044715 * x**3))
        slope = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * root * (1.0 + 3 * 0.044715 * x * x)
        return 0.5 * x * (1.0 + t), slope
    if kind in ("silu", "swiglu"):
        sigmoid = 1.0 / (1.0 + np.exp(-x))
        return x * sigmoid, sigmoid * (1.0 + x * (1.0 - sigmoid))
    positive = np.maximum(x, 0.0)
    if kind == "relu":
        return positive, (x > 0.0).astype(np.float64)
    if kind == "relu_squared":
        return positive**2, 2.0 * positive
    raise ValueError(f"unknown activation {kind}")


def activate(x: Var, kind: str) -> Var:
    value, slope = value_and_slope(kind, x.value)
    out = Var(value, (x,))

    def pull(grad: Array) -> None:
        x.grad += grad * slope

    out.pull = pull
    return out


def multiply(a: Var, b: Var) -> Var:
    out = Var(a.value * b.value, (a, b))

    def pull(grad: Array) -> None:
        a.grad += grad * b.value
        b.grad += grad * a.value

    out.pull = pull
    return out


def rotate(x: Var, heads: int, theta: float) -> Var:
    """Rotary positions; dimension i of a head is paired with i + Dh/2. x: (B, T, heads * Dh)."""
    B, T, width = x.value.shape
    half = width // heads // 2
    angle = np.arange(T)[:, None] * theta ** (-np.arange(half) / half)[None, :]
    cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]

    def turn(values: Array, sine: Array) -> Array:
        a, b = np.split(values.reshape(B, T, heads, 2 * half), 2, axis=-1)
        return np.concatenate([a * cos - b * sine, b * cos + a * sine], -1).reshape(B, T, width)

    out = Var(turn(x.value, sin), (x,))

    def pull(grad: Array) -> None:
        x.grad += turn(grad, -sin)

    out.pull = pull
    return out


def attend(query: Var, key: Var, value: Var, heads: int, kv_heads: int) -> Var:
    """Causal softmax(q k^T / sqrt(Dh)) v; query head h reads key-value head h // (H / H_kv)."""
    B, T, width = query.value.shape
    head_width, group = width // heads, heads // kv_heads
    q = query.value.reshape(B, T, kv_heads, group, head_width)
    k = key.value.reshape(B, T, kv_heads, head_width)
    v = value.value.reshape(B, T, kv_heads, head_width)
    scale = 1.0 / math.sqrt(head_width)
    scores = np.einsum("btngd,bsnd->bngts", q, k) * scale
    scores = np.where(np.tril(np.ones((T, T), dtype=bool)), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    out = Var(np.einsum("bngts,bsnd->btngd", p, v).reshape(B, T, width), (query, key, value))

    def pull(grad: Array) -> None:
        dout = grad.reshape(B, T, kv_heads, group, head_width)
        dp = np.einsum("btngd,bsnd->bngts", dout, v)
        ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * scale
        query.grad += np.einsum("bngts,bsnd->btngd", ds, k).reshape(query.value.shape)
        key.grad += np.einsum("bngts,btngd->bsnd", ds, q).reshape(key.value.shape)
        value.grad += np.einsum("bngts,btngd->bsnd", p, dout).reshape(value.value.shape)

    out.pull = pull
    return out


def cross_entropy(logits: Var, targets: Array) -> Var:
    """Mean nats over the positions whose target is not IGNORED."""
    counted = targets != IGNORED
    shifted = logits.value - logits.value.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    onehot = np.eye(logits.value.shape[-1])[np.maximum(targets, 0)] * counted[..., None]
    count = counted.sum()
    out = Var(np.array(-(onehot * log_p).sum() / count), (logits,))

    def pull(grad: Array) -> None:
        logits.grad += grad * (np.exp(log_p) * counted[..., None] - onehot) / count

    out.pull = pull
    return out


@dataclass
class Pass:
    """One forward pass: the loss, the parameters as variables, and the activations by name."""

    loss: Var
    parameters: dict[str, Var]
    activations: Arrays


def sinusoidal_table(length: int, width: int) -> Array:
    columns = np.arange(0, width, 2)
    angle = np.arange(length)[:, None] / 10000.0 ** (columns / width)[None, :]
    table = np.zeros((length, width))
    table[:, 0::2], table[:, 1::2] = np.sin(angle), np.cos(angle)
    return table


def apply_linear(p: dict[str, Var], name: str, x: Var) -> Var:
    return linear(x, p[f"{name}.weight"], p.get(f"{name}.bias"))


def apply_norm(model: Model, p: dict[str, Var], name: str, x: Var) -> Var:
    if model.norm == "none":
        return x
    return normalize(x, model.norm, p[f"{name}.weight"], p.get(f"{name}.bias"))


def embed(model: Model, p: dict[str, Var], tokens: Array) -> Var:
    scale = math.sqrt(model.width) if model.position == "sinusoidal" else 1.0
    h = lookup(p["embedding.token.weight"], tokens, scale)
    length = tokens.shape[1]
    if model.position == "learned":
        h = add(h, first_rows(p["embedding.position.weight"], length))
    if model.position == "sinusoidal":
        h = add(h, Var(sinusoidal_table(length, model.width)))
    return h


def attention(model: Model, p: dict[str, Var], name: str, x: Var) -> Var:
    query, key, value = (apply_linear(p, f"{name}.{part}", x) for part in ("query", "key", "value"))
    if model.position == "rope":
        query = rotate(query, model.heads, model.rope_theta)
        key = rotate(key, model.kv_heads, model.rope_theta)
    mixed = attend(query, key, value, model.heads, model.kv_heads)
    return apply_linear(p, f"{name}.output", mixed)


def mlp(model: Model, p: dict[str, Var], name: str, x: Var) -> Var:
    up = apply_linear(p, f"{name}.up", x)
    if model.gated:
        inner = multiply(activate(apply_linear(p, f"{name}.gate", x), model.activation), up)
    else:
        inner = activate(up, model.activation)
    return apply_linear(p, f"{name}.down", inner)


def block(model: Model, p: dict[str, Var], name: str, h: Var) -> Var:
    if model.norm_place == "post":
        mixed = add(h, attention(model, p, f"{name}.attention", h))
        h = apply_norm(model, p, f"{name}.norm1", mixed)
        return apply_norm(model, p, f"{name}.norm2", add(h, mlp(model, p, f"{name}.mlp", h)))
    x = apply_norm(model, p, f"{name}.norm1", h)
    h = add(h, attention(model, p, f"{name}.attention", x))
    x = apply_norm(model, p, f"{name}.norm2", h)
    return add(h, mlp(model, p, f"{name}.mlp", x))


def forward(model: Model, weights: Arrays, tokens: Array, targets: Array) -> Pass:
    p = {name: Var(value) for name, value in weights.items()}
    h = embed(model, p, tokens)
    activations = {"embedding": h.value}
    for i in range(model.layers):
        h = block(model, p, f"blocks.{i}", h)
        activations[f"blocks.{i}.output"] = h.value
    if model.has_final_norm:
        h = apply_norm(model, p, "final_norm", h)
        activations["final_norm"] = h.value
    logits = linear(h, p["embedding.token.weight" if model.tie_embeddings else "head.weight"], None)
    activations["logits"] = logits.value
    return Pass(cross_entropy(logits, targets), p, activations)


def loss_and_gradients(model: Model, weights: Arrays, tokens: Array,
                       targets: Array) -> tuple[Pass, Arrays]:
    result = forward(model, weights, tokens, targets)
    backward(result.loss)
    return result, {name: var.grad for name, var in result.parameters.items()}
