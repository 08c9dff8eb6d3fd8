# SPDX-License-Identifier: Apache-2.0
"""Reads STUDY.yaml: a base deck, axes, and the tables and plots that report the result."""
from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Sequence

import yaml

from analysis.errors import UserError, nearest
from analysis.first_steps import SKIPPED_STEPS
from analysis.study.columns import check_column
from analysis.study.settings import (
    BENCH_MODES, COMMANDS, MODE, WITHOUT_DECK, Settings, check_setting, value_text, whole,
)
from analysis.yaml_files import load_yaml, parse_yaml

KEYS = ("name", "title", "about", "deck", "command", "set", "scaling", "environment", "axes", "leave_out",
        "repeat", "point", "base", "skip", "tables", "plots", "small")
MOST_POINTS = 100_000
REQUIRED = ("name", "title", "tables")
SCALINGS = ("none", "strong", "weak")
MERGED = ("set", "axes", "environment")  # of `small`: key by key, null removes
TABLE_KEYS = ("title", "columns", "across", "where")
PLOT_KEYS = ("kind", "name", "title", "x", "y", "panels", "where", "log", "change")
RUN_KINDS = ("learning", "scaling", "sweep", "time")  # of other commands of analysis
KINDS = ("lines", "bars", *RUN_KINDS)


@dataclass(frozen=True)
class Choice:
    """A value of an axis: how it is called, and what it sets."""

    label: str
    settings: Settings


@dataclass(frozen=True)
class Axis:
    name: str
    choices: list[Choice]

    @property
    def labels(self) -> list[str]:
        return [choice.label for choice in self.choices]


@dataclass(frozen=True)
class Table:
    """A row for every combination of the axes but `across`, whose values stand beside each other."""

    title: str
    columns: list[str]
    across: str = ""
    where: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plot:
    """`x` is an axis; each of `y` is a row of panels, each value of axis `panels` a column of them. What
    other axes remain are lines, or bars beside each other."""

    kind: str
    name: str
    title: str
    x: str = ""
    y: list[str] = field(default_factory=list)
    panels: str = ""
    where: dict[str, str] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    change: bool = False


@dataclass(frozen=True)
class Study:
    name: str
    title: str
    about: str
    settings: Settings
    scaling: str
    environment: dict[str, str]
    axes: list[Axis]
    leave_out: list[dict[str, str]]
    repeat: int
    point: str
    base: dict[str, str]
    skip: int
    tables: list[Table]
    plots: list[Plot]
    content: dict[str, Any] = field(default_factory=dict)  # of the file, `small` merged

    def axis(self, name: str) -> Axis:
        return next(axis for axis in self.axes if axis.name == name)


def reject_unknown(content: dict[str, Any], known: Sequence[str], where: str) -> None:
    for key in content:
        if key not in known:
            raise UserError(f"{where}: unknown key `{key}`{nearest(key, known)}; known are {', '.join(known)}")


def mapping(content: Any, where: str) -> dict[str, Any]:
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{where}: expected keys with values, found `{value_text(content)}`")
    return {value_text(key): value for key, value in content.items()}


def sequence(content: Any, where: str) -> list[Any]:
    if content is None:
        return []
    if not isinstance(content, list):
        raise UserError(f"{where}: expected a list, found `{value_text(content)}`")
    return content


def merged(content: dict[str, Any], where: str) -> dict[str, Any]:
    """The study as its section `small` changes it; the section is gone."""
    small = mapping(content.get("small"), f"{where}: small")
    reject_unknown(small, [key for key in KEYS if key not in ("name", "small")], f"{where}: small")
    if not small:
        raise UserError(f"{where}: there is no section `small`, which says how the study runs on CPU ranks")
    done = {key: value for key, value in content.items() if key != "small"}
    for key, value in small.items():
        if key in MERGED:
            both = mapping(done.get(key), where) | mapping(value, where)
            done[key] = {name: each for name, each in both.items() if each is not None or key == "set"}
        else:
            done[key] = value
    return done


def layouts_of(path: Path, where: str) -> dict[str, Settings]:
    """Presets of a file with overrides a line, as `parity --matrix` takes them."""
    if not path.is_file():
        raise UserError(f"{where}: {path} does not exist")
    found: dict[str, Settings] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
        if line.strip() and not line.startswith("#"):
            words = [word.partition("=") for word in line.split()]
            if not all(equals and "." in key for key, equals, _ in words):
                raise UserError(f"{path}:{number}: expected SECTION.KEY=VALUE, separated by blanks")
            pairs = {key: value for key, _, value in words}
            found[layout_label(pairs)] = {key: plain_value(value) for key, value in pairs.items()}
    return found


def plain_value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        return text


def layout_label(pairs: dict[str, str]) -> str:
    """Such as data_2.tensor_2.sequence."""
    words = []
    for key, value in pairs.items():
        name = key.split(".")[1]
        words.append(name if value == "true" else value if name == "schedule" else f"{name}_{value}")
    return ".".join(words)


