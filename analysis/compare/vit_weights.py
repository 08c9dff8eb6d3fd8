# SPDX-License-Identifier: Apache-2.0
"""Weights of vision transformers from exported folders, by timm's names; NumPy alone."""
from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from analysis.compare.recipe import Weights
from analysis.errors import UserError
from analysis.json_files import misfit, parse_json

FILE = "model.safetensors"
MOST_HEADER_BYTES = 100 << 20
# transformers' ViTForImageClassification -> timm; query, key and value become one matrix.
PARTS = {
    "layernorm_before": "norm1", "layernorm_after": "norm2", "attention.output.dense": "attn.proj",
    "intermediate.dense": "mlp.fc1", "output.dense": "mlp.fc2",
}
ENDS = {
    "vit.embeddings.cls_token": "cls_token", "vit.embeddings.position_embeddings": "pos_embed",
    "vit.embeddings.patch_embeddings.projection": "patch_embed.proj", "vit.layernorm": "norm", "classifier": "head",
}
TENSOR = {"dtype": str, "shape": [int], "data_offsets": [int, 2]}
_LAYER = re.compile(r"vit\.encoder\.layer\.(\d+)\.(.+)\.(weight|bias)\Z")


def read_header(path: Path, text: bytes) -> dict[str, dict[str, Any]]:
    """By the names of tensors."""
    try:
        header = parse_json(text.decode("utf-8"))
        problem = misfit(header, dict)
    except ValueError as error:
        header, problem = {}, str(error)
    tensors = {} if problem else {name: entry for name, entry in header.items() if name != "__metadata__"}
    problem = problem or misfit(tensors, {str: TENSOR})
    if problem:
        raise UserError(f"{path} cannot be read ({problem}); give a folder that `hyperslab checkpoint export` wrote")
    return tensors


def read_safetensors(path: Path) -> Weights:
    """All tensors of a file, which must be float32."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(len(data) - 8, MOST_HEADER_BYTES):
        raise UserError(f"{path}: no safetensors file; give a folder that `hyperslab checkpoint export` wrote")
    header = read_header(path, data[8:8 + size])
    weights: Weights = {}
    for name, entry in header.items():
        if entry["dtype"] != "F32":
            raise UserError(f"{path}: {name} is {entry['dtype']}, expected F32; export with --dtype fp32")
        first, last = entry["data_offsets"][:2]
        try:
            weights[name] = np.frombuffer(data[8 + size + first:8 + size + last], "<f4").reshape(entry["shape"])
        except (TypeError, ValueError) as error:
            raise UserError(f"{path}: {name} is not whole ({error}); export again") from error
    return weights


def timm_names(weights: Weights) -> Weights:
    """With timm's names; those of transformers are translated."""
    if not any(name.startswith("vit.") for name in weights):
        return dict(weights)
    found: Weights = {}
    for name, value in weights.items():
        if match := _LAYER.match(name):
            layer, part, kind = match.groups()
            if part in PARTS:
                found[f"blocks.{layer}.{PARTS[part]}.{kind}"] = value
            elif part == "attention.attention.query":
                parts = [weights[f"vit.encoder.layer.{layer}.attention.attention.{each}.{kind}"]
                         for each in ("query", "key", "value")]
                found[f"blocks.{layer}.attn.qkv.{kind}"] = np.concatenate(parts)
            continue
        for old, new in ENDS.items():
            if name == old or name in (f"{old}.weight", f"{old}.bias"):
                found[new + name.removeprefix(old)] = value
    return found


def read_export(folder: Path) -> Weights:
    """The parameters in a folder that `hyperslab checkpoint export` wrote."""
    path = folder / FILE if folder.is_dir() else folder
    if not path.is_file():
        raise UserError(f"{path} does not exist; give a folder that `hyperslab checkpoint export` wrote")
    return timm_names(read_safetensors(path))
