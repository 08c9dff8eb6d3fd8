# SPDX-License-Identifier: Apache-2.0
"""The folder of a study: study.yaml, and a folder with point.json for every point."""
from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from analysis.errors import UserError
from analysis.json_files import read_json
from analysis.runs import near_folder
from analysis.study.points import Point
from analysis.study.settings import Settings
from analysis.study.spec import Study, make_study
from analysis.yaml_files import load_yaml

STUDY, POINT, BENCH = "study.yaml", "point.json", "bench.json"
FORMAT = 1

DONE, OUT_OF_MEMORY, DIVERGED = "done", "out of memory", "diverged"
STOPPED, FAILED, RUNNING, WAITING = "stopped", "failed", "running", "waiting"
RESULTS = (DONE, OUT_OF_MEMORY, DIVERGED)  # what is not run again
STATES = (*RESULTS, STOPPED, FAILED, RUNNING, WAITING)

_PLAIN = (str, bool, int, float, None)
_SETTING = (*_PLAIN, [(*_PLAIN, [_PLAIN])])
FORM = {"format": int, "name": str, "identity": str, "labels": {str: str}, "repetition": int,
        "settings": {"command": str, "deck": str, "ranks": int, str: _SETTING}, "state?": str, "code?": int, "started?": str,
        "seconds?": float, "message?": str, "launch?": [str],
        "machine?": {"host?": str, "system?": str, "processor?": str, "cores?": int, "gpus?": [str], "program?": str,
                     "libraries?": {str: str}}}
AGAIN = "remove the folder of this point, it is run again"


@dataclass
class Record:
    """What became of a point."""

    name: str
    identity: str
    labels: dict[str, str]
    repetition: int
    settings: Settings
    state: str = WAITING
    code: int = 0
    started: str = ""
    seconds: float = 0.0
    message: str = ""
    launch: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(point: Point) -> Record:
        return Record(point.name, point.identity, point.labels, point.repetition, point.settings)


def write_text(path: Path, text: str) -> None:
    """As a whole or not at all."""
    other = path.with_name(f".{path.name}.{os.getpid()}")
    other.write_text(text, encoding="utf-8")
    os.replace(other, path)


def point_folder(folder: Path, name: str) -> Path:
    return folder / "points" / name


def write_record(folder: Path, record: Record) -> None:
    path = point_folder(folder, record.name) / POINT
    write_text(path, json.dumps({"format": FORMAT, **asdict(record)}, indent=2) + "\n")


def read_record(path: Path) -> Record:
    content = read_json(path, FORM, AGAIN)
    unknown = [key for key in content if key not in FORM and f"{key}?" not in FORM]
    wrong = ["another format"] if content.pop("format") != FORMAT else []
    wrong += [f"unknown key {key}" for key in unknown]
    wrong += [f"unknown state {content['state']}"] if content.get("state", WAITING) not in STATES else []
    wrong += [f"{content['settings']['ranks']} ranks"] if content["settings"]["ranks"] < 1 else []
    if wrong:
        raise UserError(f"{path} cannot be read ({wrong[0]}); {AGAIN}")
    return Record(**content)


def read_records(folder: Path) -> dict[str, Record]:
    """By name; points that never started have none."""
    records: dict[str, Record] = {}
    for path in sorted((folder / "points").glob(f"*/{POINT}")):
        record = read_record(path)
        if record.name != path.parent.name:
            raise UserError(f"{path} cannot be read (it is of point {record.name}); {AGAIN}")
        records[record.name] = record
    return records


def is_study_folder(folder: Path) -> bool:
    return (folder / STUDY).is_file()


def find_study(name: str) -> Path:
    """A study's folder, or the name of one in runs/."""
    for folder in (Path(name), Path("runs") / name):
        if is_study_folder(folder):
            return folder
    raise UserError(f"{name} is no study's folder (no {STUDY} there, nor in {Path('runs') / name}){near_folder(name)}; run "
                    "jobs/study.py STUDY.yaml first")


def read_study_folder(folder: Path) -> Study:
    path = folder / STUDY
    return make_study(load_yaml(path), str(path))


def check_folder(folder: Path, study: Study, points: list[Point]) -> dict[str, Record]:
    """What was run there before; an error if the folder is another's or another definition's."""
    if not folder.exists():
        return {}
    if not is_study_folder(folder):
        if any(folder.iterdir()):
            raise UserError(f"{folder} holds something else than a study; name another folder with --output")
        return {}
    name = load_yaml(folder / STUDY).get("name")
    if name != study.name:
        raise UserError(f"{folder} holds the study `{name}`, not `{study.name}`; name another folder with --output")
    records = read_records(folder)
    for point in points:
        record = records.get(point.name)
        if record is not None and record.identity != point.identity:
            raise UserError(f"{folder}: point {point.name} was run with {difference(record, point)}; name another "
                            f"folder with --output, or remove {point_folder(folder, point.name)}")
    return records


def difference(record: Record, point: Point) -> str:
    """Of settings, or of the deck's text."""
    for key in dict.fromkeys([*record.settings, *point.settings]):
        old, new = (each.get(key, "nothing") for each in (record.settings, point.settings))
        if old != new:
            return f"{key} {old}, which is now {new}"
    return f"another text of {point.settings['deck']}"


def write_study(folder: Path, study: Study) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / STUDY, yaml.safe_dump(study.content, sort_keys=False, allow_unicode=True, width=110))
