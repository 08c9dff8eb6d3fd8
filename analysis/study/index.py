# SPDX-License-Identifier: Apache-2.0
"""runs/index.csv: every experiment below a folder of runs, those of studies and others."""
from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from analysis.deck import Deck, read_deck_file
from analysis.errors import UserError, visible
from analysis.runs import Run, final_loss, read_metrics, typical_rate
from analysis.starts import start_folders
from analysis.study.record import POINT, RUNNING, Record, read_record, write_text
from analysis.study.settings import value_text
from analysis.subject import device_text, model_text, parameter_count, read_machine

FIELDS = ("run", "study", "point", "repetition", "command", "state", "started", "seconds", "ranks", "device", "hosts",
          "program", "deck", "model", "parameters", "precision", "global_batch", "context", "learning_rate", "steps",
          "step", "tokens", "tokens_per_second", "final_loss", "settings", "directory")
DECK_FIELDS = {"precision": "precision.compute", "global_batch": "train.global_batch", "context": "model.context",
               "learning_rate": "optimizer.lr", "steps": "train.steps"}


def from_record(record: Record, study: str) -> dict[str, Any]:
    keys = {key: value for key, value in record.settings.items() if key not in ("command", "deck", "ranks")}
    return {"run": record.name, "study": study, "point": record.name, "repetition": record.repetition,
            "command": record.settings["command"], "state": record.state, "started": record.started,
            "seconds": "" if record.state == RUNNING else f"{record.seconds:.1f}", "ranks": record.settings["ranks"],
            "deck": record.settings["deck"], "hosts": record.machine.get("host", ""),
            "program": record.machine.get("program", ""),
            "settings": " ".join(f"{key}={value_text(value)}" for key, value in keys.items())}


def from_deck(deck: Deck) -> dict[str, Any]:
    found: dict[str, Any] = {field: deck.get(key, "") for field, key in DECK_FIELDS.items()}
    return found | {"model": model_text(deck), "parameters": parameter_count(deck) or ""}


def from_run(folder: Path) -> dict[str, Any]:
    """What the run directory itself reports."""
    run = Run(folder, folder.name)
    found = from_deck(read_deck_file(folder / "deck.yaml"))
    for start in start_folders(run)[-1:]:
        machine = read_machine(start)
        if machine is not None:
            found |= {"ranks": machine.ranks, "device": device_text(machine.devices),
                      "hosts": " ".join(machine.hosts)}
    if (folder / "metrics.jsonl").is_file():
        metrics = read_metrics(run)
        found |= {"step": metrics.rows[-1]["step"], "tokens": metrics.rows[-1].get("tokens", ""),
                  "tokens_per_second": f"{typical_rate(metrics):.1f}", "final_loss": f"{final_loss(metrics):.6g}"}
    return found


def row_of(folder: Path, study: str) -> dict[str, Any]:
    found: dict[str, Any] = {"run": folder.name, "command": "train", "directory": str(folder)}
    if (folder / "deck.yaml").is_file():
        try:
            found |= from_run(folder)
        except UserError as error:
            found["state"] = f"cannot be read: {error}"
    if (folder / POINT).is_file():
        try:
            found |= from_record(read_record(folder / POINT), study)
        except UserError as error:
            found |= {"study": study, "point": folder.name, "state": f"cannot be read: {error}"}
    return found


def experiments(runs: Path) -> list[dict[str, Any]]:
    """Runs, and the points of studies, by folder."""
    rows = [row_of(path.parent, "") for path in sorted(runs.glob("*/deck.yaml"))]
    rows += [row_of(path.parent, path.parents[2].name) for path in sorted(runs.glob(f"*/points/*/{POINT}"))]
    return rows


def write_index(runs: Path) -> Path:
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(experiments(runs))
    path = runs / "index.csv"
    write_text(path, visible(text.getvalue()))
    return path
