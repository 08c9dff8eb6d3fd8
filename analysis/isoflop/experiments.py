# SPDX-License-Identifier: Apache-2.0
"""The runs of `isoflop`: parameters, tokens, compute and final loss, of run directories or of a list in JSON; and their budgets."""
from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

from analysis.deck import Deck, is_whole, whole_in
from analysis.divergence import has_diverged
from analysis.errors import UserError
from analysis.json_files import read_json
from analysis.runs import Metrics, Run, final_loss, find_runs, last_value, read_metrics, validation_losses
from analysis.starts import mixed_text, trained_deck
from analysis.study.record import is_study_folder
from analysis.subject import parameter_count
from analysis.tables import counted, number, some

FLOPS = 6.0  # for each parameter and token: C = 6 N D
NEAR = 1.1  # runs whose compute differs by less are of one budget, since steps are whole
FEWEST_SIZES, FEWEST_BUDGETS = 3, 2
FORM = [{"parameters": float, "compute_budget": float, "final_loss": float}, 1]
ADVICE = "give a list of objects with parameters, compute_budget (FLOPs) and final_loss (nats), or run directories"
# Runs that differ in these have losses that do not compare.
LOSS_KEYS = ("data.train", "data.validation", "model.family", "model.vocabulary", "model.context")
OTHERS = "name the other runs, or leave it out with --without"


@dataclass(frozen=True)
class Experiment:
    """N, D, C = 6 N D, and the final loss in nats per token."""

    name: str
    parameters: float
    tokens: float
    compute: float
    loss: float


@dataclass(frozen=True)
class Budget:
    """Runs of one compute, from the smallest model; `compute` is the geometric mean of theirs."""

    compute: float
    experiments: list[Experiment]

    @property
    def sizes(self) -> list[float]:
        return [each.parameters for each in self.experiments]

    @property
    def lowest(self) -> Experiment:
        return min(self.experiments, key=lambda each: each.loss)


@dataclass(frozen=True)
class Source:
    """`about`: of the figures' subtitles; `count`: which parameters N counts; `runs` are empty of a list."""

    experiments: list[Experiment]
    about: str
    count: str
    runs: list[Run]


def counted_parameters(deck: Deck) -> int | None:
    """N: all parameters but those of the tables at the input, which no matrix product reads. A table that is the head, too,
    counts. None if the deck does not say."""
    total = parameter_count(deck)
    width, vocabulary, context = (whole_in(deck, f"model.{key}", 0) for key in ("width", "vocabulary", "context"))
    if total is None or not vocabulary:
        return None
    table = 0 if deck.get("model.tie_embeddings") == "true" else vocabulary * width
    return total - table - (context * width if deck.get("model.position") == "learned" else 0)


def check_end(run: Run, deck: Deck, metrics: Metrics) -> None:
    """A loss of a run that diverged, stopped early or changed on its way says nothing of its size."""
    step, steps = int(metrics.steps[-1]), deck.get("train.steps", "")
    if has_diverged(metrics):
        raise UserError(f"{run.path} diverged, so its loss says nothing of its size; run it again at a lower optimizer.lr, {OTHERS}")
    if is_whole(steps) and step < int(steps):
        raise UserError(f"{run.path} ended at step {step} of {steps}, before its learning rate fell to its end; let it train on, {OTHERS}")
    mixed = mixed_text(run)
    if mixed:
        raise UserError(f"{run.path} is no one training ({mixed}); {OTHERS}")


def read_run(run: Run) -> tuple[Experiment, Deck, bool]:
    """The third: whether the loss is of validation."""
    metrics, deck = read_metrics(run), trained_deck(run)
    check_end(run, deck, metrics)
    size = counted_parameters(deck)
    if deck.get("model.family") == "vit" or whole_in(deck, "experts.count", 0) or size is None:
        raise UserError(f"{run.path}: its parameters cannot be counted from deck.yaml as those of a dense language model, for which "
                        f"C = 6 N D holds; {OTHERS}")
    tokens, loss = last_value(metrics.column("tokens")), final_loss(metrics)
    if not (tokens > 0 and loss > 0):
        raise UserError(f"{run.path}/metrics.jsonl: its last tokens are {number(tokens, 0)} and its final loss is {number(loss)}, "
                        f"expected numbers above 0; {OTHERS}")
    return Experiment(run.label, float(size), tokens, FLOPS * size * tokens, loss), deck, bool(validation_losses(metrics))


