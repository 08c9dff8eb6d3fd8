#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""jobs/study.py STUDY.yaml: runs a study's points one by one, as inputs/studies/*.yaml describe them.

Points that have a result are not run again: the same command goes on where it stopped. A point that runs
out of memory or diverges is a result. Exit code 0: every point has one; 1: a point failed; 2: the study is
wrong; 75: stopped, the same command goes on.
"""
from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from analysis.interpreter import missing_text, start_with_system_python, system_python_has_modules  # noqa: E402

try:
    from analysis.errors import UserError, nearest, one_line
    from analysis.study.index import write_index
    from analysis.study.launch import MPIRUN, Launcher
    from analysis.study.points import Point, expand, unknown_deck_keys
    from analysis.study.record import check_folder, write_study
    from analysis.study.runner import run_points
    from analysis.study.slurm import write_scripts
    from analysis.study.spec import Study, read_study
    from analysis.tables import counted
except ModuleNotFoundError as missing:
    if system_python_has_modules():
        start_with_system_python(sys.argv)
    print(f"study.py: {missing_text(missing.name)}", file=sys.stderr)
    sys.exit(2)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="jobs/study.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, metavar="STUDY.yaml")
    parser.add_argument("--small", action="store_true", help="as its section `small` says: on CPU ranks, in minutes")
    parser.add_argument("--output", type=Path, metavar="DIR", help="default runs/NAME, small runs/NAME-small")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="override what the study sets for all points, such as data.train=[my.bin]")
    parser.add_argument("--axis", action="append", default=[], metavar="AXIS=[VALUE,...]",
                        help="other values of an axis, such as ranks=[1,2], or some of its presets by name")
    parser.add_argument("--only", action="append", default=[], metavar="POINT",
                        help="this point (may be repeated; * stands for any letters)")
    parser.add_argument("--seconds", type=float, default=0.0, metavar="N",
                        help="stop after so long; the point that runs saves, and the same command goes on")
    parser.add_argument("--dry-run", action="store_true", help="show the points and their commands, run nothing")
    parser.add_argument("--launcher", default=os.environ.get("HYPERSLAB_LAUNCHER", MPIRUN), metavar="WORDS",
                        help=f"what starts the ranks; default $HYPERSLAB_LAUNCHER or `{MPIRUN}`")
    parser.add_argument("--binary", type=Path, default=Path(os.environ.get("HYPERSLAB", "build/bin/hyperslab")),
                        help="default $HYPERSLAB or build/bin/hyperslab")
    parser.add_argument("--machine", type=Path, metavar="FILE",
                        help="a machine file of `hyperslab bench --machine`, with which plans predict times, too")
    parser.add_argument("--slurm", nargs="*", metavar="OPTION",
                        help="run nothing, write sbatch scripts into DIR: study.slurm, an array, and one for each "
                             "point; each OPTION, such as gpus-per-task=1, becomes a line #SBATCH --OPTION")
    return parser.parse_args()


def chosen(points: list[Point], patterns: list[str], where: str) -> list[Point]:
    if not patterns:
        return points
    found = [[point for point in points if re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), point.name)]
             for pattern in patterns]
    for pattern, matches in zip(patterns, found):
        if not matches:
            names = ", ".join(point.name for point in points[:8])
            raise UserError(f"{where}: --only {pattern}: there is no such point{nearest(pattern, [point.name for point in points])}; the first are {names}")
    names = {point.name for matches in found for point in matches}
    return [point for point in points if point.name in names]


def check_keys(points: list[Point], binary: Path, where: str) -> None:
    """The program itself says which keys a deck has."""
    if not binary.is_file():
        raise UserError(f"no program {binary}: run jobs/build.sh, or name it with --binary")
    done = subprocess.run([str(binary), "--keys", "--markdown"], capture_output=True, text=True, check=False)
    known = set(re.findall(r"`(\w+\.\w+)`", done.stdout))
    unknown = [f"{key}{nearest(key, sorted(known))}" for key in unknown_deck_keys(points, known)]
    if unknown:
        raise UserError(f"{where}: the deck has no key {', '.join(unknown)}; see {binary} --keys")


def arguments_of(arguments: argparse.Namespace, folder: Path) -> list[str]:
    """This program, and what a Slurm script hands to it again."""
    words = [str(Path(__file__).resolve()), str(arguments.study), *(["--small"] if arguments.small else []), "--output", str(folder)]
    words += [word for each in arguments.set for word in ("--set", each)]
    words += [word for each in arguments.axis for word in ("--axis", each)]
    words += ["--machine", str(arguments.machine)] if arguments.machine else []
    return [*words, "--binary", str(arguments.binary)]


def run(arguments: argparse.Namespace, study: Study, folder: Path) -> int:
    where = str(arguments.study)
    points = expand(study, where)
    selected = chosen(points, arguments.only, where)
    records = check_folder(folder, study, points)
    if arguments.machine is not None and not arguments.machine.is_file():
        raise UserError(f"no machine file {arguments.machine}; write one with `hyperslab bench --machine`")
    launcher = Launcher(arguments.binary, arguments.launcher, folder, study.environment, arguments.machine)
    if arguments.dry_run:
        for point in selected:
            state = records[point.name].state if point.name in records else "waiting"
            print(f"{point.name} ({state})\n  {one_line(shlex.join(launcher.words(point)))}")
        print(f"{counted(len(selected), 'point')} in {one_line(str(folder))}")
        return 0
    check_keys(points, arguments.binary, where)
    write_study(folder, study)
    for name in sorted(set(records) - {point.name for point in points}):
        print(one_line(f"{name} is no point of the study any more: it stays in {folder} and is left out of tables and reports"))
    if arguments.slurm is not None:
        options = [f"--{each.lstrip('-')}" for each in arguments.slurm]
        for path in write_scripts(study.name, selected, folder, arguments_of(arguments, folder), options):
            print(one_line(str(path)))
        return 0
    code = run_points(selected, records, launcher, max(0.0, arguments.seconds), study.skip)
    print(one_line(str(write_index(folder.parent))))
    print(one_line(f"python3 -m analysis study {shlex.quote(str(folder))}"))
    return code


def main() -> int:
    arguments = parse()
    try:
        study = read_study(arguments.study, arguments.small, arguments.set, arguments.axis)
        folder = arguments.output or Path("runs") / (f"{study.name}-small" if arguments.small else study.name)
        return run(arguments, study, folder)
    except UserError as error:
        print(f"study.py: {error}", file=sys.stderr)
    except BrokenPipeError:  # as of `--dry-run | head`: who reads has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(one_line(f"study.py: {error.filename}: {error.strerror}"), file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
