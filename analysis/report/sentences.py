# SPDX-License-Identifier: Apache-2.0
"""Sentences that the numbers of a group make true, and the table of its laws."""
from __future__ import annotations

import math
from typing import Sequence

from analysis.report.document import Sheet
from analysis.report.fits import Fit, amdahl, fit_of, gustafson, karp_flatt, points_of
from analysis.report.same_losses import same_losses_sentence
from analysis.scaling import COMPUTE, Case, Group
from analysis.tables import number

SUPERLINEAR = 1.0 + 1e-3
STEADY = 0.01  # serial fractions that differ by less are called steady
SMALL_PART = 0.005  # of a step
POOR_FIT = 0.1  # a fit that differs from a speed-up by more describes nothing
OTHER_CROWDED = "other, which is waiting for a core between the passes of a pipeline"
LAWS = {"Amdahl": amdahl, "Gustafson": gustafson}


def rank_text(ranks: float) -> str:
    return "1 rank" if ranks == 1 else f"{ranks:g} ranks"


def percent(share: float) -> str:
    return f"{number(100.0 * share, 1)} %"


def speed_sentences(group: Group) -> list[str]:
    """One for each rank count above the base's."""
    reported = []
    for case in group.best:
        if case.ranks <= group.base.ranks:
            continue
        speed_up, ideal = group.speed_up(case), case.ranks / group.base.ranks
        reported.append(f"{case.ranks_text} are {number(speed_up, 2)} times as fast as "
                        f"{rank_text(group.base.ranks)}: "
                        f"{percent(group.efficiency(case))} of the ideal {ideal:g} times"
                        f"{', more than ideal' if speed_up > ideal * SUPERLINEAR else ''}.")
    return reported


def share(case: Case, names: Sequence[str]) -> float:
    return case.seconds(names) / case.step_seconds


def part_sentence(group: Group) -> str:
    """What the largest run loses beside computing."""
    case = group.best[-1]
    parts = {"exposed communication": case.exposed_seconds / case.step_seconds, "waiting for slower ranks (wait and skew)":
             share(case, ("wait", "skew")), "idle pipeline stages": share(case, ("idle",)),
             "waiting for data": share(case, ("data",)), "checkpoints": share(case, ("checkpoint",)),
             "the optimizer": share(case, ("optimizer",)),
             OTHER_CROWDED if case.crowd and case.layout.sizes[1] > 1 else "other": share(case, ("other",))}
    seen = sorted(((value, name) for name, value in parts.items() if value > SMALL_PART), reverse=True)
    rest = ", ".join(f"{percent(value)} {name}" for value, name in seen)
    return (f"A median step of {case.name} is {percent(share(case, COMPUTE))} forward and backward"
            f"{f'; {rest}' if rest else ''}.")


def slowest_sentence(group: Group) -> str:
    case = group.best[-1]
    if case.ranks < 2:
        return ""
    slowest = case.slowest
    return (f"Its slowest rank is {slowest.steps.rank} on {slowest.steps.host}, with {percent(slowest.excess)} more "
            "work of its own than the median rank.")


def serial_fractions(group: Group) -> list[float]:
    return [karp_flatt(p, speed_up) for p, speed_up in points_of(group)]


def trend_sentence(fractions: Sequence[float]) -> str:
    """What the experimentally determined serial fraction says, if there is more than one."""
    if len(fractions) < 2:
        return ""
    ends = f"from {number(fractions[0], 4)} to {number(fractions[-1], 4)}"
    rises = all(later > earlier for earlier, later in zip(fractions, fractions[1:]))
    falls = all(later < earlier for earlier, later in zip(fractions, fractions[1:]))
    if max(fractions) - min(fractions) < STEADY:
        return (f"The serial fraction of Karp and Flatt stays within {number(STEADY, 2)} ({ends}), as a part that "
                "does not get faster would.")
    if rises:
        return (f"The serial fraction of Karp and Flatt rises with the ranks ({ends}): overhead grows faster than a "
                "fixed serial part would explain.")
    if falls:
        return (f"The serial fraction of Karp and Flatt falls with the ranks ({ends}): more ranks are faster than the "
                "fraction on the fewest of them would give.")
    return f"The serial fraction of Karp and Flatt goes {ends}, neither rising nor falling throughout."


def fit_sentence(group: Group, fit: Fit) -> str:
    kind = {"Amdahl": "a serial share", "Gustafson": "a serial share of the scaled work"}[fit.law]
    points = len(points_of(group))
    basis = (f"fitted to {points} rank counts, from which its speed-ups differ by at most {percent(fit.worst)}"
             if points > 1 else "from one rank count alone, so that nothing tests it")
    text = f"{fit.law}'s law has {kind} of {number(fit.serial, 4)} ({basis})"
    if fit.worst > POOR_FIT:
        return f"{text}; that is too far for the law to describe these runs."
    if fit.serial > 1:
        return (f"{text}; no work has more than all of itself serial: more ranks are slower than the base, which the law "
                "does not describe.")
    if fit.serial <= 0:
        return f"{text}; as it is not above zero, the speed-ups hold no sign of a limit."
    if fit.law == "Gustafson" or math.isinf(fit.limit):
        return f"{text}."
    return f"{text}; it would limit the speed-up to {number(fit.limit, 1)} times the base."


def scaling_sentences(group: Group) -> list[str]:
    reported = [*speed_sentences(group), part_sentence(group), slowest_sentence(group)]
    fit = fit_of(group)
    if fit is not None:
        if group.kind == "strong":
            reported.append(trend_sentence(serial_fractions(group)))
        reported.append(fit_sentence(group, fit))
    elif group.kind in ("strong", "weak") and points_of(group):
        reported.append("No number of ranks is faster than the base, so no law of speed-ups is fitted.")
    reported.append(same_losses_sentence(group))
    return [sentence for sentence in reported if sentence]


def law_sheet(group: Group) -> Sheet | None:
    """Measured speed-ups beside the law's, and the serial fraction of each."""
    fit = fit_of(group)
    if fit is None:
        return None
    header = ["ranks", "speed-up", f"{fit.law}, fitted", "difference (%)", "serial fraction (Karp-Flatt)"]
    rows = []
    for p, speed_up in points_of(group):
        law = LAWS[fit.law](p, fit.serial)
        rows.append([f"{p * group.base.ranks:g}", number(speed_up, 3), number(law, 3),
                     number(100.0 * (law / speed_up - 1.0), 1),
                     number(karp_flatt(p, speed_up), 4) if group.kind == "strong" else "-"])
    return Sheet(f"Laws of scaling, base {rank_text(group.base.ranks)}", header, rows)
