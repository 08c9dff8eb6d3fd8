# SPDX-License-Identifier: Apache-2.0
"""`arrivals`: which rank comes last to the operations of its groups, and what the others wait for it."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, Sequence

import h5py
import numpy as np
import numpy.typing as npt

from analysis.errors import UserError
from analysis.first_steps import skip_text
from analysis.runs import FloatArray, Run, find_runs
from analysis.starts import no_start_text, start_folders
from analysis.tables import text_table
from analysis.timings import RankSteps, check_ranks, read_files
from analysis.traces import RankTrace, Trace, members_of, read_trace

NOT_MEASURED = ("no rank reports when it called its groups; ranks on CPUs do in every step, GPUs in traced ones "
                "(train with --set timing.trace_steps=[STEP,...])")


@dataclass(frozen=True)
class Arrival:
    """When a rank came to the operations of one group, in the mean over steps."""

    steps: RankSteps
    group: str
    members: tuple[int, ...]
    late_seconds: float      # after the first member, per operation
    last_share: float        # of steps in which it came last
    operation_seconds: float  # call to end of all operations of a step


@dataclass(frozen=True)
class Split:
    """A rank's part in the collectives of one group in traced steps, seconds of a step."""

    rank: RankTrace
    group: str
    members: tuple[int, ...]
    operations: float
    wait_seconds: float      # from its call to that of the last member
    transfer_seconds: float  # from that call to the end
    last_share: float        # of operations to which it came last


def read_arrivals(start: Path) -> tuple[list[RankSteps], list[dict[str, tuple[int, ...]]],
                                        list[dict[str, FloatArray]]]:
    """Ranks, the members of their groups and their columns of arrivals."""
    ranks = read_files(start)
    check_ranks(start, ranks)
    members, columns = [], []
    for path in sorted(start.glob("rank_*.h5")):
        with h5py.File(path, "r") as file:
            members.append(members_of(file))
            columns.append({name: np.asarray(group["arrival_seconds"], dtype=np.float64)
                            for name, group in file.get("groups", {}).items()
                            if "arrival_seconds" in group})
    return ranks, members, columns


def arrivals_of(start: Path, skip: int) -> list[Arrival]:
    ranks, members, columns = read_arrivals(start)
    steps = min(rank.columns["step"].size for rank in ranks)
    if steps <= skip:
        raise UserError(f"{start} has no more than {skip} steps; run longer, or lower --skip")
    found: list[Arrival] = []
    for rank, groups, mine in zip(ranks, members, columns):
        for group, column in mine.items():
            peers = groups[group]
            if len(peers) < 2 or group == "world":
                continue
            all_of_group: npt.NDArray[np.float64] = np.array(
                [columns[peer][group][skip:steps] for peer in peers])
            measured = np.all(np.isfinite(all_of_group), axis=0)
            if not np.any(measured):
                continue
            times = all_of_group[:, measured]
            own = column[skip:steps][measured]
            seconds = rank.columns[f"{group}/seconds"][skip:steps][measured]
            found.append(Arrival(rank, group, peers, float(np.mean(own - times.min(axis=0))),
                                 float(np.mean(own >= times.max(axis=0))),
                                 float(np.mean(seconds))))
    if len(ranks) == 1:
        raise UserError(f"{start}: one rank comes late to no one; this command is for runs of several ranks")
    return found


def calls_by_ticket(rank: RankTrace, step: int, group: str) -> dict[int, tuple[float, float]]:
    """Call and end of the collectives of a group, on the clock of rank 0."""
    operations = rank.of_step("operations", step)
    begin = rank.begins[step]
    return {int(ticket): (begin + float(call), begin + float(end))
            for name, kind, ticket, call, end in zip(
                operations.get("group", ()), operations.get("operation", ()),
                operations.get("ticket", ()), operations.get("call_seconds", ()),
                operations.get("end_seconds", ())) if name == group and kind != "exchange"}


