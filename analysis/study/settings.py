# SPDX-License-Identifier: Apache-2.0
"""What a study sets for a point: keys of the deck, ranks, the deck itself, and options of the command."""
from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any, Mapping

from analysis.errors import UserError, nearest
from analysis.yaml_files import load_yaml

Settings = dict[str, Any]

COMMANDS: dict[str, tuple[str, ...]] = {
    "train": (),
    "bench": ("mode", "warmup", "steps", "rows", "components", "kernels", "cold", "dtypes"),
    "eval": ("checkpoint",),
    "plan": ("device", "mode", "machine"),
    "accumulation": ("value", "terms", "sum", "term"),
}
WITHOUT_DECK = ("accumulation",)
MODE = "mode"
BENCH_MODES = ("forward", "forward-backward", "step")  # `--mode all` measures these
OWN = ("command", "deck", "ranks")
LAYOUT = ("parallel.data", "parallel.tensor", "parallel.pipeline", "parallel.context")
BATCH = "train.global_batch"


def is_deck_key(name: str) -> bool:
    return "." in name


def check_setting(name: str, where: str) -> None:
    """Deck keys have a dot; the rest is known by name. What deck keys exist the program says."""
    if is_deck_key(name) or name in OWN or any(name in options for options in COMMANDS.values()):
        return
    known = sorted({*OWN, *(option for options in COMMANDS.values() for option in options)})
    raise UserError(f"{where}: `{name}` is no setting{nearest(name, known)}; give a deck key (section.key) or one of {', '.join(known)}")


def value_text(value: Any) -> str:
    """As --set and options take it, and as labels show it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[{','.join(map(value_text, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def deck_value(deck: Mapping[str, Any], key: str) -> Any:
    section, name = key.split(".", 1)
    found = deck.get(section)
    return found.get(name) if isinstance(found, dict) else None


def whole(value: Any, name: str, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{where}: {name} is `{value_text(value)}`, expected a whole number above 0")
    return value


def complete(settings: Settings, scaling: str, where: str) -> Settings:
    """Adds what follows from the others: the data ranks of `ranks` or the ranks of the layout, and with
    weak scaling a batch that grows with the ranks."""
    if settings["command"] in WITHOUT_DECK:
        return {**settings, "ranks": 1}
    deck = load_yaml(Path(settings["deck"]))

    def layout(key: str) -> int:
        value = settings.get(key, deck_value(deck, key))
        return whole(1 if value is None else value, key, where)

    done = dict(settings)
    others = math.prod(layout(key) for key in LAYOUT[1:])
    if "ranks" not in done:
        done["ranks"] = others * layout("parallel.data")
    elif "parallel.data" not in done:
        ranks = whole(done["ranks"], "ranks", where)
        if ranks % others:
            raise UserError(f"{where}: {ranks} ranks are no multiple of the {others} that parallel.tensor x "
                            "parallel.pipeline x parallel.context take")
        done["parallel.data"] = ranks // others
    if scaling == "weak":
        batch = whole(done.get(BATCH, deck_value(deck, BATCH)), BATCH, where)
        done[BATCH] = batch * whole(done["ranks"], "ranks", where)
    return done


def identity_of(settings: Settings) -> str:
    """Equal for two points exactly if they ask the program for the same."""
    text = Path(settings["deck"]).read_text(encoding="utf-8") if settings["deck"] else ""
    content = json.dumps([settings, text], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()
