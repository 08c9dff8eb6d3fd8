# SPDX-License-Identifier: Apache-2.0
"""Runs the points of a study one by one; what was finished before is not run again."""
from __future__ import annotations

import contextlib
import fcntl
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Iterator, Sequence

from analysis.crowding import OUTPUT
from analysis.errors import UserError, one_line
from analysis.first_steps import SKIPPED_STEPS
from analysis.study.launch import Launcher, message_of, state_of
from analysis.study.live import Live
from analysis.study.machine import describe_machine
from analysis.study.points import Point
from analysis.study.prediction import PLAN
from analysis.study.record import (
    FAILED, POINT, RESULTS, RUNNING, STOPPED, Record, point_folder, read_record, write_record,
)

POLL_SECONDS = 0.25
FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
PREEMPTED_CODE = 75  # as the program's own: the same command goes on


class Stop:
    """Whether the study was asked to stop. Signals go on to the point that runs, which saves and ends."""

    def __init__(self) -> None:
        self.asked = False
        self.child: subprocess.Popen[bytes] | None = None

    def __call__(self, number: int, _frame: object) -> None:
        self.asked = True
        # From a terminal SIGINT reaches the child by itself; SIGALRM says that the time is over.
        if self.child is not None and number != signal.SIGINT:
            self.child.send_signal(signal.SIGTERM if number == signal.SIGALRM else number)

    @contextlib.contextmanager
    def listening(self, seconds: float) -> Iterator[None]:
        """`seconds` from now it is asked; 0: never."""
        old = {number: signal.signal(number, self) for number in (signal.SIGINT, *FORWARDED)}
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in old.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def held(folder: Path, name: str) -> Iterator[bool]:
    """A point is run by one study.py at a time; the system releases the lock when it ends."""
    path = folder / "points" / f".{name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def predict(point: Point, launcher: Launcher, place: Path) -> None:
    """Before the point runs: what `plan` says of it. That it cannot is reported, and is no fault of the point."""
    if point.command not in ("train", "bench"):
        return
    done = subprocess.run(launcher.plan_words(point), capture_output=True, text=True, check=False,
                          env=launcher.variables(), stdin=subprocess.DEVNULL)
    if done.returncode == 0:
        (place / PLAN).write_text(done.stdout, encoding="utf-8")
    else:
        print(one_line(f"{point.name}: no prediction: {message_of(done.stderr)}"), file=sys.stderr)


def clear(place: Path) -> None:
    """An earlier attempt goes, unless it left checkpoints to go on from."""
    if place.is_dir() and not any((place / "checkpoints").glob("step_*")):
        shutil.rmtree(place)
    place.mkdir(parents=True, exist_ok=True)


def run_point(point: Point, record: Record, launcher: Launcher, live: Live, stop: Stop) -> None:
    place = point_folder(launcher.folder, point.name)
    clear(place)
    predict(point, launcher, place)
    record.launch = launcher.words(point)
    record.state, record.machine = RUNNING, describe_machine(launcher.binary)
    record.started = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    write_record(launcher.folder, record)
    live.update(record, event=True)
    begun = time.monotonic()
    with (place / OUTPUT).open("wb") as output:
        try:
            stop.child = subprocess.Popen(record.launch, stdout=output, stderr=subprocess.STDOUT,
                                          stdin=subprocess.DEVNULL, env=launcher.variables())
        except OSError as error:
            record.state, record.message = FAILED, f"cannot start {record.launch[0]}: {error.strerror}"
            write_record(launcher.folder, record)
            raise UserError(f"{record.message}; name another with --launcher or --binary") from error
        while stop.child.poll() is None:
            time.sleep(POLL_SECONDS)
            record.seconds = time.monotonic() - begun
            live.update(record)
    record.code, stop.child = stop.child.returncode, None
    record.seconds = time.monotonic() - begun
    text = (place / OUTPUT).read_text(encoding="utf-8", errors="replace")
    record.state, record.message = state_of(record.code, text), message_of(text, record.code)
    if stop.asked and record.state not in RESULTS:
        record.state = STOPPED
    write_record(launcher.folder, record)
    live.update(record, event=True)


def newest(folder: Path, record: Record) -> Record:
    """What another study.py may have made of the point since this one began."""
    path = point_folder(folder, record.name) / POINT
    return read_record(path) if path.is_file() else record


def run_points(points: Sequence[Point], found: dict[str, Record], launcher: Launcher, seconds: float = 0.0,
               skip: int = SKIPPED_STEPS) -> int:
    """Exit code: 0 if every point has a result, 1 if one failed, 75 if the study was stopped, as it is after
    `seconds` unless they are 0. Rates leave out `skip` steps."""
    records = {point.name: found.get(point.name) or Record.of(point) for point in points}
    live = Live(launcher.folder, records, skip=skip)
    stop = Stop()
    with stop.listening(seconds):
        for point in points:
            if records[point.name].state in RESULTS:
                continue
            if stop.asked:
                return PREEMPTED_CODE
            with held(launcher.folder, point.name) as is_ours:
                if not is_ours:
                    print(f"{point.name}: another jobs/study.py runs it; left to that one")
                    continue
                records[point.name] = newest(launcher.folder, records[point.name])
                if records[point.name].state not in RESULTS:
                    run_point(point, records[point.name], launcher, live, stop)
    if any(record.state == FAILED for record in records.values()):
        return 1
    return PREEMPTED_CODE if any(record.state == STOPPED for record in records.values()) else 0
