# SPDX-License-Identifier: Apache-2.0
"""Reads deck.yaml of run directories: resolved, so a section and its keys, a value per line."""
from __future__ import annotations

import re
from pathlib import Path
from typing import Sequence

from analysis.errors import UserError
from analysis.runs import Run

Deck = dict[str, str]

# Names and paths: they differ between any two runs and say nothing about them.
NAMES = ("run.name", "run.directory", "checkpoint.directory")
# The layout is read from the timing files, since the deck is that of the newest start.
LAYOUT = ("parallel.data", "parallel.tensor", "parallel.pipeline", "parallel.context")
# Keys that say how a run is spread over ranks or what it writes: runs may differ in them and still
# be compared. The batch is compared by the tokens of a step.
FREE_SECTIONS = ("run", "data", "parallel", "schedule", "train", "checkpoint", "timing")
FREE_KEYS = ("model.init", "model.init_std", "model.position_std", "model.scale_residual_init", "model.embedding_scale",
             "model.mup_base_width", "model.mup_base_head_width",
             "model.bos_token", "model.eos_tokens", "optimizer.lr", "optimizer.betas",
             "optimizer.eps", "optimizer.momentum", "optimizer.weight_decay",
             "optimizer.decay_embeddings", "optimizer.decay_norms_and_biases", "optimizer.cautious_decay",
             "optimizer.clip_norm")
# Keys of free sections that decide about time and memory all the same.
BOUND_KEYS = ("run.deterministic", "train.trainable")
# Keys that earlier programs did not write, with what they did: such a deck is equal to one without them.
EARLIER = {"data.token_weights": "false", "train.loss": "cross_entropy", "train.clip_low": "0.2", "train.clip_high": "0.2", "train.kl_weight": "0",
           "train.preference_beta": "0.1", "train.teacher_weight": "0.5", "train.teacher_tokens": "0", "parallel.shard": "0", "parallel.expert": "1", "train.trainable": "[]", "data.weights": "[]", "data.weight_steps": "[]", "precision.gradients": "fp32", "precision.gemm": "compute", "precision.fp8_min_width": "2048",
           "precision.fp8_keep_first": "0", "precision.fp8_keep_last": "0", "precision.fp8_cache_weights": "false", "precision.fp8_param_gather": "false", "adapter.rank": "0", "adapter.alpha": "16", "adapter.rank_scaled": "false",
           "adapter.targets": "[]", "adapter.dropout": "0", "model.frozen_format": "compute",
           "quantization.weights": "none", "quantization.group": "64", "quantization.activations": "none",
           "quantization.after": "0", "checkpoint.async": "true", "checkpoint.max_failures": "3",
           "checkpoint.memory_every": "0", "checkpoint.new_head": "false", "checkpoint.memory_directory": "/dev/shm",
           "run.walltime_minutes": "0", "run.check_links": "auto", "run.machine": "null",
           "run.compare_replicas_every": "0", "spikes.policy": "log", "spikes.window": "128", "spikes.z_score": "6",
           "spikes.warmup_steps": "128", "spikes.max_roll_backs": "8",
           "model.image": "0", "model.patch": "0", "model.channels": "3", "model.classes": "0",
           "model.head_width": "0", "model.qkv_bias": "false", "model.unbiased_qkv": "false", "model.qk_norm": "none", "model.rotary_fraction": "1",
           "model.rope_scaling": "none", "model.rope_factor": "1", "model.rope_original_context": "0",
           "model.rope_low_factor": "1", "model.rope_high_factor": "4", "model.rope_beta_fast": "32",
           "model.rope_beta_slow": "1", "model.rope_attention_factor": "0", "model.rope_local_theta": "0",
           "model.window": "0", "model.window_full_every": "0", "model.window_first_layer": "0",
           "model.attention_scale": "0", "model.attention_softcap": "0", "model.attention_sinks": "false",
           "model.logit_softcap": "0", "model.parallel_block": "false",
           "model.mup_base_width": "0", "model.mup_base_head_width": "0",
           "experts.count": "0", "experts.active": "2", "experts.width": "0", "experts.shared": "0", "experts.every": "1",
           "experts.first_dense": "0", "experts.score": "softmax", "experts.normalize": "true", "experts.scale": "1",
           "experts.groups": "1", "experts.group_active": "1", "experts.balance": "sequence", "experts.balance_samples": "1", "experts.balance_weight": "0.01",
           "experts.bias_rate": "0", "experts.in_turn": "false", "experts.z_weight": "0",
           "model.pooling": "token", "model.drop_path": "0", "model.drop_path_rule": "linear", "model.init": "normal", "model.position_std": "0", "optimizer.decay_norms_and_biases": "false",
           "optimizer.cautious_decay": "false", "optimizer.state": "fp32", "model.label_smoothing": "0",
           "train.tasks": "[]", "train.tasks_every": "0",
           "train.z_loss": "0", "train.sample_every": "0", "train.sample_prompts": "[]", "train.sample_tokens": "64",
           "train.sample_temperature": "1", "data.broken_images": "refuse", "data.decode": "auto",
           "data.documents": "joined", "data.packing": "contiguous", "data.predict_starts": "true",
           "data.threads": "0",
           "augment.crop": "resized", "augment.scale": "[0.08, 1]",
           "augment.ratio": "[0.75, 1.3333333333333333]", "augment.pad": "4",
           "augment.interpolation": "bilinear", "augment.validation_crop": "0.875", "augment.flip": "0.5",
           "augment.policy": "none", "augment.policy_operations": "2", "augment.policy_magnitude": "9", "augment.policy_fill": "0", "augment.erase_area": "[0.02, 0.33]", "augment.erase_ratio": "[0.3, 3.3]",
           "augment.brightness": "0", "augment.contrast": "0", "augment.saturation": "0", "augment.mixup": "0",
           "augment.cutmix": "0", "augment.mix": "1", "augment.mix_mode": "pair", "augment.repeats": "1", "augment.mix_switch": "0.5", "augment.erase": "0",
           "augment.mean": "[0.485, 0.456, 0.406]", "augment.deviation": "[0.229, 0.224, 0.225]"}
