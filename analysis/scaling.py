# SPDX-License-Identifier: Apache-2.0
"""The numbers of `report`: what a step costs by rank count, and which runs may be compared."""
from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Hashable, Iterable, Sequence

import numpy as np

from analysis.crowding import crowd_of
from analysis.deck import Deck, bound, number_in
from analysis.errors import UserError
from analysis.runs import FloatArray, Run, read_metrics
from analysis.starts import deck_of_start, has_own_deck, lasting_steps, mixed_text
from analysis.tables import counted, some
from analysis.timings import BUSY, PARTS, TRAFFIC, WAITING, Layout, RankSteps, read_layouts, sum_of, typical_steps

# Parts of the bar of a job's step, from the bottom. `skew`: from the mean rank's end to the last's.
STACK = (*PARTS.values(), "other", "skew")
COMPUTE = ("forward", "backward")
EXPOSED = ("reduce exposed", "tensor", "context", "expert", "pipeline")
RATE_TOLERANCE = 0.1
SUPERLINEAR = 1.1  # efficiency from which the base is doubted


@dataclass(frozen=True)
class Slowest:
    """The rank with the most work of its own, the step less what it waits for others."""

    steps: RankSteps
    own_seconds: float
    excess: float  # above the median rank, as a share of it


@dataclass(frozen=True)
class Case:
    """One layout of one run. Seconds are of a median step; `parts`, by STACK, add up to it."""

    layout: Layout
    deck: Deck
    tokens_per_step: int
    steps: int
    step_seconds: float
    quartiles: tuple[float, float]
    parts: dict[str, float]
    reduce_seconds: float
    checkpoint_mean_seconds: float
    slowest: Slowest
    peak_bytes: float
    mfu: float
    busy_seconds: float = math.nan  # with a reduction in progress
    traffic: dict[str, dict[str, float]] = field(default_factory=dict)  # by group and TRAFFIC
    crowd: str = ""  # such as "4 ranks on 2 cores", if there were more CPU ranks than cores

    @property
    def ranks(self) -> int:
        return len(self.layout.ranks)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens_per_step / self.step_seconds

    @property
    def images_per_second(self) -> float:
        """NaN for text."""
        if self.deck.get("model.family") != "vit":
            return math.nan
        return number_in(self.deck, "train.global_batch", self.layout.run) / self.step_seconds

    @property
    def name(self) -> str:
        return f"{self.layout.run.label} ({self.shape})"

    @property
    def shape(self) -> str:
        return self.layout.shape

    @property
    def ranks_text(self) -> str:
        return "1 rank" if self.ranks == 1 else f"{self.ranks} ranks ({self.shape})"

    @property
    def hosts(self) -> list[str]:
        return sorted({rank.host for rank in self.layout.ranks})

    @property
    def devices(self) -> list[str]:
        return sorted({rank.device for rank in self.layout.ranks})

    @property
    def commits(self) -> list[str]:
        return sorted({rank.commit for rank in self.layout.ranks})

    @property
    def threads(self) -> list[int]:
        """Per rank; empty if files do not report it."""
        return sorted({rank.threads for rank in self.layout.ranks} - {0})

    def seconds(self, names: Iterable[str]) -> float:
        return sum(self.parts[name] for name in names)

    @property
    def reducing_seconds(self) -> float:
        """With a reduction of gradients in progress; in files without that column the sum of all reductions."""
        return self.reduce_seconds if math.isnan(self.busy_seconds) else self.busy_seconds

    @property
    def communication_seconds(self) -> float:
        """With a reduction in progress, and of tensor, context, expert and pipeline communication that a rank waits for."""
        return self.reducing_seconds + self.seconds(("tensor", "context", "expert", "pipeline"))

    @property
    def exposed_seconds(self) -> float:
        """Communication that the step waits for, without waiting for slower ranks."""
        return self.seconds(EXPOSED)


@dataclass(frozen=True)
class Group:
    """Cases that may be compared: `strong`, `weak`, or `single` with one rank count."""

    kind: str
    cases: list[Case]
    base: Case

    def speed_up(self, case: Case) -> float:
        """In tokens per second; of strong scaling that is the base's step time over this one's."""
        return case.tokens_per_second / self.base.tokens_per_second

    def efficiency(self, case: Case) -> float:
        return self.speed_up(case) * self.base.ranks / case.ranks

    @property
    def best(self) -> list[Case]:
        """The fastest case of each rank count."""
        return [fastest(case for case in self.cases if case.ranks == ranks)
                for ranks in sorted({case.ranks for case in self.cases})]