def check_alike(runs: Sequence[Run], decks: Sequence[Deck], validated: Sequence[bool]) -> None:
    for run, deck, measured in zip(runs, decks, validated):
        key = next((key for key in LOSS_KEYS if deck.get(key) != decks[0].get(key)), "")
        if key:
            raise UserError(f"{runs[0].path} has {key} {decks[0].get(key, '-')}, {run.path} has {deck.get(key, '-')}: losses of these do not "
                            "compare; give runs of one text and vocabulary")
        if measured != validated[0]:
            raise UserError(f"the loss of {runs[0].path} is of {'validation' if validated[0] else 'training'}, that of {run.path} is not; "
                            "give runs that all measured validation, or none")


def points_of(folder: Path) -> list[str]:
    """Training runs of a study's folder."""
    found = [str(path.parent) for path in sorted(folder.glob("points/*/metrics.jsonl"))]
    if not found:
        raise UserError(f"{folder} holds no point that trained; run jobs/study.py first")
    return found


def run_names(names: Sequence[str], without: Sequence[str]) -> list[str]:
    """Of studies their points; without those that are named to be left out."""
    every: list[str] = []
    for name in names:
        study = next((folder for folder in (Path(name), Path("runs") / name) if is_study_folder(folder)), None)
        every += [name] if study is None else points_of(study)
    for name in without:
        if name not in [Path(each).name for each in every]:
            raise UserError(f"--without {name}: there is no such run; there are {some([Path(each).name for each in every])}")
    return [each for each in every if Path(each).name not in without]


def read_list(path: Path) -> Source:
    """Of courses: objects with parameters, compute_budget and final_loss."""
    content = read_json(path, FORM, ADVICE)
    for index, each in enumerate(content):
        wrong = next((key for key in FORM[0] if not each[key] > 0), "")
        if wrong:
            raise UserError(f"{path} cannot be read ([{index}].{wrong} is {each[wrong]}, expected a number above 0); {ADVICE}")
    experiments = [Experiment(f"[{index}]", float(each["parameters"]), each["compute_budget"] / FLOPS / each["parameters"],
                              float(each["compute_budget"]), float(each["final_loss"])) for index, each in enumerate(content)]
    return Source(experiments, f"{counted(len(experiments), 'run')} of {path.name}", "parameters as the list gives them", [])


def read_source(names: Sequence[str], without: Sequence[str]) -> Source:
    """One FILE.json, or run directories and studies."""
    files = [name for name in names if name.endswith(".json") or Path(name).is_file()]
    if files and (len(names) > 1 or without):
        raise UserError(f"{files[0]} is a list of runs: give it alone, without run directories and --without")
    if files:
        return read_list(Path(files[0]))
    runs = list({run.path.resolve(): run for run in find_runs(run_names(names, without))}.values())
    if not runs:
        raise UserError("--without leaves no run")
    found = [read_run(run) for run in runs]
    check_alike(runs, [deck for _, deck, _ in found], [measured for _, _, measured in found])
    return Source([each for each, _, _ in found], counted(len(runs), "run"),
                  "parameters without the tables at the input", runs)


def make_budgets(experiments: Sequence[Experiment]) -> list[Budget]:
    """From the least compute; an error if they are too few to find a law, or have too few sizes to find a minimum."""
    groups: list[list[Experiment]] = []
    for each in sorted(experiments, key=lambda each: each.compute):
        if groups and each.compute < NEAR * groups[-1][0].compute:
            groups[-1].append(each)
        else:
            groups.append([each])
    budgets = [Budget(math.exp(sum(math.log(each.compute) for each in group) / len(group)),
                      sorted(group, key=lambda each: each.parameters)) for group in groups]
    few = next((budget for budget in budgets if len(set(budget.sizes)) < FEWEST_SIZES), None)
    if few is not None:
        raise UserError(f"the budget of {few.compute:.3g} FLOPs has {counted(len(set(few.sizes)), 'model size')} "
                        f"({some([each.name for each in few.experiments])}), and a minimum needs {FEWEST_SIZES}; add runs of other sizes with "
                        "equal 6 N D, or leave these out")
    if len(budgets) < FEWEST_BUDGETS:
        raise UserError(f"all runs are of one budget, {budgets[0].compute:.3g} FLOPs, and a law needs {FEWEST_BUDGETS}; add runs of another")
    return budgets
