#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden files from the NumPy reference, or checks both; README.md says how."""
from __future__ import annotations

import argparse
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import h5py
import numpy as np

from reference import IGNORED, NORM_EPS, Array, Arrays, Model, forward, loss_and_gradients

FORMAT = 1
LR, BETA1, BETA2, ADAM_EPS, DECAY, CLIP_NORM, ADAM_STEPS = 1e-2, 0.9, 0.95, 1e-8, 0.1, 1.0, 2
WEIGHTS, GRADIENTS, ACTIVATIONS = "weights/", "gradients/", "activations/"
AFTER = "adamw/weights/"


@dataclass(frozen=True)
class Case:
    model: Model
    seed: int
    batch: int = 3
    length: int = 11
    ignored_targets: int = 0
    decay_embeddings: bool = True


CASES: dict[str, Case] = {
    "gpt2": Case(Model("learned", "layernorm", "gelu_tanh", bias=True, tie_embeddings=True), 1),
    "llama": Case(
        Model("rope", "rmsnorm", "swiglu", kv_heads=2, ffn_width=28), 2, ignored_targets=7
    ),
    "postnorm_sinusoidal_relu": Case(
        Model("sinusoidal", "layernorm", "relu", norm_place="post", bias=True), 3
    ),
    "none_relu_squared": Case(Model("none", "none", "relu_squared"), 4),
    "geglu_rmsnorm": Case(
        Model("learned", "rmsnorm", "geglu", kv_heads=1, ffn_width=28, tie_embeddings=True), 5
    ),
    "silu_layernorm": Case(
        Model("rope", "layernorm", "silu", bias=True, rope_theta=500.0, ffn_width=23), 6
    ),
    "gelu_layernorm": Case(
        Model("learned", "layernorm", "gelu", bias=True, kv_heads=2), 7, decay_embeddings=False
    ),
}


def block_shapes(model: Model, name: str) -> dict[str, tuple[int, ...]]:
    C, F, kv_width = model.width, model.ffn_width, model.kv_heads * model.head_width
    matrices = {"attention.query": (C, C), "attention.key": (kv_width, C),
                "attention.value": (kv_width, C), "attention.output": (C, C),
                "mlp.up": (F, C), "mlp.down": (C, F)}
    if model.gated:
        matrices["mlp.gate"] = (F, C)
    shapes: dict[str, tuple[int, ...]] = {}
    for part, shape in matrices.items():
        shapes[f"{name}.{part}.weight"] = shape
        if model.bias:
            shapes[f"{name}.{part}.bias"] = shape[:1]
    return shapes | norm_shapes(model, f"{name}.norm1") | norm_shapes(model, f"{name}.norm2")


def norm_shapes(model: Model, name: str) -> dict[str, tuple[int, ...]]:
    if model.norm == "none":
        return {}
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": (model.width,)}
    if model.norm == "layernorm" and model.bias:
        shapes[f"{name}.bias"] = (model.width,)
    return shapes


def parameter_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"embedding.token.weight": (model.vocabulary, model.width)}
    if model.position == "learned":
        shapes["embedding.position.weight"] = (model.context, model.width)
    for i in range(model.layers):
        shapes |= block_shapes(model, f"blocks.{i}")
    if model.has_final_norm:
        shapes |= norm_shapes(model, "final_norm")
    if not model.tie_embeddings:
        shapes["head.weight"] = (model.vocabulary, model.width)
    return shapes


def make_weights(model: Model, rng: np.random.Generator) -> Arrays:
    """Larger than an initialization, so that every part matters; exact in float32."""
    weights: Arrays = {}
    matrix_std = 0.1 if model.norm == "none" else 0.25
    for name, shape in parameter_shapes(model).items():
        noise = rng.standard_normal(shape)
        if name.startswith("embedding."):
            values = 0.5 * noise
        elif "norm" in name:
            values = 0.2 * noise + (1.0 if name.endswith(".weight") else 0.0)
        else:
            values = matrix_std * noise if len(shape) == 2 else 0.1 * noise
        weights[name] = values.astype(np.float32).astype(np.float64)
    return weights