def fastest(cases: Iterable[Case]) -> Case:
    return max(cases, key=lambda case: case.tokens_per_second)


def slowest_rank(layout: Layout) -> Slowest:
    own = [float(np.median(rank.columns["step_seconds"] - sum_of(rank.columns, WAITING)))
           for rank in layout.ranks]
    worst = int(np.argmax(own))
    typical = float(np.median(own))
    return Slowest(layout.ranks[worst], own[worst],
                   own[worst] / typical - 1.0 if typical > 0 else 0.0)


def tokens_per_step(layout: Layout) -> int:
    """Ranks that differ only in pipeline and tensor work on the same tokens."""
    tokens = np.sum([rank.columns["tokens"] for rank in layout.ranks
                     if not any(rank.coordinates[1:])], axis=0)
    if np.unique(tokens).size != 1 or tokens[0] <= 0:
        raise UserError(f"{layout.run.path}/timing: steps of {layout.label} have between "
                        f"{tokens.min():.0f} and {tokens.max():.0f} tokens, expected one number "
                        "above 0; report runs of one batch")
    return int(tokens[0])


def traffic_of(layout: Layout) -> dict[str, dict[str, float]]:
    """By group, means over the ranks that are in it and over steps."""
    groups = dict.fromkeys(group for rank in layout.ranks for group in rank.groups)
    return {group: {name: known_mean(np.concatenate([rank.columns[f"{group}/{name}"]
                                                     for rank in layout.ranks if group in rank.groups]))
                    for name in TRAFFIC} for group in groups}


