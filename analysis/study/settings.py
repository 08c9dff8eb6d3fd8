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
# A point may set these in `train`: `flops` is a compute budget and `parameters` the N of its 6 N D; they give train.steps.
FLOPS, PARAMETERS, STEPS = "flops", "parameters", "train.steps"
FLOPS_OF_TOKEN = 6  # for each parameter


def is_deck_key(name: str) -> bool:
    return "." in name


def check_setting(name: str, where: str) -> None:
    """Deck keys have a dot; the rest is known by name. What deck keys exist the program says."""
    if is_deck_key(name) or name in (*OWN, FLOPS, PARAMETERS) or any(name in options for options in COMMANDS.values()):
        return
    known = sorted({*OWN, FLOPS, PARAMETERS, *(option for options in COMMANDS.values() for option in options)})
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


def above_zero(settings: Settings, key: str, where: str) -> float:
    value = settings.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise UserError(f"{where}: {key} is `{value_text(value)}`, expected a number above 0; `{FLOPS}` needs `{PARAMETERS}` beside it")
    return float(value)


def with_steps(settings: Settings, deck: Mapping[str, Any], where: str) -> Settings:
    """With the steps whose 6 N D is nearest to a budget, in place of `flops` and `parameters`."""
    if FLOPS not in settings and PARAMETERS not in settings:
        return settings
    if settings["command"] != "train" or STEPS in settings:
        raise UserError(f"{where}: `{FLOPS}` and `{PARAMETERS}` set {STEPS} of the command train; leave {STEPS} and other commands out")
    budget, size = (above_zero(settings, key, where) for key in (FLOPS, PARAMETERS))
    samples, context = (whole(settings.get(key, deck_value(deck, key)), key, where) for key in (BATCH, "model.context"))
    steps = round(budget / (FLOPS_OF_TOKEN * size * samples * context))
    if steps < 1:
        raise UserError(f"{where}: {value_text(budget)} FLOPs are less than a step of {value_text(size)} parameters; raise `{FLOPS}`")
    return {key: value for key, value in settings.items() if key not in (FLOPS, PARAMETERS)} | {STEPS: steps}


def complete(settings: Settings, scaling: str, where: str) -> Settings:
    """Adds what follows from the others: the steps of a budget, the data ranks of `ranks` or the ranks of the layout, and
    with weak scaling a batch that grows with the ranks."""
    if settings["command"] in WITHOUT_DECK:
        return {**settings, "ranks": 1}
    deck = load_yaml(Path(settings["deck"]))

    def layout(key: str) -> int:
        value = settings.get(key, deck_value(deck, key))
        return whole(1 if value is None else value, key, where)

    done = dict(with_steps(settings, deck, where))
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
