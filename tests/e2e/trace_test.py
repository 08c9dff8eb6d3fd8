#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Traced steps: one trace of all ranks, when memory is in use, who comes last; and metrics for TensorBoard."""

import collections
import importlib.util
import json
import shutil
import statistics
import struct
import subprocess
import sys

import support

PIPELINE = ("run.directory=stages", "parallel.pipeline=2", "train.microbatch=4", "train.steps=4",
            "timing.trace_steps=[2,4]", "run.tensorboard=true", "checkpoint.every=0")


def records(data):
    """The data of all records of an event file."""
    found = []
    while data:
        length = struct.unpack_from("<Q", data)[0]
        found.append(data[12:12 + length])
        data = data[16 + length:]
    return found


class Trace(support.Case):
    """A pipeline of two stages, whose steps 2 and 4 are traced."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        result = cls.run_program("train", "deck.yaml", *support.overrides(*PIPELINE), ranks=2)
        if result.code != 0:
            raise AssertionError(result.err)
        cls.result = cls.run_program("trace", "stages", "--output", "trace.json")
        cls.events = json.loads((cls.folder / "trace.json").read_text(encoding="utf-8"))["traceEvents"]

    def spans(self, rank, track):
        """Spans of a track of a rank, by the name of the track."""
        tracks = {event["tid"] for event in self.events
                  if event["ph"] == "M" and event["name"] == "thread_name" and event["pid"] == rank
                  and event["args"]["name"] == track}
        return [event for event in self.events if event["ph"] == "X" and event["pid"] == rank
                and event["tid"] in tracks]

    def outermost(self, rank):
        """Spans of computation that lie in none of their name: units and their components share some."""
        ends = {}
        for span in sorted(self.spans(rank, "compute"), key=lambda span: (span["ts"], -span["dur"])):
            if span["ts"] < ends.get(span["name"], 0):
                continue
            ends[span["name"]] = span["ts"] + span["dur"]
            yield span

    def test_says_what_it_wrote(self):
        self.assertEqual(self.result.code, 0, self.result.err)
        self.assertRegex(self.result.out, r"trace\.json: steps 2, 4 of stages/timing/start_0001: 2 ranks, \d+ events, "
                                          r"12 messages\n")
        self.assertIn("ui.perfetto.dev", self.result.out)
        self.assertNotIn("no room", self.result.out)

    def test_every_rank_computes_its_units(self):
        for rank, own in ((0, {"embedding", "blocks.0"}), (1, {"blocks.1", "head"})):
            names = collections.Counter(span["name"] for span in self.outermost(rank))
            self.assertEqual(names["forward"], 2 * 3)
            # The head computes the gradient of the loss while it goes forward.
            self.assertEqual(names["backward"], 2 * 3 * (1 + rank))
            for unit in own:
                self.assertEqual(names[unit], 2 * 2 * 3, unit)
            self.assertEqual({name for name in names if name.startswith("blocks")}, {f"blocks.{rank}"})

    def test_spans_of_computation_lie_inside_each_other(self):
        for rank in (0, 1):
            around = []
            for span in sorted(self.spans(rank, "compute"), key=lambda span: (span["ts"], -span["dur"])):
                end = span["ts"] + span["dur"]
                while around and around[-1] <= span["ts"] + 1e-6:
                    around.pop()
                if around:
                    self.assertLessEqual(end, around[-1] + 1e-6, span)
                around.append(end)

    def test_arrows_go_from_a_send_to_its_receive(self):
        starts = {event["id"]: event for event in self.events if event["ph"] == "s"}
        ends = {event["id"]: event for event in self.events if event["ph"] == "f"}

        self.assertEqual(len(starts), 12)
        self.assertEqual(set(starts), set(ends))
        for key, start in starts.items():
            self.assertNotEqual(start["pid"], ends[key]["pid"])
            self.assertLessEqual(start["ts"], ends[key]["ts"])
            for event in (start, ends[key]):
                around = [span for span in self.events if span["ph"] == "X" and span["pid"] == event["pid"]
                          and span["tid"] == event["tid"]
                          and span["ts"] <= event["ts"] <= span["ts"] + span["dur"]]
                self.assertTrue(around, event)

    def test_ranks_agree_on_when_all_came(self):
        """The world's sum ends on both ranks after both called it."""
        for step in (2, 4):
            sums = [next(span for span in self.spans(rank, "world") if span["args"]["step"] == step)
                    for rank in (0, 1)]
            latest = max(span["ts"] for span in sums)
            for span in sums:
                self.assertGreaterEqual(span["ts"] + span["dur"], latest)

    def test_a_start_that_was_killed_before_its_first_timing_is_passed_over(self):
        killed = self.folder / "stages/timing/start_0002"
        killed.mkdir()
        self.addCleanup(shutil.rmtree, killed)
        for rank in (0, 1):
            (killed / f"rank_{rank:05d}.h5").write_bytes(b"")

        result = self.run_program("trace", "stages", "--output", "again.json")

        self.assertEqual(result.code, 0, result.err)
        self.assertEqual(result.err.count("start_0002/rank_00000.h5 is empty: its start was killed"), 1, result.err)
        self.assertIn("of stages/timing/start_0001", result.out)

    def test_what_no_one_traced_is_refused(self):
        self.run_program("train", "deck.yaml", *support.overrides("run.directory=plain", "train.steps=1"))

        self.assert_refused(self.run_program("trace", "plain", "--output", "a.json"), 3,
                            "timing.trace_steps")
        self.assert_refused(self.run_program("trace", "nowhere", "--output", "a.json"), 2, "nowhere")
        self.assert_refused(self.run_program("trace", "stages"), 2, "output")
        self.assert_refused(self.run_program("trace", "stages", "--output", "text.txt/a.json"), 5, "text.txt/a.json")

    def test_lives_of_memory(self):
        for rank in (0, 1):
            found = support.h5(self.folder / f"stages/timing/start_0001/rank_{rank:05d}.h5")
            if found is None:
                self.skipTest("h5py is not installed")
            lives = {name: found[f"lives/{name}"]["values"] for name in ("step", "layer", "bytes", "start_seconds",
                                                                        "end_seconds")}
            self.assertEqual(set(lives["step"]), {2, 4})
            self.assertEqual(set(lives["layer"]), {-1, rank})
            self.assertTrue(all(value > 0 for value in lives["bytes"]))
            self.assertTrue(all(a <= b for a, b in zip(lives["start_seconds"], lives["end_seconds"])))
            self.assertEqual(found["groups/pipeline/ranks"]["values"], [0, 1])
            self.assertEqual(found["traced/clock_offset_seconds"]["values"], [0, 0])

    def test_metrics_for_tensorboard(self):
        files = list((self.folder / "stages/tensorboard").iterdir())
        self.assertEqual(len(files), 1)
        events = records(files[0].read_bytes())
        self.assertEqual(len(events), 2 + 4)
        self.assertIn(b"brain.Event:2", events[0])
        self.assertIn(b"tokens_per_second", events[2])
        self.assertIn(b"validation_loss", events[5])

    def test_tensorboard_reads_them(self):
        if importlib.util.find_spec("tensorboard") is None:
            self.skipTest("the package tensorboard is not installed")
        program = ("import sys, json\n"
                   "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
                   "board = EventAccumulator(sys.argv[1]); board.Reload()\n"
                   "print(json.dumps([[e.step, e.value] for e in board.Scalars('loss')]))\n")
        read = subprocess.run([sys.executable, "-c", program, str(self.folder / "stages/tensorboard")],
                              capture_output=True, check=True)
        lines = (self.folder / "stages/metrics.jsonl").read_text(encoding="utf-8").splitlines()
        expected = [(line["step"], line["loss"]) for line in map(json.loads, lines)]
        for (step, loss), (found_step, found_loss) in zip(expected, json.loads(read.stdout), strict=True):
            self.assertEqual(step, found_step)
            self.assertAlmostEqual(found_loss / loss, 1, places=6)


