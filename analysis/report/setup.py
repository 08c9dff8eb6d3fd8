# SPDX-License-Identifier: Apache-2.0
"""What a report opens with: data and tokens, model, machine, precision, decks, commits, libraries."""
from __future__ import annotations

import glob
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterable, Sequence

from analysis.deck import Deck, is_whole
from analysis.errors import UserError
from analysis.report.document import Section, Sheet
from analysis.runs import Run, last_value, read_metrics
from analysis.scaling import Case
from analysis.subject import parameter_count
from analysis.tables import counted, number
from analysis.token_files import open_tokens

MOST_VALUES = 6
UNKNOWN = "not recorded"
ARCHITECTURE = {"layers": "layers", "width": "width", "heads": "heads", "kv_heads": "key-value heads",
                "ffn_width": "feed-forward width", "vocabulary": "vocabulary", "context": "context"}
STYLE_KEYS = ("position", "norm", "norm_place", "activation")


@dataclass(frozen=True)
class Source:
    """What a report is drawn from; `benches` are the JSON files of bench, `machines` what study.py recorded."""

    cases: Sequence[Case]
    runs: Sequence[Run]
    benches: Sequence[dict[str, Any]] = ()
    machines: Sequence[dict[str, Any]] = ()
    decks: Sequence[str] = field(default_factory=tuple)  # files that points were started from


def distinct(values: Iterable[str], between: str = ", ") -> str:
    """Different values; how many if they are too many to read."""
    known = list(dict.fromkeys(value for value in values if value))
    if len(known) > MOST_VALUES:
        return f"{between.join(known[:MOST_VALUES])} and {len(known) - MOST_VALUES} more"
    return between.join(known) or UNKNOWN


def of_decks(decks: Sequence[Deck], text: Callable[[Deck], str]) -> str:
    return distinct((text(deck) for deck in decks), "; ")


def architecture(deck: Deck) -> str:
    sizes = [f"{title} {deck[f'model.{key}']}" for key, title in ARCHITECTURE.items() if f"model.{key}" in deck]
    styles = [f"{key.replace('_', ' ')} {deck[f'model.{key}']}" for key in STYLE_KEYS if f"model.{key}" in deck]
    return ", ".join([deck.get("model.family", ""), *sizes, *styles])


def architectures(decks: Sequence[Deck]) -> str:
    """What the decks have in common once, with what they differ in: "llama, layers 2 or 4, width 64"."""
    parts = [architecture(deck).split(", ") for deck in decks]
    if len({tuple(part.rpartition(" ")[0] for part in each) for each in parts}) != 1:
        return distinct((", ".join(each) for each in parts), "; ")
    reported = []
    for values in zip(*parts):
        name = values[0].rpartition(" ")[0]
        reported.append(f"{name} {distinct((value.rpartition(' ')[2] for value in values), ' or ')}".strip())
    return ", ".join(reported)


def parameters(deck: Deck) -> str:
    count = parameter_count(deck)
    return "" if count is None else f"{count:,}"


def data_set(deck: Deck, key: str) -> str:
    """Names of the files, and their tokens if they are here."""
    text = deck.get(key, "")
    names = [name.strip().strip("\"'") for name in text.strip("[]").split(",") if name.strip()]
    if names == ["synthetic"]:
        return "synthetic (generated tokens of a Markov chain)"
    paths = [Path(path) for name in names for path in sorted(glob.glob(name))]
    try:
        counts = [open_tokens(path, None, deck.get("data.dtype", "uint16")).size for path in paths]
    except (UserError, OSError, ValueError):
        counts = []
    found = f" ({sum(counts):,} tokens)" if counts else ""
    return f"{', '.join(names)}{found}" if names else ""


def trained_tokens(runs: Sequence[Run]) -> str:
    counts = []
    for run in runs:
        if (run.path / "metrics.jsonl").is_file():
            counts.append(number(last_value(read_metrics(run).column("tokens")), 0))
    return distinct(counts)


def batch(deck: Deck) -> str:
    samples, context = deck.get("train.global_batch", ""), deck.get("model.context", "")
    if not (is_whole(samples) and is_whole(context)):
        return ""
    return f"{samples} samples, {int(samples) * int(context):,} tokens"


def optimizer(deck: Deck) -> str:
    return (f"{deck.get('optimizer.name', '')}, learning rate {deck.get('optimizer.lr', '')}, schedule "
            f"{deck.get('schedule.name', '')} with {deck.get('schedule.warmup_steps', '0')} steps of warm-up")


def model_rows(source: Source, decks: Sequence[Deck]) -> list[list[str]]:
    if not decks and not source.benches:
        return []
    if not decks:
        return [["architecture", distinct(str(each["model"]) for each in source.benches)],
                ["parameters", distinct(f"{each['parameters']:,}" for each in source.benches)],
                ["batch of a step", distinct((f"{counted(each['global_batch'], 'sample')} of {each['context']} tokens"
                                             for each in source.benches), "; ")],
                ["precision", distinct(str(each["precision"]) for each in source.benches)]]
    return [
        ["training data", of_decks(decks, lambda deck: data_set(deck, "data.train"))],
        ["validation data", of_decks(decks, lambda deck: data_set(deck, "data.validation")).replace(UNKNOWN, "none")],
        ["tokens trained on", trained_tokens(source.runs)],
        ["architecture", architectures(decks)],
        ["parameters", of_decks(decks, parameters)],
        ["batch of a step", of_decks(decks, batch)],
        ["optimizer", of_decks(decks, optimizer)],
        ["precision", of_decks(decks, lambda deck: deck.get("precision.compute", ""))],
    ]


def machine_rows(source: Source) -> list[list[str]]:
    devices = [device for case in source.cases for device in case.devices]
    devices += [str(each["device"]) for each in source.benches]
    hosts = [host for case in source.cases for host in case.hosts]
    hosts += [str(each.get("host", "")) for each in source.machines]
    commits = [commit for case in source.cases for commit in case.commits]
    commits += [str(each["commit"]) for each in source.benches]
    libraries = [version if name in version else f"{name} {version}" for each in source.machines
                 for name, version in each.get("libraries", {}).items()]
    return [
        ["devices", distinct("CPU" if device == "cpu" else device for device in devices)],
        ["GPUs of the hosts", distinct(gpu for each in source.machines for gpu in each.get("gpus", ()))],
        ["processors", distinct(f"{each.get('processor')}, {each.get('cores')} cores" for each in source.machines)],
        ["hosts", distinct(hosts)],
        ["commits", distinct(commits)],
        ["program", distinct(str(each.get("program", "")) for each in source.machines)],
        ["compiler and libraries", "; ".join(dict.fromkeys(libraries)) or UNKNOWN],
        ["decks", distinct(source.decks) if source.decks else
         distinct(str(run.path / "deck.yaml") for run in source.runs)],
    ]


def setup_section(source: Source) -> Section:
    """A row that nothing is known of says so, except for GPUs, which many machines do not have."""
    rows = model_rows(source, [case.deck for case in source.cases]) + machine_rows(source)
    rows = [row for row in rows if row[0] != "GPUs of the hosts" or row[1] != UNKNOWN]
    return Section("Setup", sheets=[Sheet("What was run, and on what", ["what", "value"], rows, text=True)])
