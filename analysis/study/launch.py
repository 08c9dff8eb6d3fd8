# SPDX-License-Identifier: Apache-2.0
"""The commands of a point, and what an exit code says of it."""
from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from analysis.study.points import Point
from analysis.study.prediction import PLAN_JSON
from analysis.study.record import BENCH, DIVERGED, DONE, FAILED, OUT_OF_MEMORY, STOPPED, point_folder
from analysis.study.settings import WITHOUT_DECK, value_text

MPIRUN = "mpirun --quiet -np {ranks}"
STUDY_FOLDER = "{study}"
# Unbound ranks share all cores of one machine, as root and with more ranks than cores too.
LOCAL_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
             "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
             "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_odls_base_sigkill_timeout": "5"}
# Exit codes of the program, docs/files.md.
DEVICE, NUMBERS, PREEMPTED, INTERRUPTED = 6, 7, 75, 130
KILLED = (137, -9)


@dataclass(frozen=True)
class Launcher:
    """How points are started; `template` names {ranks}."""

    binary: Path
    template: str
    folder: Path
    environment: dict[str, str]
    machine: Path | None = None  # a machine file, with which plans predict times

    def words(self, point: Point) -> list[str]:
        if point.command in WITHOUT_DECK:
            return [sys.executable, "-m", "analysis", point.command, *self.options(point)]
        started = [] if point.command == "plan" else shlex.split(self.template.replace("{ranks}", str(point.ranks)))
        return [*started, str(self.binary), point.command, str(point.settings["deck"]), *self.placed([
            *self.options(point), *settings_words(point, point_folder(self.folder, point.name))])]

    def placed(self, words: list[str]) -> list[str]:
        """A point names what an earlier one wrote by {study}, the folder of the study."""
        return [word.replace(STUDY_FOLDER, str(self.folder)) for word in words]

    def options(self, point: Point) -> list[str]:
        words = ["--ranks", str(point.ranks)] if point.command == "plan" else []
        for key, value in point.options.items():
            if value is not False:
                words += [f"--{key}"] if value is True else [f"--{key}", value_text(value)]
        if point.command in ("bench", "eval", *WITHOUT_DECK):
            words += ["--json", str(point_folder(self.folder, point.name) / BENCH)]
        return words

    def plan_words(self, point: Point) -> list[str]:
        """What predicts the point: the same settings under `plan`."""
        place = point_folder(self.folder, point.name)
        machine = [] if self.machine is None else ["--machine", str(self.machine), "--json", str(place / PLAN_JSON)]
        return [str(self.binary), "plan", str(point.settings["deck"]), "--ranks", str(point.ranks), *machine,
                *self.placed(settings_words(point, place))]

    def variables(self) -> dict[str, str]:
        """LOCAL_MPI unless the user has set another value; the study's own win."""
        return LOCAL_MPI | dict(os.environ) | self.environment


def settings_words(point: Point, folder: Path) -> list[str]:
    keys = {**point.deck_keys, "run.name": point.name, "run.directory": str(folder)}
    return [word for key, value in keys.items() for word in ("--set", f"{key}={value_text(value)}")]


def state_of(code: int, output: str) -> str:
    if code == 0:
        return DONE
    if code == DEVICE and "out of memory" in output:
        return OUT_OF_MEMORY
    if code == NUMBERS:
        return DIVERGED
    return STOPPED if code in (PREEMPTED, INTERRUPTED) else FAILED


def message_of(output: str, code: int = 1) -> str:
    """The program's own line of what went wrong, else the last one that is no hint of what to do next. A program that was
    killed says nothing."""
    if code in KILLED and not any(line.startswith("hyperslab: ") for line in output.splitlines()):
        return (f"killed (code {code}), probably by the system when memory ran out: compare hyperslab plan with this machine's "
                "memory; --small makes a study small enough for CPU ranks")
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith("  ")]
    own = [line for line in lines if line.startswith("hyperslab: ")]
    return (own or lines or [""])[-1][:500]