def read_axis(name: str, content: Any, where: str) -> Axis:
    """A list of values of the setting `name`, presets by name, or a file of layouts."""
    if isinstance(content, str):
        content = layouts_of(Path(content), where)
    if isinstance(content, list):
        check_setting(name, where)
        choices = [Choice(Path(value_text(value)).stem if name == "deck" else value_text(value), {name: value})
                   for value in content]
    else:
        presets = {label: mapping(settings, f"{where}: {label}") for label, settings in
                   mapping(content, where).items()}
        for label, settings in presets.items():
            for key in settings:
                check_setting(key, f"{where}: {label}")
        choices = [Choice(label, settings) for label, settings in presets.items()]
    if not choices:
        raise UserError(f"{where}: has no value")
    if len({choice.label for choice in choices}) < len(choices):
        raise UserError(f"{where}: a value stands twice")
    return Axis(name, choices)


def names_of(axes: Sequence[Axis]) -> list[str]:
    return [axis.name for axis in axes]


def read_where(content: Any, axes: Sequence[Axis], where: str) -> dict[str, str]:
    """Values of axes by their labels."""
    found = {key: value_text(value) for key, value in mapping(content, where).items()}
    for key, label in found.items():
        axis = next((axis for axis in axes if axis.name == key), None)
        if axis is None:
            raise UserError(f"{where}: `{key}` is no axis{nearest(key, names_of(axes))}; the axes are {', '.join(names_of(axes))}")
        if label not in axis.labels:
            raise UserError(f"{where}: axis {key} has no value `{label}`{nearest(label, axis.labels)}; it has {', '.join(axis.labels)}")
    return found


def file_name(name: str, where: str) -> str:
    """The name, of which folders, figures and jobs are called."""
    if re.fullmatch(r"\w[\w.+-]*", name):
        return name
    raise UserError(f"{where}: name is `{repr(name)[1:-1]}`, expected the name of a file or folder: letters, digits, _ . + -")


def axis_name(content: Any, axes: Sequence[Axis], where: str) -> str:
    name = "" if content is None else str(content)
    if name and name not in names_of(axes):
        raise UserError(f"{where}: `{name}` is no axis{nearest(name, names_of(axes))}; the axes are {', '.join(names_of(axes))}")
    return name


def read_columns(content: Any, where: str) -> list[str]:
    names = [str(name) for name in sequence(content, where)]
    if not names:
        raise UserError(f"{where}: names no column")
    for name in names:
        check_column(name, where)
    if len(set(names)) < len(names):
        raise UserError(f"{where}: a column stands twice")
    return names


def read_table(content: Any, axes: Sequence[Axis], where: str) -> Table:
    table = mapping(content, where)
    reject_unknown(table, TABLE_KEYS, where)
    return Table(str(table.get("title", "")), read_columns(table.get("columns"), f"{where}: columns"),
                 axis_name(table.get("across"), axes, f"{where}: across"),
                 read_where(table.get("where"), axes, f"{where}: where"))


def read_plot(content: Any, axes: Sequence[Axis], where: str) -> Plot:
    plot = mapping(content, where)
    reject_unknown(plot, PLOT_KEYS, where)
    kind = plot.get("kind", "lines")
    if kind not in KINDS:
        raise UserError(f"{where}: kind is `{kind}`{nearest(str(kind), KINDS)}, expected one of {', '.join(KINDS)}")
    drawn = kind not in RUN_KINDS
    log = [str(each) for each in sequence(plot.get("log"), f"{where}: log")]
    if set(log) - {"x", "y"}:
        raise UserError(f"{where}: log is [{', '.join(log)}], expected x, y or both")
    if drawn and not plot.get("x"):
        raise UserError(f"{where}: has no x")
    return Plot(kind, file_name(str(plot.get("name", kind)), where), str(plot.get("title", kind)),
                axis_name(plot.get("x"), axes, f"{where}: x"),
                read_columns(plot.get("y"), f"{where}: y") if drawn else [],
                axis_name(plot.get("panels"), axes, f"{where}: panels"),
                read_where(plot.get("where"), axes, f"{where}: where"), log, plot.get("change") is True)


def read_settings(content: dict[str, Any], where: str) -> Settings:
    """What all points have in common."""
    settings = {"command": value_text(content.get("command", "train")), "deck": str(content.get("deck") or "")}
    more = mapping(content.get("set"), f"{where}: set")
    for key in more:
        check_setting(key, f"{where}: set")
    settings |= more
    if settings["command"] not in COMMANDS:
        raise UserError(f"{where}: command is `{settings['command']}`{nearest(settings['command'], COMMANDS)}, expected one of {', '.join(COMMANDS)}")
    if not settings["deck"] and settings["command"] not in WITHOUT_DECK:
        raise UserError(f"{where}: `deck` is missing")
    return settings


