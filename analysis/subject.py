# SPDX-License-Identifier: Apache-2.0
"""What a figure is about, for its subtitle: model, precision and machine, as runs recorded them."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, Sequence

from analysis.deck import EARLIER, Deck, is_whole, read_deck, whole_in
from analysis.errors import UserError
from analysis.runs import Run
from analysis.starts import start_folders

MOST_NAMES = 3
# Keys of `model` from which parameters are counted, or that change no count: with others there is none.
COUNTED = {"family", "layers", "width", "heads", "kv_heads", "ffn_width", "vocabulary", "context", "position",
           "rope_theta", "norm", "norm_place", "norm_eps", "activation", "bias", "tie_embeddings", "dropout",
           "attention", "frozen_format", "image", "patch", "channels", "classes", "pooling", "drop_path",
           "drop_path_rule", "label_smoothing", "init", "init_std", "position_std", "scale_residual_init", "embedding_scale", "bos_token", "eos_tokens",
           "head_width", "qkv_bias", "unbiased_qkv", "qk_norm", "rotary_fraction", "rope_scaling", "rope_factor", "rope_original_context",
           "rope_low_factor", "rope_high_factor", "rope_beta_fast", "rope_beta_slow", "rope_attention_factor", "rope_local_theta",
           "window", "window_full_every", "window_first_layer", "attention_scale", "attention_softcap", "attention_sinks", "logit_softcap",
           "parallel_block", "mup_base_width", "mup_base_head_width"}
IMAGE_SIZES = ("channels", "patch", "classes")
SIZES = ("layers", "width", "heads", "kv_heads", "ffn_width", "vocabulary", "context")


@dataclass(frozen=True)
class Machine:
    """Of one start: its ranks, the devices and hosts they ran on."""

    ranks: int
    devices: tuple[str, ...]
    hosts: tuple[str, ...]


def parameter_count(deck: Deck) -> int | None:
    """As model::parameter_count of the program; None if the deck lacks keys or has unknown ones."""
    model = {key.split(".")[1]: value for key, value in deck.items() if key.startswith("model.")}
    sizes = (*SIZES, *(IMAGE_SIZES if model.get("family") == "vit" else ()))
    if set(model) - COUNTED or not all(is_whole(model.get(key, "")) for key in sizes) or int(model["heads"]) == 0:
        return None
    if not {"position", "norm", "norm_place", "activation", "bias", "tie_embeddings"} <= set(model):
        return None
    layers, width, heads, kv_heads, ffn, _, context = (int(model[key]) for key in SIZES)
    head_width = whole_in(model, "head_width", 0) or width // heads
    query_width, kv_width = head_width * heads, head_width * kv_heads
    gated = model["activation"] in ("swiglu", "geglu", "geglu_tanh")
    block = 2 * width * query_width + 2 * width * kv_width + (3 if gated else 2) * width * ffn
    if model["bias"] == "true":
        block += 2 * width + (2 if gated else 1) * ffn
    if (model.get("unbiased_qkv") != "true") if model["bias"] == "true" else (model.get("qkv_bias") == "true"):
        block += query_width + 2 * kv_width
    if model.get("qk_norm") == "head":
        block += 2 * head_width
    if model.get("qk_norm") == "width":
        block += query_width + kv_width
    if model.get("attention_sinks") == "true":
        block += heads
    experts = more_of_experts(deck, layers, width, ffn, 3 if gated else 2)
    if experts is None:
        return None
    norm = {"none": 0, "rmsnorm": width}.get(model["norm"], 2 * width if model["bias"] == "true" else width)
    norms = (4 if model["norm_place"] == "sandwich" else 2) * layers + (0 if model["norm_place"] == "post" else 1)
    positions = context * width if model["position"] == "learned" else 0
    return layers * block + experts + norms * norm + positions + ends(model, width)


def layers_with_experts(deck: Deck, layers: int) -> list[int]:
    """Their numbers, from 0, as nn::ExpertsConfig::at of the program."""
    first, every = whole_in(deck, "experts.first_dense", 0), max(1, whole_in(deck, "experts.every", 1))
    return [layer for layer in range(first, layers) if (layer + 1) % every == 0] if whole_in(deck, "experts.count", 0) else []


def more_of_experts(deck: Deck, layers: int, width: int, ffn: int, matrices: int) -> int | None:
    """Parameters that experts have more than the networks they replace; None if the deck has unknown keys of them."""
    given = {key for key in deck if key.startswith("experts.")}
    if given - set(EARLIER):
        return None
    count = whole_in(deck, "experts.count", 0)
    one = matrices * width * (whole_in(deck, "experts.width", 0) or ffn)
    layer = (count + whole_in(deck, "experts.shared", 0)) * one + count * width - matrices * width * ffn
    if deck.get("experts.bias_rate", "0") != "0":
        layer += count
    return layer * len(layers_with_experts(deck, layers))


def ends(model: Deck, width: int) -> int:
    """Parameters before and after the blocks: tables of tokens, or patch embedding, class token and class head."""
    if model.get("family") != "vit":
        return (1 if model["tie_embeddings"] == "true" else 2) * int(model["vocabulary"]) * width
    values = int(model["channels"]) * int(model["patch"]) ** 2
    classes = int(model["classes"])
    biases = width + classes if model["bias"] == "true" else 0
    return (values + classes) * width + biases + (width if model.get("pooling") == "token" else 0)


def model_text(deck: Deck) -> str:
    """Such as "llama, 17.6M parameters"."""
    return sized_text(deck.get("model.family", ""), parameter_count(deck))


def sized_text(family: str, count: int | None) -> str:
    if count is None:
        return family
    scale, letter = (1e9, "B") if count >= 1e9 else (1e6, "M") if count >= 1e5 else (1e3, "k")
    return f"{family}, {count / scale:.3g}{letter} parameters" if count < 1e8 or count >= 1e9 else \
        f"{family}, {count / scale:.0f}M parameters"


def device_text(devices: Iterable[str]) -> str:
    return " and ".join("CPU" if device == "cpu" else device for device in sorted(set(devices)))


def host_text(hosts: Iterable[str]) -> str:
    """Their number if there are several; a report's setup has the names."""
    count = len(set(hosts))
    return f"{count} hosts" if count > 1 else ""