def splits_of(trace: Trace) -> list[Split]:
    """Of groups whose collectives all members traced."""
    found: list[Split] = []
    by_rank = {rank.rank: rank for rank in trace.ranks}
    groups = sorted({(name, peers) for rank in trace.ranks for name, peers in rank.members.items()
                     if len(peers) > 1})
    for group, peers in groups:
        totals: npt.NDArray[np.float64] = np.zeros((len(peers), 4))  # operations, waits, transfers, last
        for step in trace.steps:
            calls = [calls_by_ticket(by_rank[peer], step, group) for peer in peers]
            for ticket in sorted(set.intersection(*(set(each) for each in calls))):
                came = np.array([each[ticket][0] for each in calls])
                ends = np.array([each[ticket][1] for each in calls])
                totals += np.column_stack([np.ones(len(peers)), came.max() - came,
                                           np.maximum(ends - came.max(), 0.0),
                                           came == came.max()])
        if totals[0, 0] == 0:
            continue
        count = len(trace.steps)
        found += [Split(by_rank[peer], group, peers, row[0] / count, row[1] / count, row[2] / count,
                        row[3] / row[0]) for peer, row in zip(peers, totals)]
    return found


def slowest_split(splits: Sequence[Split]) -> str:
    """The rank that the others of a group wait for longest in its traced steps."""
    def waited_for(split: Split) -> float:
        return max(other.wait_seconds for other in splits
                   if (other.group, other.members) == (split.group, split.members)) - split.wait_seconds

    worst = max(splits, key=waited_for)
    others = [str(peer) for peer in worst.members if peer != worst.rank.rank]
    return (f"Slowest: rank {worst.rank.name} on {worst.rank.host}, for which its {worst.group} group (with "
            f"rank{'s' if len(others) > 1 else ''} {', '.join(others)}) waits up to {1e3 * waited_for(worst):.2f} ms "
            f"of a step, last at {100 * worst.last_share:.0f} % of the collectives.")


def slowest(arrivals: Sequence[Arrival]) -> str:
    """The rank that comes latest after the first member of a group of its own."""
    worst = max(arrivals, key=lambda arrival: arrival.late_seconds)
    others = [str(peer) for peer in worst.members if peer != worst.steps.rank]
    return (f"Slowest: rank {worst.steps.name} on {worst.steps.host}, which comes "
            f"{1e3 * worst.late_seconds:.2f} ms after the first member to the operations of its "
            f"{worst.group} group (with rank{'s' if len(others) > 1 else ''} {', '.join(others)}), "
            f"last in {100 * worst.last_share:.0f} % of the steps.")


def arrival_table(arrivals: Iterable[Arrival]) -> str:
    rows = [[each.steps.name, each.steps.host, each.group,
             f"{1e3 * each.late_seconds:.3f}", f"{100 * each.last_share:.0f}",
             f"{1e3 * each.operation_seconds:.3f}"]
            for each in sorted(arrivals, key=lambda each: (each.group, each.members,
                                                           each.steps.rank))]
    return text_table(["rank", "host", "group", "late ms", "last %", "in operations ms"], rows)


def split_table(splits: Iterable[Split]) -> str:
    rows = [[split.rank.name, split.group, f"{split.operations:.0f}",
             f"{1e3 * split.wait_seconds:.3f}", f"{1e3 * split.transfer_seconds:.3f}",
             f"{100 * split.last_share:.0f}"] for split in splits]
    return text_table(["rank", "group", "collectives", "waiting ms", "transfer ms", "last %"], rows)


def traced_splits(run: Run) -> tuple[Trace | None, list[Split]]:
    try:
        trace = read_trace(run)
    except UserError:
        return None, []
    return trace, splits_of(trace)


def describe_run(run: Run, skip: int) -> str:
    starts = list(start_folders(run))
    if not starts:
        raise UserError(no_start_text(run))
    arrivals = arrivals_of(starts[-1], skip)
    parts = []
    if arrivals:
        parts = [f"{run.label} ({starts[-1].name}): arrivals at the operations of groups, means of "
                 "steps", arrival_table(arrivals), slowest(arrivals)]
    trace, splits = traced_splits(run)
    if trace and splits:
        steps = ", ".join(map(str, trace.steps))
        parts += [f"Collectives of traced steps ({steps}), ms of a step: waiting for the last "
                  "member, then the transfer", split_table(splits)]
        if not arrivals:
            parts = [f"{run.label} ({trace.start.name})", *parts, slowest_split(splits)]
    if not parts:
        raise UserError(f"{starts[-1]}: {NOT_MEASURED}")
    return "\n\n".join(parts)


def arrivals(names: Sequence[str], skip: int) -> str:
    return "\n\n".join([*(describe_run(run, skip) for run in find_runs(names)), skip_text(skip)])