def read_study(path: Path, small: bool = False, overrides: Sequence[str] = (), values: Sequence[str] = ()) -> Study:
    """The study of a file; all that can be known to be wrong in it is an error. `overrides`, KEY=VALUE each,
    win over its section `set`; `values`, AXIS=[VALUE,...] each, over what its axes have."""
    where = str(path)
    content = load_yaml(path)
    reject_unknown(content, KEYS, where)
    if small:
        content = merged(content, where)
    if overrides:
        content["set"] = mapping(content.get("set"), f"{where}: set") | dict(map(read_override, overrides))
    if "axes" in content:  # with the presets of files, so that the study's folder needs no other
        content["axes"] = {axis: layouts_of(Path(value), f"{where}: axes: {axis}") if isinstance(value, str) else value
                           for axis, value in mapping(content["axes"], f"{where}: axes").items()}
    for text in values:
        content["axes"] = with_values(mapping(content.get("axes"), f"{where}: axes"), text)
    return make_study(content, where)


def with_values(axes: dict[str, Any], text: str) -> dict[str, Any]:
    """Axes of which one has other values, or of its presets those that are named."""
    name, equals, value = text.partition("=")
    wanted = yaml_value(value, f"--axis {text}")
    if not equals or not isinstance(wanted, list) or not wanted:
        raise UserError(f"--axis {text}: expected AXIS=[VALUE,...]")
    if name not in axes:
        raise UserError(f"--axis {text}: `{name}` is no axis{nearest(name, axes)}; the axes are {', '.join(axes)}")
    if isinstance(axes[name], list):
        return axes | {name: wanted}
    by_label = {value_text(label): (label, settings) for label, settings in axes[name].items()}
    for label in map(value_text, wanted):
        if label not in by_label:
            raise UserError(f"--axis {text}: axis {name} has no value `{label}`{nearest(label, by_label)}; it has {', '.join(by_label)}")
    return axes | {name: dict(by_label[value_text(label)] for label in wanted)}


def yaml_value(text: str, where: str) -> Any:
    try:
        return parse_yaml(text)
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"{where}: `{text}` is no value of YAML") from error


def read_override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    check_setting(key, "--set")
    read = yaml_value(value, f"--set {text}")
    if not equals or isinstance(read, dict):
        raise UserError(f"--set {text}: expected KEY=VALUE")
    return key, read


def make_study(content: dict[str, Any], where: str) -> Study:
    for key in REQUIRED:
        if not content.get(key):
            raise UserError(f"{where}: `{key}` is missing")
    name = file_name(str(content["name"]), where)
    scaling = content.get("scaling", "none")
    if scaling not in SCALINGS:
        raise UserError(f"{where}: scaling is `{scaling}`{nearest(str(scaling), SCALINGS)}, expected one of {', '.join(SCALINGS)}")
    axes = [read_axis(axis, values, f"{where}: axes: {axis}")
            for axis, values in mapping(content.get("axes"), f"{where}: axes").items()]
    repeat = whole(content.get("repeat", 1), "repeat", where)
    if repeat * math.prod(len(axis.choices) for axis in axes) > MOST_POINTS:
        raise UserError(f"{where}: its axes and repetitions make more than {MOST_POINTS:,} points")
    settings = read_settings(content, where)
    reported = [*axes, *modes_axis(settings, axes)]
    plots = [read_plot(plot, reported, f"{where}: plots[{index}]")
             for index, plot in enumerate(sequence(content.get("plots"), f"{where}: plots"))]
    for plot in plots:
        if sum(plot.name == other.name for other in plots) > 1:
            raise UserError(f"{where}: two plots are called `{plot.name}`; give each a name")
    return Study(
        name, str(content["title"]), str(content.get("about", "")), settings, scaling,
        {key: value_text(value) for key, value in
         mapping(content.get("environment"), f"{where}: environment").items()},
        axes, [read_where(each, axes, f"{where}: leave_out[{index}]") for index, each in
               enumerate(sequence(content.get("leave_out"), f"{where}: leave_out"))],
        repeat, str(content.get("point", "")),
        read_where(content.get("base"), reported, f"{where}: base"), skip_of(content, where),
        [read_table(table, reported, f"{where}: tables[{index}]")
         for index, table in enumerate(sequence(content["tables"], f"{where}: tables"))], plots,
        {key: value for key, value in content.items() if key != "small"})


def modes_axis(settings: Settings, axes: Sequence[Axis]) -> list[Axis]:
    """`bench --mode all` measures what tables and plots may tell apart as an axis."""
    if settings.get(MODE) != "all" or any(axis.name == MODE for axis in axes):
        return []
    return [Axis(MODE, [Choice(mode, {MODE: mode}) for mode in BENCH_MODES])]


def skip_of(content: dict[str, Any], where: str) -> int:
    skip = content.get("skip", SKIPPED_STEPS)
    if isinstance(skip, bool) or not isinstance(skip, int) or skip < 0:
        raise UserError(f"{where}: skip is `{value_text(skip)}`, expected a number of steps")
    return skip
