# SPDX-License-Identifier: Apache-2.0
"""Reads YAML that users write: keys that are given twice and aliases that stand for too much are refused."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from analysis.errors import UserError

MOST_LETTERS = 1_000_000  # of a file whose aliases are written out, a value counting as one more
MOST_LEVELS = 50  # of lists and mappings within each other
MOST_DIGITS = 300
WHOLE_NUMBER = "tag:yaml.org,2002:int"


class UniqueKeyLoader(yaml.SafeLoader):
    """YAML that refuses a key that is given twice."""


def unique_mapping(loader: UniqueKeyLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key in found:
            raise yaml.constructor.ConstructorError(None, None, f"`{key}` is given twice", key_node.start_mark)
        found[key] = loader.construct_object(value_node, deep=True)
    return found


def whole_number(loader: UniqueKeyLoader, node: yaml.ScalarNode) -> int:
    """In any base; one that is longer than its text may be is refused."""
    value = int(loader.construct_yaml_int(node))
    if abs(value) >= 10 ** MOST_DIGITS:
        raise yaml.constructor.ConstructorError(None, None, f"a number of more than {MOST_DIGITS} digits", node.start_mark)
    return value


UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, unique_mapping)
UniqueKeyLoader.add_constructor(WHOLE_NUMBER, whole_number)


def size_of(node: yaml.Node, level: int, known: dict[yaml.Node, tuple[int, int]]) -> tuple[int, int]:
    """Letters and values of a node with its aliases written out, and its levels."""
    if node in known:
        return known[node]
    if level > MOST_LEVELS:  # an alias that stands within itself has no end
        raise ValueError(f"more than {MOST_LEVELS} levels of values within each other")
    inside = [] if isinstance(node, yaml.ScalarNode) else \
        [each for pair in node.value for each in (pair if isinstance(pair, tuple) else (pair,))]
    sizes = [size_of(each, level + 1, known) for each in inside]
    letters = 1 + (len(node.value) if isinstance(node, yaml.ScalarNode) else sum(size for size, _ in sizes))
    known[node] = letters, 1 + max((levels for _, levels in sizes), default=0)
    return known[node]


def check_size(node: yaml.Node) -> None:
    letters, levels = size_of(node, 1, {})
    if letters > MOST_LETTERS:
        raise ValueError(f"with its aliases written out it has more than {MOST_LETTERS:,} letters and values")
    if levels > MOST_LEVELS:
        raise ValueError(f"more than {MOST_LEVELS} levels of values within each other")


def parse_yaml(text: str) -> Any:
    """ValueError, or YAMLError with a place, says what is wrong with a text."""
    loader = UniqueKeyLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        check_size(node)
        return loader.construct_document(node)
    except RecursionError as error:
        raise ValueError(f"more than {MOST_LEVELS} levels of values within each other") from error
    except (AttributeError, KeyError, OverflowError, TypeError) as error:  # as of `!!bool x`
        raise ValueError(f"a value is not what its type says ({error})") from error
    finally:
        loader.dispose()


def load_yaml(path: Path) -> dict[str, Any]:
    """A file that holds one mapping."""
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise UserError(f"{where}: {getattr(error, 'problem', None) or 'not YAML'}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected keys with values, found {type(content).__name__}")
    return content
