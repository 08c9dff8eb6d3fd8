# SPDX-License-Identifier: Apache-2.0
"""What the timings of a step cost on CPU ranks: phases, components and rows of the timing files.

python3 -m analysis.compare.timing_cost --build DIR --output FILE [--ranks N] [--steps N] [--rounds N] [DECK]

Two ways. By their calls: DIR/bin/timing_bench reports nanoseconds a call, a traced step how many calls there are. Phases
and components are always on, since the lines of metrics.jsonl and the watchdog need them. And on against off: rows are
written in every second step (timing.every: 2), so that each step with a row has a neighbour without one; of pairs of
neighbours the median difference of wall_seconds counts, beside that of a run without rows, whose pairs differ by
nothing but chance.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

import h5py

PHASES = {"other", "data", "forward", "backward", "optimizer", "reduce_exposed", "tensor_comm", "context_comm", "expert_comm",
          "pipeline_comm", "pipeline_idle", "wait", "checkpoint"}
NO_ROWS = 1000000000
FIRST_STEPS = 10  # left out of the pairs


def options():
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("deck", nargs="?", default="inputs/parity-16h.yaml")
    parser.add_argument("--build", default="build")
    parser.add_argument("--output", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def settings_of(given, every, traced, folder):
    """A short run on synthetic tokens that saves nothing."""
    settings = ["data.train=[synthetic]", "data.validation=[]", "data.vocabulary=", "train.validate_every=0",
                "checkpoint.every=0", "checkpoint.final=false", "run.device=cpu", "precision.compute=fp32",
                "train.log_every=1000000", f"train.steps={given.steps}", f"parallel.data={given.ranks}",
                f"timing.every={every}", f"run.directory={folder}"]
    return settings + ([f"timing.trace_steps=[{given.steps}]"] if traced else [])


def train(given, every, traced=False):
    """Lines of metrics.jsonl, and events of rank 0 by name in the traced step."""
    with tempfile.TemporaryDirectory(prefix="hyperslab_timing_") as folder:
        words = ["mpirun", "--quiet", "--oversubscribe", "--bind-to", "none", "-np", str(given.ranks),
                 f"{given.build}/bin/hyperslab", "train", given.deck]
        for setting in settings_of(given, every, traced, folder):
            words += ["--set", setting]
        done = subprocess.run(words, capture_output=True, text=True, check=False,
                              env={"OMP_NUM_THREADS": "1", **os.environ})
        if done.returncode != 0:
            sys.exit(done.stderr)
        lines = [json.loads(line) for line in (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()]
        counts = {}
        if traced:
            with h5py.File(next(pathlib.Path(folder).glob("timing/start_*/rank_00000.h5"))) as file:
                for name, stream in zip(file["events/name"][()], file["events/stream"][()]):
                    if stream.decode() == "compute":
                        counts[name.decode()] = counts.get(name.decode(), 0) + 1
        return lines, counts


def difference(lines):
    """Median over pairs of (a step of even number - the step before it) in seconds, and the median step."""
    ends = {line["step"]: line["wall_seconds"] for line in lines}
    seconds = {step: ends[step] - ends[step - 1] for step in ends if step - 1 in ends and step > FIRST_STEPS}
    pairs = [seconds[step] - seconds[step - 1] for step in seconds if step % 2 == 0 and step - 1 in seconds]
    return statistics.median(pairs), statistics.median(seconds.values())


def by_calls(given, say):
    """Nanoseconds a call times calls a step."""
    with tempfile.TemporaryDirectory(prefix="hyperslab_timing_") as folder:
        out = subprocess.run([f"{given.build}/bin/timing_bench", folder], capture_output=True, text=True, check=True)
    costs = json.loads(out.stdout)
    lines, counts = train(given, 1, traced=True)
    step = statistics.median(line["step_seconds"] for line in lines[FIRST_STEPS:])
    phases = sum(count for name, count in counts.items() if name in PHASES)
    components = sum(counts.values()) - phases
    seconds = 1e-9 * (phases * costs["phase_ns"] + components * costs["component_ns"] + costs["row_ns"])
    say("By calls, of rank 0 in one step:")
    say(f"  {phases} phases at {costs['phase_ns']:.0f} ns, {components} components at {costs['component_ns']:.0f} ns, "
        f"one row at {costs['row_ns'] / 1000:.1f} us with its share of a flush")
    say(f"  together {1e6 * seconds:.1f} us of a step of {1e3 * step:.1f} ms: {100 * seconds / step:.4f} %")


def on_against_off(given, say):
    """Steps with a row against their neighbours without."""
    say("Rows on against off, of pairs of neighbouring steps; off: no step has a row, so that the difference is chance:")
    found = {"on": [], "off": []}
    for _ in range(given.rounds):
        for name, every in (("on", 2), ("off", NO_ROWS)):
            median, step = difference(train(given, every)[0])
            found[name].append(100 * median / step)
    for name, shares in found.items():
        say(f"  {name:4} " + "  ".join(f"{share:+.3f} %" for share in shares) +
            f"   median {statistics.median(shares):+.3f} % of a step")


def main():
    """Writes the record and prints it."""
    given = options()
    text = []

    def say(line):
        text.append(line)
        print(line, flush=True)

    version = subprocess.run([f"{given.build}/bin/hyperslab", "--version"], capture_output=True, text=True, check=True)
    say(f"Cost of the timings of a step; {version.stdout.splitlines()[0]}; {os.cpu_count()} cores of "
        f"{platform.machine()}, load {os.getloadavg()[0]:.1f}; {given.deck} on {given.ranks} CPU ranks, {given.steps} steps,")
    say("  python3 -m analysis.compare.timing_cost " + " ".join(sys.argv[1:]))
    by_calls(given, say)
    on_against_off(given, say)
    pathlib.Path(given.output).write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