def make_batch(case: Case, rng: np.random.Generator) -> tuple[Array, Array]:
    shape = (case.batch, case.length)
    tokens = rng.integers(0, case.model.vocabulary, shape).astype(np.int32)
    targets = rng.integers(0, case.model.vocabulary, shape).astype(np.int32)
    indices = rng.choice(targets.size, case.ignored_targets, replace=False)
    targets.reshape(-1)[indices] = IGNORED
    return tokens, targets


@dataclass
class Training:
    """The weights after ADAM_STEPS steps on one batch; losses and norms are before each step."""

    weights: Arrays
    losses: list[float]
    gradient_norms: list[float]


def decay_of(name: str, value: Array, decay_embeddings: bool) -> float:
    is_matrix = value.ndim == 2
    is_embedding = name.startswith("embedding.")
    return DECAY if is_matrix and (decay_embeddings or not is_embedding) else 0.0


def train(case: Case, weights: Arrays, tokens: Array, targets: Array) -> Training:
    """AdamW (Loshchilov & Hutter 2019, algorithm 2) with clipping by the global norm."""
    current = {name: value.copy() for name, value in weights.items()}
    m = {name: np.zeros_like(value) for name, value in weights.items()}
    v = {name: np.zeros_like(value) for name, value in weights.items()}
    training = Training(current, [], [])
    for step in range(1, ADAM_STEPS + 1):
        result, gradients = loss_and_gradients(case.model, current, tokens, targets)
        norm = math.sqrt(sum(float((g**2).sum()) for g in gradients.values()))
        training.losses.append(float(result.loss.value))
        training.gradient_norms.append(norm)
        for name, gradient in gradients.items():
            g = gradient * min(1.0, CLIP_NORM / norm)
            m[name] = BETA1 * m[name] + (1.0 - BETA1) * g
            v[name] = BETA2 * v[name] + (1.0 - BETA2) * g * g
            m_hat, v_hat = m[name] / (1.0 - BETA1**step), v[name] / (1.0 - BETA2**step)
            decay = decay_of(name, current[name], case.decay_embeddings)
            current[name] -= LR * (m_hat / (np.sqrt(v_hat) + ADAM_EPS) + decay * current[name])
    return training


# ---- files


@dataclass
class Golden:
    """One file: attributes and datasets by path."""

    attributes: dict[str, int | float | str]
    datasets: Arrays


def settings_of(case: Case) -> dict[str, int | float | str]:
    """All attributes but the versions; truth values are 0 or 1."""
    settings = asdict(case.model) | {
        "format": FORMAT, "seed": case.seed, "norm_eps": NORM_EPS, "lr": LR, "beta1": BETA1,
        "beta2": BETA2, "adam_eps": ADAM_EPS, "weight_decay": DECAY, "clip_norm": CLIP_NORM,
        "adam_steps": ADAM_STEPS, "decay_embeddings": case.decay_embeddings,
    }
    return {key: int(value) if isinstance(value, bool) else value
            for key, value in settings.items()}


def compute(name: str, case: Case) -> Golden:
    rng = np.random.Generator(np.random.PCG64(case.seed))
    weights = make_weights(case.model, rng)
    tokens, targets = make_batch(case, rng)
    result, gradients = loss_and_gradients(case.model, weights, tokens, targets)
    training = train(case, weights, tokens, targets)
    hits = (result.activations["logits"].argmax(-1) == targets).sum()
    datasets: Arrays = {
        "tokens": tokens, "targets": targets, "loss": result.loss.value,
        "counted_tokens": np.array((targets != IGNORED).sum(), np.int64),
        "correct_tokens": np.array(hits, np.int64),
        "adamw/losses": np.array(training.losses),
        "adamw/gradient_norms": np.array(training.gradient_norms),
    }
    for prefix, arrays in ((WEIGHTS, weights), (ACTIVATIONS, result.activations),
                           (GRADIENTS, gradients), (AFTER, training.weights)):
        datasets |= {prefix + key: value for key, value in arrays.items()}
    return Golden({"name": name} | settings_of(case), datasets)


