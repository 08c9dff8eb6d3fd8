# SPDX-License-Identifier: Apache-2.0
"""Which optimizations runs used, what they do, and what runs with and without them measured."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

import yaml

from analysis.deck import LAYOUT, NAMES, Deck, is_whole, whole_in
from analysis.report.document import Section
from analysis.runs import final_loss, read_metrics
from analysis.scaling import Case
from analysis.step_time import MIB
from analysis.study.columns import SAME
from analysis.tables import counted, number

ACCUMULATION, TRAIN = "accumulation", "train"
# Keys in which runs may differ and still be a pair: names, and folders of checkpoints.
FREE = (*NAMES, "checkpoint.directory", "checkpoint.initial")
PIPELINE = "parallel.pipeline"
MOST_PAIRS = 6
FEW_STEPS = 3  # of fewer the quartiles say nothing


@dataclass(frozen=True)
class Optimization:
    name: str
    key: str
    values: tuple[str, ...]
    above: int | None
    needs: str
    against: str | None
    text: str
    source: str
    commands: tuple[str, ...] = (TRAIN, "bench")

    def value(self, case: Case) -> str:
        if self.key == ACCUMULATION:
            return str(accumulation(case))
        if self.key in LAYOUT:
            data, pipeline, context, tensor = case.layout.sizes
            return str(dict(zip(LAYOUT, (data, tensor, pipeline, context)))[self.key])
        value = case.deck.get(self.key, "")
        return resolved_attention(case) if self.key == "model.attention" and value == "auto" else value

    def is_used(self, case: Case) -> bool:
        pipeline = {PIPELINE: str(case.layout.sizes[1])}
        return TRAIN in self.commands and self.is_met(case.deck | pipeline) and self.has(self.value(case))

    def has(self, value: str) -> bool:
        return value in self.values if self.above is None else is_whole(value) and int(value) > self.above

    def is_met(self, deck: Deck) -> bool:
        """Whether what it needs is there: several stages of a pipeline, or any of something else."""
        return not self.needs or whole_in(deck, self.needs, 0) > (1 if self.needs == PIPELINE else 0)

    def is_used_by(self, command: str, deck: Deck) -> bool:
        """Of a point of a study, by the command and the keys that it was started with; `auto` is not known from these."""
        value = deck.get(self.key, "")
        return command in self.commands and self.is_met(deck) and self.has(value) and (value != "auto" or self.key == "data.decode")


def accumulation(case: Case) -> int:
    """Microbatches of a step on each data rank."""
    batch, microbatch = (whole_in(case.deck, f"train.{key}", 0) for key in ("global_batch", "microbatch"))
    return max(1, batch // (case.layout.sizes[0] * microbatch)) if microbatch else 1


def resolved_attention(case: Case) -> str:
    """What `auto` takes: GPUs have a fused path in half precision only."""
    if case.devices == ["cpu"]:
        return "fused"
    return "cudnn" if case.deck.get("precision.compute") in ("bf16", "fp16") else "reference"


def read_optimizations() -> list[Optimization]:
    content: list[dict[str, Any]] = yaml.safe_load(
        Path(__file__).with_name("optimizations.yaml").read_text(encoding="utf-8"))
    return [Optimization(each["name"], each["key"], tuple(each.get("values", ())), each.get("above"),
                         each.get("needs", ""), each.get("against"), each["text"], each["source"],
                         tuple(each.get("commands", (TRAIN, "bench")))) for each in content]


def differing(one: Deck, other: Deck) -> set[str]:
    return {key for key in one | other if one.get(key) != other.get(key) and key not in FREE}


def pairs(optimization: Optimization, cases: Sequence[Case]) -> list[tuple[Case, Case]]:
    """Cases without and with it that differ in nothing else: neither in decks nor in layout or devices."""
    if optimization.against is None:
        return []
    found = []
    for used in (case for case in cases if optimization.is_used(case)):
        found += [(plain, used) for plain in cases if optimization.value(plain) == optimization.against
                  and differing(plain.deck, used.deck) <= {optimization.key}
                  and plain.layout.sizes == used.layout.sizes and plain.devices == used.devices]
    return found[:MOST_PAIRS]


def change_text(what: str, old: float, new: float, unit: str = "", digits: int = 1) -> str:
    """Such as "peak memory 100.0 to 60.0 MiB (-40.0 %)"."""
    if not old > 0 or not new > 0:
        return ""
    change = new / old - 1.0
    reported = f"{new - old:+.{digits}f}" if unit == "nats" else f"{100 * change:+.1f} %"
    reported = "unchanged" if abs(change) < SAME else reported
    return f"{what} {number(old, digits)} to {number(new, digits)}{f' {unit}' if unit else ''} ({reported})"


def loss_of(case: Case) -> float:
    path = case.layout.run.path / "metrics.jsonl"
    return final_loss(read_metrics(case.layout.run)) if path.is_file() else float("nan")


def overlap(plain: Case, used: Case) -> bool:
    """Whether the quartiles of their steps overlap: then the rates differ by no more than steps do."""
    return plain.quartiles[0] <= used.quartiles[1] and used.quartiles[0] <= plain.quartiles[1]


def pair_sentence(plain: Case, used: Case) -> str:
    within = ", no more than steps of one run vary" if overlap(plain, used) else ""
    if min(plain.steps, used.steps) < FEW_STEPS:
        within = f", measured over {counted(min(plain.steps, used.steps), 'step')}"
    rate = change_text("tokens/s", plain.tokens_per_second, used.tokens_per_second, digits=0)
    parts = [change_text("peak memory", plain.peak_bytes / MIB, used.peak_bytes / MIB, "MiB"),
             f"{rate}{within}", change_text("final loss", loss_of(plain), loss_of(used), "nats", 4)]
    return f"{used.name} beside {plain.name}: {'; '.join(part for part in parts if part)}."


def values_text(optimization: Optimization, users: Sequence[Case]) -> str:
    """Such as "2 and 4 data ranks"."""
    numbers = sorted({int(optimization.value(case)) for case in users})
    listed = " and ".join([", ".join(map(str, numbers[:-1])), str(numbers[-1])][len(numbers) == 1:])
    if optimization.key != ACCUMULATION and optimization.key not in LAYOUT:
        return f"{optimization.key} {listed}"
    what = "microbatches" if optimization.key == ACCUMULATION else f"{optimization.key.split('.')[1]} ranks"
    return f"{listed} {what}"


def optimization_sections(cases: Sequence[Case]) -> list[Section]:
    """A section for each optimization that some run used, with its source and what the runs say of it."""
    sections = []
    for each in read_optimizations():
        users = [case for case in cases if each.is_used(case)]
        if not users:
            continue
        sentences = [pair_sentence(plain, used) for plain, used in pairs(each, cases)]
        if not sentences and len({each.value(case) for case in cases}) > 1 and each.against is None and each.above is not None:
            sentences = [f"Used by {len(users)} of {len(cases)} layouts, with {values_text(each, users)}; the groups "
                         "above compare those that do equal work."]
        if not sentences:
            sentences = [f"Used by {len(users)} of {counted(len(cases), 'layout')}; no two runs differ in it alone, so "
                         "these figures do not show its effect."]
        sections.append(Section(f"Optimization: {each.name}", [f"{each.text} ({each.source}.)"], sentences))
    return sections