def joined(spans):
    """Intervals that do not touch each other, from (begin, end)."""
    found = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([begin, end])
    return found


def common(first, second):
    """The length that two lists of intervals share."""
    return sum(max(0, min(b, d) - max(a, c)) for a, b in first for c, d in second)


class Parts(support.Case):
    """Steps of two ranks along each axis, long enough that the work between their parts does not count."""

    LARGER = ("model.width=64", "train.steps=12", "train.microbatch=3", "model.context=64", "data.validation=[]",
              "train.validate_every=0", "checkpoint.every=0", "timing.trace_steps=[4,8]")
    PHASES = ("data_seconds", "forward_seconds", "backward_seconds", "optimizer_seconds", "reduce_exposed_seconds", "tensor_comm_seconds",
              "context_comm_seconds", "expert_comm_seconds", "pipeline_comm_seconds", "pipeline_idle_seconds", "wait_seconds", "checkpoint_seconds")

    def steps(self, axis):
        """The columns of both ranks of a run with two ranks along an axis."""
        result = self.run_program("train", "deck.yaml", *support.overrides(
            *self.LARGER, f"parallel.{axis}=2", f"run.directory={axis}"), ranks=2)
        self.assertEqual(result.code, 0, result.err)
        files = [support.h5(self.folder / f"{axis}/timing/start_0001/rank_{rank:05d}.h5") for rank in (0, 1)]
        if None in files:
            self.skipTest("h5py is not installed")
        return [{name.removeprefix("steps/"): node["values"] for name, node in file.items() if name.startswith("steps/")}
                for file in files]

    def test_phases_sum_to_the_step(self):
        for axis in ("data", "tensor", "pipeline", "context"):
            for rank, columns in enumerate(self.steps(axis)):
                exchanges = min(columns["context_comm_seconds"])
                self.assertEqual(exchanges > 0, axis == "context", axis)
                with self.subTest(axis=axis, rank=rank):
                    shares = [sum(columns[name][row] for name in self.PHASES) / seconds
                              for row, seconds in enumerate(columns["step_seconds"])]
                    # The system may stop a rank between two phases; that happens in few steps.
                    self.assertGreater(statistics.median(shares), 0.98)
                    self.assertLessEqual(max(shares), 1.001)

    def test_reductions_are_exposed_hidden_or_wait_for_the_other_rank(self):
        ranks = self.steps("data")
        self.run_program("trace", "data", "--output", "parts.json")
        events = json.loads((self.folder / "parts.json").read_text(encoding="utf-8"))["traceEvents"]
        tracks = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}

        def spans(rank, step, track, names):
            return joined((event["ts"], event["ts"] + event["dur"]) for event in events
                          if event["ph"] == "X" and event["pid"] == rank and event["args"].get("step") == step
                          and tracks[rank, event["tid"]] == track and event["name"] in names)

        for rank, columns in enumerate(ranks):
            for step in (4, 8):
                with self.subTest(rank=rank, step=step):
                    busy, exposed, wait = (1e6 * columns[f"{name}_seconds"][step - 1]
                                           for name in ("reduce_busy", "reduce_exposed", "wait"))
                    reductions = spans(rank, step, "data", {"all_reduce"})
                    self.assertAlmostEqual(sum(end - begin for begin, end in reductions) / busy, 1, places=4)
                    hidden = common(reductions, spans(rank, step, "compute", {"forward", "backward", "optimizer"}))
                    self.assertGreater(exposed + hidden, 0)
                    # What is neither is the other rank's lateness.
                    self.assertGreaterEqual(busy - exposed - hidden, -0.02 * busy)
                    self.assertLessEqual(busy - exposed - hidden, wait + 0.02 * busy)


