# SPDX-License-Identifier: Apache-2.0
"""Reads JSON that runs and users leave: whatever a file holds, it has the form that is asked for or is an error."""
from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Iterator

from analysis.errors import UserError

# A type; a tuple of forms, one of which a value has; [form] or [form, least count] of a list; of an object {str: form}
# for any key, or a form by key, with ? at the end of a key that may be absent. float takes whole numbers, too.
Form = Any
NUMBER = (float, None)  # the program writes null for what is no number
KINDS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number", list: "a list", dict: "an object",
         type(None): "null"}
MOST_DIGITS = 100  # of a whole number; a longer one is read as a float
LARGEST = 1e100  # from which on a number measures nothing, and sums and axes overflow


def whole_number(digits: str) -> int | float:
    return int(digits) if len(digits) <= MOST_DIGITS else float(digits)


DECODER = json.JSONDecoder(parse_int=whole_number)


def parse_json(text: str) -> Any:
    """ValueError says what is wrong with a text."""
    try:
        return DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("too many brackets within each other") from error


def number_of(value: float | None) -> float:
    """Of a NUMBER; NaN if it is null."""
    return math.nan if value is None else float(value)


def misfit(value: Any, form: Form, name: str = "") -> str:
    """What does not have its form, such as "seconds is a text, expected a number"; empty if all has."""
    if isinstance(form, tuple):
        problems = [misfit(value, each, name) for each in form]
        return "" if "" in problems else problems[0]
    kind = form if isinstance(form, type) else type(form)
    if type(value) is not kind and not (kind is float and type(value) is int):
        return f"{name or 'it'} is {KINDS[type(value)]}, expected {KINDS[kind]}"
    if kind is float and not abs(value) < LARGEST:
        return f"{name or 'it'} is {value}, expected a number below {LARGEST:g}"
    problems_inside = misfits_of_list(value, form, name) if isinstance(form, list) else \
        misfits_of_object(value, form, name) if isinstance(form, dict) else iter(())
    return next(filter(None, problems_inside), "")


def misfits_of_list(values: list[Any], form: list[Any], name: str) -> Iterator[str]:
    if len(form) > 1 and len(values) < form[1]:
        yield f"{name or 'it'} holds {len(values)}, expected at least {form[1]}"
    for index, each in enumerate(values):
        yield misfit(each, form[0], f"{name}[{index}]")


def misfits_of_object(values: dict[str, Any], form: dict[Any, Any], name: str) -> Iterator[str]:
    inside = f"{name}." if name else ""
    for key, wanted in form.items():
        if key is str:
            yield from (misfit(each, wanted, f"{inside}{other}") for other, each in values.items())
        elif key.removesuffix("?") in values:
            yield misfit(values[key.removesuffix("?")], wanted, f"{inside}{key.removesuffix('?')}")
        elif not key.endswith("?"):
            yield f"{inside}{key} is missing"


def require(path: Path, content: Any, form: Form, advice: str) -> Any:
    """The content of a file, if it has the form; `advice` ends the message if not."""
    problem = misfit(content, form)
    if problem:
        raise UserError(f"{path} cannot be read ({problem}); {advice}")
    return content


def read_json(path: Path, form: Form, advice: str) -> Any:
    """As require()."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({getattr(error, 'strerror', None) or error}); {advice}") from error
    return require(path, content, form, advice)
