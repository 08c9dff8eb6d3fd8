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
from analysis.study.points import Point
from analysis.study.spec import Study, make_study

STUDY, POINT, OUTPUT, BENCH = "study.yaml", "point.json", "output.txt", "bench.json"
FORMAT = 1

DONE, OUT_OF_MEMORY, DIVERGED = "done", "out of memory", "diverged"
STOPPED, FAILED, RUNNING, WAITING = "stopped", "failed", "running", "waiting"
RESULTS = (DONE, OUT_OF_MEMORY, DIVERGED)  # what is not run again


@dataclass
class Record:
    """What became of a point."""

    name: str
    identity: str
    labels: dict[str, str]
    repetition: int
    settings: dict[str, Any]
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


def bench_modes(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Of what bench wrote, by mode: `--mode all` measures three, any other mode itself."""
    return content["modes"] if "modes" in content else {content["mode"]: content}


def write_record(folder: Path, record: Record) -> None:
    path = point_folder(folder, record.name) / POINT
    write_text(path, json.dumps({"format": FORMAT, **asdict(record)}, indent=2) + "\n")


def read_record(path: Path) -> Record:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("format") != FORMAT:
            raise ValueError("another format")
        return Record(**content)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} cannot be read ({error}); remove the folder of this point, it is run again"
                        ) from error


def read_records(folder: Path) -> dict[str, Record]:
    """By name; points that never started have none."""
    paths = sorted((folder / "points").glob(f"*/{POINT}"))
    return {record.name: record for record in map(read_record, paths)}


def is_study_folder(folder: Path) -> bool:
    return (folder / STUDY).is_file()


def find_study(name: str) -> Path:
    """A study's folder, or the name of one in runs/."""
    for folder in (Path(name), Path("runs") / name):
        if is_study_folder(folder):
            return folder
    raise UserError(f"{name} is no study's folder (no {STUDY} there, nor in {Path('runs') / name}); run "
                    "jobs/study.py STUDY.yaml first")


def read_study_folder(folder: Path) -> Study:
    path = folder / STUDY
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no study; run jobs/study.py STUDY.yaml again")
    return make_study(content, str(path))


def check_folder(folder: Path, study: Study, points: list[Point]) -> dict[str, Record]:
    """What was run there before; an error if the folder is another's or another definition's."""
    if not folder.exists():
        return {}
    if not is_study_folder(folder):
        if any(folder.iterdir()):
            raise UserError(f"{folder} holds something else than a study; name another folder with --output")
        return {}
    name = yaml.safe_load((folder / STUDY).read_text(encoding="utf-8")).get("name")
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