class Bench(support.Case):
    """Timelines of memory and ops of the CPU."""

    def bench(self, *arguments, code=0):
        """The program's output."""
        result = self.run_program("bench", "deck.yaml", "--warmup", 1, "--steps", 3, *arguments)
        self.assertEqual(result.code, code, result.err)
        return result

    def timeline(self, mode):
        """The timeline of a mode."""
        self.bench("--mode", mode, "--memory-timeline", f"{mode}.json")
        return json.loads((self.folder / f"{mode}.json").read_text(encoding="utf-8"))

    @staticmethod
    def peak(rank, category=None):
        """Most bytes in use at a time."""
        changes = collections.Counter()
        for life in rank["lives"]:
            if category in (None, life["category"]):
                changes[life["start_seconds"]] += life["bytes"]
                changes[life["end_seconds"]] -= life["bytes"]
        now = most = 0
        for _, change in sorted(changes.items()):
            now += change
            most = max(most, now)
        return most

    def test_the_peak_is_what_the_arenas_hold(self):
        step = self.timeline("step")
        rank = step["timelines"][0]

        self.assertEqual((step["format"], step["mode"], step["context"]), ("hyperslab memory timeline", "step", 32))
        for category, held in rank["held_bytes"].items():
            self.assertEqual(self.peak(rank, category), held, category)
        self.assertEqual(self.peak(rank), sum(rank["held_bytes"].values()))
        self.assertEqual(rank["residual_stream_bytes"], 12 * 32 * 32 * 4)
        self.assertEqual([span["name"] for span in rank["spans"]], ["forward", "backward", "optimizer"])

    def test_forward_alone_needs_no_gradients(self):
        forward = self.timeline("forward")["timelines"][0]

        self.assertEqual(forward["held_bytes"]["gradients"], 0)
        self.assertEqual({life["category"] for life in forward["lives"]}, {"parameters", "activations", "workspace"})
        self.assertEqual({span["name"] for span in forward["spans"]}, {"forward"})

    def test_ops_of_the_cpu(self):
        out = self.bench("--kernels", "--json", "kernels.json").out
        figures = json.loads((self.folder / "kernels.json").read_text(encoding="utf-8"))
        rows = {row["name"]: row for row in figures["kernels"]["rows"]}

        self.assertIn("minimum us", out)
        # The matrix product that measures the machine's rate between steps is none of theirs.
        self.assertLessEqual(sum(row["seconds"] for row in rows.values()), sum(figures["step_seconds"]))
        self.assertEqual(rows["adamw"]["class"], "optimizer")
        self.assertEqual(rows["linear_forward"]["class"], "matmul")
        self.assertEqual(rows["attention_forward"]["calls"], 2 * 3)
        self.assertEqual(rows["attention_forward"]["phases"].keys(), {"forward"})
        for row in rows.values():
            call = row["call"]
            self.assertLessEqual(call["minimum_seconds"], call["median_seconds"])
            self.assertLessEqual(call["median_seconds"], call["maximum_seconds"])
            self.assertLessEqual(call["maximum_seconds"], row["seconds"] * (1 + 1e-9))
            self.assertLessEqual(row["calls"] * call["minimum_seconds"], row["seconds"] * (1 + 1e-9))

    def test_the_file_must_be_json(self):
        self.assert_refused(self.run_program("bench", "deck.yaml", "--memory-timeline", "a.csv"), 2,
                            "--memory-timeline", ".json")


if __name__ == "__main__":
    support.main()