def either(values: Sequence[str], many: str) -> str:
    """The values that differ, or how to call so many of them; empty ones say nothing."""
    known = list(dict.fromkeys(value for value in values if value))
    return " or ".join(known) if len(known) <= MOST_NAMES else many


def models_text(decks: Iterable[Deck]) -> str:
    """Such as "vit, 66.7k or 68.2k parameters": the family once where all have the same."""
    texts = list(dict.fromkeys(model_text(deck) for deck in decks))
    parts = [text.removesuffix(" parameters").partition(", ") for text in texts]
    if 1 < len(parts) <= MOST_NAMES and len({family for family, _, _ in parts}) == 1 and all(size for _, _, size in parts):
        return f"{parts[0][0]}, {' or '.join(size for _, _, size in parts)} parameters"
    return either(texts, "several models")


def counts_text(counts: Iterable[int]) -> str:
    numbers = sorted(set(counts))
    if not numbers:
        return ""
    listed = " and ".join([", ".join(map(str, numbers[:-1])), str(numbers[-1])][len(numbers) == 1:])
    return "1 rank" if numbers == [1] else f"{listed} ranks"


def subject_text(decks: Sequence[Deck], machines: Sequence[Machine], ranks: bool = True) -> str:
    """One line of what is known; `ranks`: with their number."""
    model = models_text(decks)
    precision = either([deck.get("precision.compute", "") for deck in decks], "several precisions")
    count = counts_text(machine.ranks for machine in machines) if ranks else ""
    device = device_text(device for machine in machines for device in machine.devices)
    hosts = host_text(host for machine in machines for host in machine.hosts)
    return "; ".join(part for part in (model, precision, ", ".join(
        part for part in (count, device, hosts) if part)) if part)


def read_machine(folder: Path) -> Machine | None:
    """None if no file of the start can be read, or if there is no h5py: studies run without it."""
    try:
        import h5py

        from analysis.timings import attribute
    except ModuleNotFoundError:
        return None

    found: list[tuple[int, str, str]] = []
    for path in sorted(folder.glob("rank_*.h5")):
        try:
            with h5py.File(path, "r") as file:
                found.append((int(attribute(file, "world_size")), attribute(file, "device"),
                              attribute(file, "host")))
        except (OSError, UserError, ValueError):
            continue
    if not found:
        return None
    sizes, devices, hosts = zip(*found)
    return Machine(sizes[0], tuple(sorted(set(devices))), tuple(sorted(set(hosts))))


def subject_of_runs(runs: Sequence[Run]) -> str:
    """From decks and timing files, as far as they are there: a figure is drawn without them too."""
    decks = [read_deck(run) for run in runs if (run.path / "deck.yaml").is_file()]
    machines = [read_machine(folder) for run in runs for folder in start_folders(run)]
    return subject_text(decks, [machine for machine in machines if machine])
