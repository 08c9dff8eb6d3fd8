# SPDX-License-Identifier: Apache-2.0
"""Expands a study into its points."""
from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any, Iterator

from analysis.errors import UserError, nearest
from analysis.study.settings import (
    COMMANDS, Settings, check_setting, complete, identity_of, is_deck_key, value_text,
)
from analysis.study.spec import Axis, Choice, Study

_FIELD = re.compile(r"\{([^}]*)\}")
_UNSAFE = re.compile(r"[^A-Za-z0-9_.+-]+")


@dataclass(frozen=True)
class Point:
    """One experiment; `labels` by axis."""

    name: str
    labels: dict[str, str]
    repetition: int
    settings: Settings
    identity: str

    @property
    def command(self) -> str:
        return str(self.settings["command"])

    @property
    def ranks(self) -> int:
        return int(self.settings["ranks"])

    @property
    def deck_keys(self) -> dict[str, Any]:
        return {key: value for key, value in self.settings.items() if is_deck_key(key)}

    @property
    def options(self) -> dict[str, Any]:
        return {key: value for key, value in self.settings.items() if key in COMMANDS[self.command]}


def short_name(axis: Axis, label: str) -> str:
    """Presets by their label, values by the key's last part and the value."""
    is_preset = any(set(choice.settings) != {axis.name} for choice in axis.choices)
    text = label if is_preset or axis.name == "deck" else f"{axis.name.split('.')[-1]}_{label}"
    return _UNSAFE.sub("_", text).strip("_")


def name_of(study: Study, labels: dict[str, str], settings: Settings, where: str) -> str:
    """By the study's own pattern, such as train_b{train.global_batch}_g{ranks}, or from the axes."""
    if not study.point:
        return "-".join(short_name(axis, labels[axis.name]) for axis in study.axes) or study.name

    def value(match: re.Match[str]) -> str:
        key = match[1]
        if key not in labels and key not in settings:
            raise UserError(f"{where}: point: `{{{key}}}` is neither an axis nor a setting{nearest(key, [*labels, *settings])}")
        return _UNSAFE.sub("_", labels[key] if key in labels else value_text(settings[key]))

    return _UNSAFE.sub("_", _FIELD.sub(value, study.point)).lstrip(".-") or study.name


def check_options(settings: Settings, where: str) -> None:
    """Options are of the point's own command."""
    command = settings["command"]
    if value_text(command) not in COMMANDS:
        raise UserError(f"{where}: command is `{value_text(command)}`{nearest(value_text(command), COMMANDS)}, expected one of {', '.join(COMMANDS)}")
    for key in settings:
        check_setting(key, where)
        if not is_deck_key(key) and key not in ("command", "deck", "ranks", *COMMANDS[command]):
            raise UserError(f"{where}: `{key}` is no option of {command}{nearest(key, COMMANDS[command])}")


def combined(study: Study, choices: tuple[Choice, ...], where: str) -> Settings:
    """Settings of all axes over those of the study; two axes never set one key."""
    settings = dict(study.settings)
    owner: dict[str, str] = {}
    for axis, choice in zip(study.axes, choices):
        for key, value in choice.settings.items():
            if key in owner:
                raise UserError(f"{where}: axes {owner[key]} and {axis.name} both set {key}")
            owner[key] = axis.name
            settings[key] = value
    return settings


def combinations(study: Study) -> Iterator[tuple[int, dict[str, str], tuple[Choice, ...]]]:
    """Repetition, labels by axis and choices of each point, the last axis fastest; repetitions come last, so
    that a study that is stopped has every point once."""
    for repetition in range(1, study.repeat + 1):
        for choices in itertools.product(*(axis.choices for axis in study.axes)):
            labels = {axis.name: choice.label for axis, choice in zip(study.axes, choices)}
            if not any(all(labels[key] == value for key, value in each.items()) for each in study.leave_out):
                yield repetition, labels, choices


def expand(study: Study, where: str) -> list[Point]:
    """All points, in the order of combinations()."""
    points: list[Point] = []
    for repetition, labels, choices in combinations(study):
        settings = complete(combined(study, choices, where), study.scaling, where)
        check_options(settings, where)
        name = name_of(study, labels, settings, where)
        name += f"-r{repetition}" if study.repeat > 1 else ""
        points.append(Point(name, labels, repetition, settings, identity_of(settings)))
    check_names(points, where)
    return points


def check_names(points: list[Point], where: str) -> None:
    if not points:
        raise UserError(f"{where}: leave_out leaves no point")
    seen: dict[str, Point] = {}
    for point in points:
        if point.name in seen:
            raise UserError(f"{where}: two points are called `{point.name}`; name another pattern in `point`")
        seen[point.name] = point


def unknown_deck_keys(points: list[Point], known: set[str]) -> list[str]:
    """Keys that the program does not have."""
    return sorted({key for point in points for key in point.deck_keys} - known) if known else []