def write(path: Path, golden: Golden) -> None:
    versions = {"numpy_version": np.__version__, "h5py_version": h5py.__version__,
                "python_version": sys.version.split()[0]}
    with h5py.File(path, "w") as file:
        for key, value in (golden.attributes | versions).items():
            file.attrs[key] = np.bytes_(value) if isinstance(value, str) else value
        for key, array in golden.datasets.items():
            file.create_dataset(key, data=array, track_times=False)


# ---- checks


def check_gradients(case: Case, golden: Golden, step: float = 1e-5) -> float:
    """Largest difference to central differences, relative to the tensor's largest gradient.

    Every tensor is tried along one random direction and at up to six single elements.
    """
    tokens, targets = golden.datasets["tokens"], golden.datasets["targets"]
    weights = {key: golden.datasets[WEIGHTS + key] for key in parameter_shapes(case.model)}
    rng = np.random.Generator(np.random.PCG64(case.seed + 1000))

    def slope(name: str, direction: Array) -> float:
        ends = [forward(case.model, weights | {name: weights[name] + sign * step * direction},
                        tokens, targets).loss.value for sign in (1.0, -1.0)]
        return float(ends[0] - ends[1]) / (2.0 * step)

    worst = 0.0
    for name, value in weights.items():
        gradient = golden.datasets[GRADIENTS + name]
        directions = [rng.standard_normal(value.shape) / math.sqrt(value.size)]
        for index in rng.choice(value.size, min(6, value.size), replace=False):
            directions.append(np.eye(1, value.size, index).reshape(value.shape))
        floor = max(float(np.abs(gradient).max()), 1e-4)
        for direction in directions:
            difference = abs(slope(name, direction) - float((gradient * direction).sum()))
            worst = max(worst, difference / floor)
    return worst


def check_file(path: Path, golden: Golden) -> list[str]:
    """What of `golden` the file at `path` does not hold, to 1e-11 of each tensor's magnitude."""
    if not path.is_file():
        return [f"{path} is missing; run generate.py without --check"]
    problems: list[str] = []
    with h5py.File(path, "r") as file:
        for key, value in golden.attributes.items():
            stored = file.attrs.get(key)
            expected = np.bytes_(value) if isinstance(value, str) else value
            if stored != expected:
                problems.append(f"{path}: attribute {key} is {stored}, expected {expected}")
        for key, array in golden.datasets.items():
            if key not in file or file[key].shape != array.shape:
                problems.append(f"{path}: dataset {key} is missing or has another shape")
            elif np.abs(file[key][()] - array).max() > 1e-11 * max(np.abs(array).max(), 1e-3):
                problems.append(f"{path}: dataset {key} differs from the reference")
    return problems


def check(folder: Path) -> int:
    failed = False
    for name, case in CASES.items():
        golden = compute(name, case)
        worst = check_gradients(case, golden)
        problems = check_file(folder / f"{name}.h5", golden)
        if worst > 1e-6:
            problems.append(f"{name}: gradients differ from finite differences by {worst:.1e}")
        print(f"{name}: gradients against differences {worst:.1e}, "
              f"{'ok' if not problems else 'FAILED'}")
        for problem in problems:
            print(f"  {problem}", file=sys.stderr)
        failed = failed or bool(problems)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true",
                        help="write nothing; compare gradients with differences, files with both")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, metavar="DIR")
    arguments = parser.parse_args()
    if arguments.check:
        return check(arguments.output)
    for name, case in CASES.items():
        golden = compute(name, case)
        path = arguments.output / f"{name}.h5"
        write(path, golden)
        norms = golden.datasets["adamw/gradient_norms"]
        print(f"{path.name}: {path.stat().st_size} bytes, loss {golden.datasets['loss']:.6f}, "
              f"gradient norms {norms[0]:.3f} {norms[1]:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