# Former names of keys, and of values of keys; include/hyperslab/train/renamed_keys.hpp has the same.
RENAMED = {"spikes.max_walk_backs": "spikes.max_roll_backs"}
RENAMED_VALUES = {("spikes.policy", "walk_back"): "roll_back"}
# Keys in which starts of one run may differ and still train the same: paths, layout, kernels, how far
# and how often, and what is measured on the way. The program tells the same changes apart on resuming.
SAME_TRAINING_SECTIONS = ("run", "parallel", "memory", "checkpoint", "timing")
SAME_TRAINING_KEYS = ("model.attention", "model.bos_token", "model.eos_tokens", "data.train", "data.validation",
                      "data.vocabulary", "train.steps", "train.epochs", "train.microbatch", "train.validate_every",
                      "train.validate_batches", "train.tasks", "train.tasks_every", "train.sample_every",
                      "train.sample_prompts", "train.sample_tokens", "train.sample_temperature", "train.log_norms",
                      "train.log_every", "data.decode", "data.threads")
# Of these, what a start may change on its way, but separate runs of one curve may not: how long they
# train, and on which data they train and are measured.
CURVE_KEYS = ("train.steps", "train.epochs", "train.validate_batches", "data.train", "data.validation")

MOST_DIGITS = 18

_LINE = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z_]\w*):(?: +(?P<value>.*\S))?\s*\Z")


def read_deck(run: Run) -> Deck:
    """The deck of the run's newest start."""
    return read_deck_file(run.path / "deck.yaml")


def read_deck_file(path: Path) -> Deck:
    """Values as they are written, by "section.key"."""
    if not path.is_file():
        raise UserError(f"{path} is missing; copy it there, runs are compared by their decks")
    deck: Deck = {}
    section = ""
    for index, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n")):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None or (match["indent"] and (not section or match["value"] is None)):
            raise UserError(f"{path}:{index + 1}: expected `section:` or `  key: value`, found "
                            f"`{line.strip()[:60]}`; give the deck.yaml that `hyperslab train` "
                            "wrote")
        if match["indent"]:
            given = f"{section}.{match['key']}"
            key = RENAMED.get(given, given)
            deck[key] = RENAMED_VALUES.get((key, match["value"]), match["value"])
        elif match["value"] is None:
            section = match["key"]
        else:
            raise UserError(f"{path}:{index + 1}: `{match['key']}` stands in no section; give the "
                            "deck.yaml that `hyperslab train` wrote")
    if not deck:
        raise UserError(f"{path} is empty; copy it there again, runs are compared by their decks")
    return deck


def is_whole(text: str) -> bool:
    """Whether a value is a whole number that is not negative; what has more digits is no size of anything."""
    return text.isdecimal() and len(text) <= MOST_DIGITS


def whole_in(deck: Deck, key: str, other: int) -> int:
    """`other` if the deck has no whole number there."""
    text = deck.get(key, "")
    return int(text) if is_whole(text) else other


def number_in(deck: Deck, key: str, run: Run) -> int:
    text = deck.get(key, "")
    if not is_whole(text):
        raise UserError(f"{run.path / 'deck.yaml'}: {key} is `{text}`, expected a number; give the "
                        "deck.yaml that `hyperslab train` wrote")
    return int(text)


def is_bound(key: str) -> bool:
    """Runs that differ in this key do different work: they are not compared."""
    free = key.split(".")[0] in FREE_SECTIONS or key in FREE_KEYS
    return not free or key in BOUND_KEYS


def matters(key: str) -> bool:
    """Starts of one run that differ in this key train differently: the run is mixed."""
    same = key.split(".")[0] in SAME_TRAINING_SECTIONS or key in SAME_TRAINING_KEYS
    return not same or key == "run.seed"


def curve_keys(decks: Sequence[Deck]) -> list[str]:
    """Keys in which runs differ and that keep their final losses off one curve. A deck that lacks a key
    says nothing of it."""
    keys = dict.fromkeys(key for deck in decks for key in deck)
    return [key for key in keys if (matters(key) or key in CURVE_KEYS)
            and len({deck[key] for deck in decks if key in deck}) > 1]


def bound(deck: Deck) -> Deck:
    return {key: value for key, value in deck.items() if is_bound(key) and EARLIER.get(key) != value}


def differences(decks: Sequence[Deck]) -> dict[str, list[str]]:
    """Keys whose values differ, without names and the layout; a dash if a deck lacks the key."""
    keys = dict.fromkeys(key for deck in decks for key in deck)
    rows = {key: [deck.get(key, "-") for deck in decks] for key in keys
            if key not in NAMES and key not in LAYOUT}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}
