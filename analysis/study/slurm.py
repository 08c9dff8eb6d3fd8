# SPDX-License-Identifier: Apache-2.0
"""Writes sbatch scripts: an array with a task for each point, and a script for each point alone."""
from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Sequence

from analysis.errors import UserError
from analysis.study.points import Point
from analysis.study.record import write_text

# Cores one after the other and memory beside them; every rank sees all GPUs and takes the one of its number.
SRUN = ("srun --mpi=pmix --ntasks={ranks} --gpu-bind=none --distribution=block:block --cpu-bind=cores "
        "--mem-bind=local")

SCRIPT = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --ntasks={ranks}
#SBATCH --output={output}
#SBATCH --signal=B:USR1@180
#SBATCH --requeue
{extra}\
# {what}
set -u
cd {root} || exit 1
export SRUN_CPUS_PER_TASK="${{SLURM_CPUS_PER_TASK:-1}}"  # srun does not take it from sbatch
{choose}\
# bash waits for its children in the background only, so that the signal before the time limit gets through.
{command} &
child=$!
trap 'kill -USR1 "$child"' USR1 TERM
wait "$child"
while kill -0 "$child" 2>/dev/null; do  # a signal ended the wait
  wait "$child"
done
wait "$child"
code=$?
# 75: the point saved and can go on.
if [ "$code" -eq 75 ]; then
  scontrol requeue "{job}"
fi
exit "$code"
"""


def checked(text: str, what: str) -> str:
    """The text; sbatch reads one line for each option."""
    if text.isprintable():
        return text
    raise UserError(f"{what} {text!r} has a line break or another character that no line of a script can hold")


def option_line(option: str) -> str:
    """`option`: --NAME or --NAME=VALUE; sbatch takes quotes as the shell does."""
    name, equals, value = checked(option, "--slurm").partition("=")
    if not re.fullmatch(r"--[A-Za-z][A-Za-z0-9-]*", name):
        raise UserError(f"--slurm {option.removeprefix('--')}: expected NAME=VALUE or NAME, an option of sbatch")
    return f"#SBATCH {name}{equals}{shlex.quote(value) if value else ''}\n"


def output_of(folder: Path, name: str) -> str:
    """`name` has patterns of sbatch, such as %j; the folder has none."""
    return shlex.quote(f"{checked(str(folder), '--output').replace('%', '%%')}/{name}")


def study_words(arguments: Sequence[str], point: str) -> str:
    """`arguments` are those of this program, which comes first."""
    return f"{shlex.join([sys.executable, *arguments])} --only {point} --launcher {shlex.quote(SRUN)}"


def array_script(name: str, points: Sequence[Point], folder: Path, arguments: Sequence[str],
                 extra: Sequence[str]) -> str:
    """All points have as many tasks as the largest; srun starts as many as a point has ranks."""
    names = " ".join(shlex.quote(point.name) for point in points)
    return SCRIPT.format(
        name=name, ranks=max(point.ranks for point in points), output=output_of(folder, "slurm-%A_%a.out"),
        extra="".join(map(option_line, [f"--array=0-{len(points) - 1}", *extra])),
        what=f"A task for each of {len(points)} points; sbatch {shlex.quote(str(folder / 'study.slurm'))}",
        root=shlex.quote(os.getcwd()), choose=f"points=({names})\n",
        command=study_words(arguments, '"${points[$SLURM_ARRAY_TASK_ID]}"'),
        job="${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}")


def point_script(name: str, point: Point, folder: Path, arguments: Sequence[str], extra: Sequence[str]) -> str:
    return SCRIPT.format(
        name=f"{name}-{point.name}", ranks=point.ranks, output=output_of(folder, f"slurm-{point.name}-%j.out"),
        extra="".join(map(option_line, extra)),
        what=f"One point of the study {name}; sbatch {shlex.quote(str(folder / f'{point.name}.slurm'))}",
        root=shlex.quote(os.getcwd()), choose="", command=study_words(arguments, shlex.quote(point.name)),
        job="$SLURM_JOB_ID")


def write_scripts(name: str, points: Sequence[Point], folder: Path, arguments: Sequence[str],
                  extra: Sequence[str]) -> list[Path]:
    """study.slurm, and POINT.slurm for every point."""
    checked(str(folder), "--output")
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "study.slurm"]
    write_text(written[0], array_script(name, points, folder, arguments, extra))
    for point in points:
        written.append(folder / f"{point.name}.slurm")
        write_text(written[-1], point_script(name, point, folder, arguments, extra))
    return written