def known_mean(values: FloatArray) -> float:
    """Over what was measured; NaN if nothing was."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else math.nan


def measure(layout: Layout, deck: Deck, mfu: float) -> Case:
    """A step lasts until its slowest rank ends. The parts are means over ranks and over the steps
    between the quartiles, scaled from the mean of these steps to the median of all."""
    has_busy = all(BUSY in rank.columns for rank in layout.ranks)
    matrix = {name: np.array([rank.columns[name] for rank in layout.ranks])
              for name in ("step_seconds", "reduce_seconds", *([BUSY] if has_busy else []), *PARTS)}
    job = matrix["step_seconds"].max(axis=0)
    if not np.all(job > 0):
        raise UserError(f"{layout.run.path}/timing: a step of {layout.label} lasted 0 s; was the "
                        "job killed while it wrote?")
    typical = typical_steps(job)
    means = {name: typical.mean(values) for name, values in matrix.items()}
    parts = {label: means[name] for name, label in PARTS.items()}
    parts["other"] = means["step_seconds"] - sum(parts.values())
    parts["skew"] = typical.median - means["step_seconds"]
    return Case(layout, deck, tokens_per_step(layout), job.size, typical.median, typical.quartiles,
                parts, means["reduce_seconds"], float(matrix["checkpoint_seconds"].mean()),
                slowest_rank(layout),
                max(float(rank.columns["memory_peak_bytes"].max()) for rank in layout.ranks), mfu,
                means.get(BUSY, math.nan), traffic_of(layout))


def metrics_of(run: Run, layout: Layout) -> tuple[float, float]:
    """Medians of rank 0's tokens/s and MFU over the measured steps that no later start did again; NaN
    if there are none. MFU is also NaN if that of one step is: a step was then faster than the rate,
    which makes the rate wrong for all."""
    metrics = read_metrics(run)
    spans = lasting_steps(run)
    lasting = [(metrics.steps >= first) & (metrics.steps <= last)
               for first, last in (spans[start] for start in layout.starts if start in spans)]
    measured = np.isin(metrics.steps, layout.ranks[0].columns["step"]) & np.any(
        [*lasting, np.zeros(metrics.steps.size, dtype=bool)], axis=0)

    def median(values: np.ndarray) -> float:
        return float(np.nanmedian(values)) if np.any(~np.isnan(values)) else math.nan

    mfu = metrics.column("mfu")[measured]
    return median(metrics.column("tokens_per_second")[measured]), math.nan if np.any(np.isnan(mfu)) else median(mfu)


def metrics_notes(case: Case, rate: float) -> list[str]:
    if math.isnan(rate) or abs(rate / case.tokens_per_second - 1.0) <= RATE_TOLERANCE:
        return []
    return [f"{case.name}: metrics.jsonl says {rate:,.0f} tokens/s, the timing files "
            f"{case.tokens_per_second:,.0f}"]


def case_notes(case: Case, newest: bool) -> list[str]:
    notes = []
    deck_tokens = (number_in(case.deck, "train.global_batch", case.layout.run)
                   * number_in(case.deck, "model.context", case.layout.run))
    if deck_tokens != case.tokens_per_step:
        notes.append(f"{case.name}: a step has {case.tokens_per_step:,} tokens in the timing files "
                     f"and {deck_tokens:,} in deck.yaml; the timing files count")
    if not newest and not has_own_deck(case.layout.run, case.layout.starts[-1]):
        notes.append(f"{case.name}: deck.yaml is of the run's newest start, not of "
                     f"{some(case.layout.starts)}; layout and tokens are of the timing files")
    for what, values in (("commits", case.commits), ("devices", case.devices)):
        if len(values) > 1:
            notes.append(f"{case.name}: ranks have different {what}: {some(values)}")
    return notes


def crowd_text(layout: Layout) -> str:
    """Of CPU ranks; from the timing files if they hold the cores of a host, else from what the program printed."""
    if any(rank.device != "cpu" for rank in layout.ranks):
        return ""
    on_host = Counter(rank.host for rank in layout.ranks)
    found = [f"{on_host[rank.host]} ranks on {counted(rank.cores, 'core')}" for rank in layout.ranks if 0 < rank.cores < on_host[rank.host]]
    return found[0] if found else crowd_of(layout.run.path)


def read_cases(run: Run, skip: int) -> tuple[list[Case], list[str]]:
    layouts, notes = read_layouts(run, skip)
    mixed = mixed_text(run)
    notes += [f"{run.label}: {mixed}"] if mixed else []
    cases: list[Case] = []
    for layout in layouts:
        newest = layout is layouts[-1]
        known = (run.path / "metrics.jsonl").is_file()
        rate, mfu = metrics_of(run, layout) if known else (math.nan, math.nan)
        crowd = crowd_text(layout)
        cases.append(replace(measure(layout, deck_of_start(run, layout.starts[-1]), math.nan if crowd else mfu), crowd=crowd))
        # The few steps that are left of an earlier start can be faster or slower than all it did.
        notes += (metrics_notes(cases[-1], rate) if newest else []) + case_notes(cases[-1], newest)
    if not (run.path / "metrics.jsonl").is_file():
        notes.append(f"{run.label}: metrics.jsonl is missing; no MFU, and no check of the rate")
    return cases, notes


def family(case: Case) -> Hashable:
    return (tuple(sorted(bound(case.deck).items())), tuple(case.devices))


def gather(cases: Sequence[Case], key: str) -> list[list[Case]]:
    """By tokens of a step, or by tokens of a step and rank."""
    found: dict[Fraction, list[Case]] = {}
    for case in cases:
        value = Fraction(case.tokens_per_step, case.ranks if key == "weak" else 1)
        found.setdefault(value, []).append(case)
    return [found[value] for value in sorted(found)]


def has_scaling(cases: Sequence[Case]) -> bool:
    return len({case.ranks for case in cases}) > 1


def make_group(kind: str, cases: Sequence[Case], base_ranks: int | None) -> Group:
    ordered = sorted(cases, key=lambda case: (case.ranks, case.layout.sizes, case.layout.run.label))
    counts = {case.ranks for case in ordered}
    start = base_ranks if base_ranks in counts else min(counts)
    return Group(kind, ordered, fastest(case for case in ordered if case.ranks == start))


def is_weak_study(cases: Sequence[Case], strong: Sequence[Case], fewest_ranks: int) -> bool:
    """Whether work was made to grow with the ranks, and is not equal per rank by chance, as between
    strong runs of several batches: two rank counts or more have a run that is part of no strong
    scaling, or one has and the curve begins at the fewest ranks of all."""
    own = {case.ranks for case in cases if not any(case is other for other in strong)}
    return len(own) > 1 or (len(own) == 1 and min(case.ranks for case in cases) == fewest_ranks)


def groups_of_family(members: Sequence[Case], base_ranks: int | None) -> list[Group]:
    """Strong curves, then weak ones, then what is part of neither."""
    strong = [cases for cases in gather(members, "strong") if has_scaling(cases)]
    on_strong = [case for cases in strong for case in cases]
    fewest = min(case.ranks for case in members)
    weak = [cases for cases in gather(members, "weak")
            if has_scaling(cases) and is_weak_study(cases, on_strong, fewest)]
    scaled = [case for cases in [*strong, *weak] for case in cases]
    alone = [case for case in members if not any(case is other for other in scaled)]
    return [make_group(kind, cases, base_ranks)
            for kind, found in (("strong", strong), ("weak", weak), ("single", gather(alone, "strong")))
            for cases in found]


def make_groups(cases: Sequence[Case], base_ranks: int | None) -> list[Group]:
    """Runs that do different work, or on other devices, never share a group."""
    if base_ranks is not None and base_ranks not in {case.ranks for case in cases}:
        counts = ", ".join(str(count) for count in sorted({case.ranks for case in cases}))
        raise UserError(f"--base {base_ranks}: no run has {base_ranks} ranks, found {counts}")
    families: dict[Hashable, list[Case]] = {}
    for case in cases:
        families.setdefault(family(case), []).append(case)
    return [group for members in families.values() for group in groups_of_family(members, base_ranks)]


def named_decks(cases: Sequence[Case]) -> dict[str, Deck]:
    """By run, or by run and start if starts of a run had different decks."""
    by_run: dict[str, list[Case]] = {}
    for case in cases:
        by_run.setdefault(case.layout.run.label, []).append(case)
    decks: dict[str, Deck] = {}
    for label, members in by_run.items():
        differ = any(case.deck != members[0].deck for case in members)
        decks |= {f"{label}/{case.layout.starts[-1]}" if differ else label: case.deck for case in members}
    return decks


def why_apart(first: Group, other: Group) -> str:
    """What keeps two groups apart: deck keys that change the work, devices, the batch. Empty for
    strong and weak scaling of the same work."""
    one, two = first.base, other.base
    reasons = [f"{key} {one.deck.get(key, '-')} against {two.deck.get(key, '-')}"
               for key in dict.fromkeys([*bound(one.deck), *bound(two.deck)])
               if one.deck.get(key) != two.deck.get(key)]
    if one.devices != two.devices:
        reasons.append(f"device {some(one.devices)} against {some(two.devices)}")
    if not reasons and {first.kind, other.kind} == {"strong", "weak"}:
        return ""
    if one.tokens_per_step != two.tokens_per_step:
        reasons.append(f"tokens of a step {one.tokens_per_step:,} against {two.tokens_per_step:,} "
                       f"(train.global_batch {one.deck.get('train.global_batch', '-')} against "
                       f"{two.deck.get('train.global_batch', '-')})")
    return "; ".join(reasons)


def group_notes(groups: Sequence[Group], base_ranks: int | None) -> list[str]:
    notes = []
    for number, group in enumerate(groups, 1):
        if number > 1 and (reason := why_apart(groups[0], group)):
            notes.append(f"group {number} is not compared with group 1: {reason}")
        if base_ranks is not None and group.base.ranks != base_ranks:
            notes.append(f"group {number} has no run of {base_ranks} ranks; its base has "
                         f"{group.base.ranks}")
        best = max(group.cases, key=group.efficiency)
        if group.efficiency(best) > SUPERLINEAR:
            notes.append(f"group {number}: {best.name} has an efficiency of "
                         f"{100 * group.efficiency(best):.0f} %; did its base {group.base.name} "
                         "have the same threads per rank, and its machine to itself?")
        threads = sorted({count for case in group.cases for count in case.threads})
        if len(threads) > 1:
            notes.append(f"group {number} has runs with different threads per rank "
                         f"({some([str(count) for count in threads])})")
        commits = sorted({commit for case in group.cases for commit in case.commits})
        if len(commits) > 1:
            notes.append(f"group {number} has runs of different commits ({some(commits)}): its "
                         "speed-ups are also those of the changes between them")
    return notes
