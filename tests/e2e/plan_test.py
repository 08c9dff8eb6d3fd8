#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""plan: layout, schedule and memory of a run that is not started."""

import json
import pathlib
import re

import support

GIB = 2.0**30
LLAMA_8B = pathlib.Path(__file__).resolve().parents[2] / "inputs" / "llama-8b.yaml"
TABLE = 128256 * 4096
NORM = 4096
# Query and output, key and value of 8 of 32 heads, gate, up and down.
MATRICES = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336
LAYER = MATRICES + 2 * NORM
ROTATIONS = 2 * 4 * 4096 * 64  # cosines and sines in bytes, which every rank holds


def rows(out, title):
    """The numbers of a table by their rows' names."""
    found = {}
    for line in out[re.search(rf"(?m)^{title} ", out).start():].splitlines()[1:]:
        row = re.fullmatch(r"(\S+ \S+) +([\d. ]+)", line)
        if row is None:
            break
        found[row[1]] = [float(value) for value in row[2].split()]
    return found


class Plan(support.Case):
    """The tiny deck on ranks that are not there."""

    def plan(self, *settings, options=()):
        """What was printed."""
        result = self.run_program("plan", "deck.yaml", *options, *support.overrides(*settings))
        self.assertEqual((result.code, result.err), (0, ""))
        return result.out

    def test_layout_and_memory(self):
        before = support.snapshot(self.folder)

        out = self.plan("parallel.data=3", "train.microbatch=2", options=("--ranks", 3))

        self.assertEqual(support.snapshot(self.folder), before)
        self.assertRegex(out, r"(?m)^layout +data 3 x tensor 1 x pipeline 1, 3 ranks$")
        self.assertRegex(out, r"(?m)^step +12 samples: 2 microbatches on each data rank")
        row = re.search(r"(?m)^pipeline 0 +([\d. ]+)$", out)[1].split()
        values = [float(value) for value in row]
        self.assertAlmostEqual(sum(values[:-1]), values[-1], delta=0.05 * len(values))
        dry = self.run_program("train", "deck.yaml", "--dry-run",
                               *support.overrides("parallel.data=3", "train.microbatch=2"))
        self.assertIn(f"memory of a rank      {row[-1]} MiB", dry.out)

    def test_movements_of_fp8_values(self):
        def movements(*settings, ranks):
            return self.plan("precision.gemm=fp8_tensor", "precision.compute=bf16", "precision.fp8_min_width=32",
                             *settings, options=("--ranks", ranks, "--movements"))

        kept = movements("precision.fp8_cache_weights=true", "train.microbatch=6", ranks=1)
        self.assertEqual(len(re.findall(r"FP8 matrices of .*, once a step, .*\n    encode, \d+ bytes\n", kept)), 2)
        sent = movements("precision.fp8_param_gather=true", "parallel.data=2", "parallel.zero=1", ranks=2)
        steps = r"agree_scales over fold, \d+ bytes\n    encode, (\d+) bytes\n    all_gather over fold, (\d+) bytes\n"
        rounded, gathered = map(int, re.search(steps, sent).groups())
        self.assertEqual(gathered, 2 * rounded)

    def test_forward_alone(self):
        step = self.plan("parallel.pipeline=2", options=("--ranks", 2))
        forward = self.plan("parallel.pipeline=2", options=("--ranks", 2, "--mode", "forward"))

        def memory(out):
            """MiB of the first stage, by what holds them."""
            names = out[out.index("MiB "):].split("\n")[0].split()[1:]
            return dict(zip(names, rows(out, "MiB")["pipeline 0"]))

        whole, part = memory(step), memory(forward)
        self.assertEqual((part["gradients"], part["optimizer"]), (0, 0))
        self.assertLess(part["total"], whole["total"])
        self.assertEqual(part["parameters"], whole["parameters"])
        flops = [float(re.search(r"(?m)^model +([\d.]+) GFLOP a (step|forward pass) ", out)[1])
                 for out in (step, forward)]
        self.assertAlmostEqual(flops[0] / flops[1], 3, delta=0.4)
        for out in (step, forward):
            self.assertRegex(out, r"(?m)^stream +12 x 32 x 32 f32 at each place between two layers: 0\.047 MiB$")
        self.assert_refused(self.run_program("plan", "deck.yaml", "--mode", "backward"), 2, "--mode",
                            "step or forward")

    def test_schedule(self):
        out = self.plan("train.microbatch=4", "parallel.schedule=gpipe", options=("--schedule",))

        self.assertRegex(out, r"(?m)^schedule +gpipe, 1 stages x 1 chunks, 3 microbatches$")
        self.assertRegex(out, r"(?m)^idle +0\.00 % of the busy time in theory, 0\.00 % simulated$")
        self.assertRegex(out, r"(?m)^slots +3 ")
        self.assertIn("rank 0 F0 F1 F2 B0 =  B1 =  B2 =\n", out)

    def test_pipeline(self):
        out = self.plan("parallel.pipeline=4", "train.microbatch=1", options=("--schedule", "--ranks", 4))

        self.assertRegex(out, r"(?m)^layout +data 1 x tensor 1 x pipeline 4, 4 ranks$")
        self.assertRegex(out, r"(?m)^schedule +1f1b, 4 stages x 1 chunks, 12 microbatches$")
        self.assertRegex(out, r"(?m)^idle +25\.00 % of the busy time in theory, 25\.00 % simulated$")
        self.assertRegex(out, r"(?m)^slots +4 3 2 1 ")
        self.assertEqual(list(rows(out, "MiB")), [f"pipeline {rank}" for rank in range(4)] + ["all ranks"])
        for rank in range(4):
            self.assertRegex(out, rf"(?m)^rank {rank} [F0-9 .]")

    def test_chunks(self):
        out = self.plan("parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.virtual_stages=2",
                        "train.microbatch=3", options=("--schedule",))

        self.assertRegex(out, r"(?m)^schedule +interleaved, 2 stages x 2 chunks, 4 microbatches$")
        self.assertRegex(out, r"(?m)^idle +12\.50 % of the busy time in theory, 12\.50 % simulated$")
        self.assertRegex(out, r"(?m)^slots +\d\+\d \d\+\d ")
        self.assertIn("F0a", out)
        self.assertIn("B3b", out)

    def test_sharding_and_recomputation_take_less(self):
        def row(*settings):
            out = self.plan("model.width=256", *settings)
            return [float(value) for value in re.search(r"(?m)^pipeline 0 +([\d. ]+)$", out)[1].split()]

        whole = row("parallel.data=4", "train.microbatch=1")
        state = row("parallel.data=4", "train.microbatch=1", "parallel.zero=1")
        again = row("parallel.data=4", "train.microbatch=1", "memory.recompute=full")
        split = row("parallel.tensor=2")

        self.assertAlmostEqual(state[2], whole[2] / 4, delta=0.1)
        self.assertEqual(state[:2], whole[:2])
        self.assertLess(again[3], whole[3] / 2)
        self.assertLess(split[0], 0.6 * whole[0])

    def test_tables_of_all_ranks(self):
        out = self.plan("parallel.pipeline=2", "parallel.data=3", "train.microbatch=2")

        memory = rows(out, "MiB")
        for column in range(7):
            held = memory["pipeline 0"][column] + memory["pipeline 1"][column]
            self.assertAlmostEqual(memory["all ranks"][column], 3 * held, delta=0.4)
        largest = max(("pipeline 0", "pipeline 1"), key=lambda name: memory[name][-1])
        self.assertRegex(out, rf"(?m)^largest +{largest}: {memory[largest][-1]} MiB on each of its 3 ranks$")
        self.assertEqual(list(rows(out, "a step")), ["pipeline 0", "pipeline 1"])

    def plan_8b(self, *settings):
        """Tables of the 8 billion parameters on 8 GPUs, whatever this machine has."""
        before = support.snapshot(self.folder)
        result = self.run_program("plan", LLAMA_8B, "--ranks", 8, "--device", "cuda",
                                  *support.overrides(*settings))
        self.assertEqual((result.code, result.err), (0, ""))
        self.assertEqual(support.snapshot(self.folder), before)
        self.assertRegex(result.out, r"(?m)^device +cuda, bf16$")
        # 6 for every weight of a GEMM, 6 L C T for causal attention; 2^20 tokens.
        flops = 2**20 * (6 * (32 * MATRICES + TABLE) + 6 * 32 * 4096 * 4096)
        self.assertIn(f"{flops / 1e15:.3f} PFLOP a step with causal attention", result.out)
        self.assertIn(f"{flops / 8e15:.3f} PFLOP a rank", result.out)
        return rows(result.out, "GiB"), rows(result.out, "a step")

    def expect_state(self, row, elements, state, gradients=None):
        """bf16 values of `elements` with f32 masters and two moments of `state` of them."""
        decay = state / 32 * 4
        values = [2 * elements + 4 * state + ROTATIONS,
                  4 * elements if gradients is None else gradients, 8 * state + decay]
        for found, expected in zip(row, values):
            self.assertAlmostEqual(found, expected / GIB, delta=0.001)

    def test_tensor_ranks(self):
        memory, work = self.plan_8b("parallel.tensor=8")

        # Norms are whole on every rank, 16032 rows of a table fill up to 16128.
        elements = 2 * 16128 * 4096 + 32 * (MATRICES / 8 + 2 * NORM) + NORM
        self.expect_state(memory["pipeline 0"], elements, elements)
        self.assertAlmostEqual(memory["all ranks"][-1], 8 * memory["pipeline 0"][-1], delta=0.005)
        # Two sums in each pass of a layer, one of the embedding, one of the head's input gradient;
        # and four numbers of every row for the loss.
        stream = 2 * 2 * 4096 * 4096
        sent = 128 * 7 / 8 * (2 * stream * (4 * 32 + 2) + 8 * 2 * 4096 * 16)
        self.assertAlmostEqual(work["pipeline 0"][1], sent / GIB, delta=0.001)

    def test_pipeline_and_data_ranks(self):
        memory, work = self.plan_8b("parallel.pipeline=4", "parallel.data=2", "parallel.zero=1",
                                    "parallel.stage_layers=[8,9,9,6]")

        elements = [TABLE + 8 * LAYER, 9 * LAYER, 9 * LAYER, 6 * LAYER + NORM + TABLE]
        message = 2 * 2 * 4096 * 4096
        for stage, held in enumerate(elements):
            row = work[f"pipeline {stage}"]
            self.expect_state(memory[f"pipeline {stage}"], held, held / 2)
            # f32 gradients to their owners, bf16 values back, each half of them.
            self.assertAlmostEqual(row[1], (4 + 2) * held / 2 / GIB, delta=0.001)
            self.assertAlmostEqual(row[2], 64 * (1 if stage in (0, 3) else 2) * message / GIB, delta=0.001)
        self.assertAlmostEqual(sum(elements), 8.03e9, delta=1e6)

    def test_sharded_gradients(self):
        memory, work = self.plan_8b("parallel.data=8", "parallel.zero=2")

        elements = 2 * TABLE + 32 * LAYER + NORM
        buckets = 2 * 4 * (TABLE + NORM)  # the two largest at a time: the head's
        self.expect_state(memory["pipeline 0"], elements, elements / 8, 4 * elements / 8 + buckets)
        # A reduce-scatter in each of 16 microbatches, an all-gather of values a step.
        self.assertAlmostEqual(work["pipeline 0"][1], 7 / 8 * (16 * 4 + 2) * elements / GIB, delta=0.001)

    def test_device(self):
        none = self.run_program("plan", "deck.yaml", "--device", "gpu")
        here = self.run_program("plan", LLAMA_8B, "--device", "cpu", "--set", "precision.compute=fp16")

        self.assert_refused(none, 2, "--device is gpu, expected cpu or cuda")
        self.assert_refused(here, 2, "precision.compute", "fp16 needs a GPU")
        self.assertRegex(self.plan("run.device=cpu", options=("--device", "cuda")), r"(?m)^device +cuda, fp32$")
        self.assertRegex(self.plan("run.device=cuda", options=("--device", "cpu")), r"(?m)^device +cpu, fp32$")

    def test_a_deck_for_gpus_is_planned_for_one(self):
        start = ("plan", LLAMA_8B, "--ranks", 8, *support.overrides("parallel.data=8", "precision.compute=fp16"))
        auto = self.run_program(*start)
        cuda = self.run_program(*start, "--device", "cuda")

        self.assertEqual((auto.code, auto.err), (0, ""))
        note, _, rest = auto.out.partition("\n")
        if note.startswith("layout"):
            self.skipTest("there is a GPU")
        self.assertEqual(note, "planned for cuda, since fp16 needs a GPU; there is no GPU here")
        self.assertEqual(rest, cuda.out)
        named = self.plan("run.device=cuda")
        self.assertTrue(named.startswith("planned for cuda, since run.device is cuda; "))
        on_cpu = support.overrides("run.device=cpu", "precision.compute=fp16")
        self.assert_refused(self.run_program("plan", LLAMA_8B, *on_cpu), 2, "fp16 needs a GPU")
        wrong = self.run_program("plan", LLAMA_8B, *support.overrides("model.heads=7", "precision.compute=fp16"))
        self.assert_refused(wrong, 2, "7 heads do not divide width 4096")
        self.assertNotIn("fp16", wrong.err)
        ranks = self.run_program("plan", LLAMA_8B, "--ranks", 3, "--set", "precision.compute=fp16")
        self.assert_refused(ranks, 2, "--ranks is 3")
        self.assertNotIn("fp16", ranks.err)
        both = self.run_program("plan", LLAMA_8B, "--ranks", 3, *on_cpu)
        self.assert_refused(both, 2, "--ranks is 3", "fp16 needs a GPU")

    def test_a_deck_in_bf16_is_planned_for_the_gpus_that_it_will_run_on(self):
        start = ("plan", LLAMA_8B, "--ranks", 8, "--set", "parallel.data=8")
        open_device = self.run_program(*start)
        cuda = self.run_program(*start, "--device", "cuda")
        cpu = self.run_program(*start, "--device", "cpu")
        named = self.run_program(*start, "--set", "run.device=cpu")

        note, _, rest = open_device.out.partition("\n")
        if note.startswith("layout"):
            self.skipTest("there is a GPU")
        self.assertEqual(note, "planned for cuda, as the deck computes in bf16; there is no GPU here: "
                               "--device cpu plans CPU ranks")
        self.assertEqual(rest, cuda.out)
        self.assertRegex(cpu.out, r"(?m)^device +cpu, bf16$")
        # A host with too little memory has a little more of it, or less, at another time.
        self.assertEqual(*(re.sub(r"(?m)^warning: .*\n", "", result.out) for result in (named, cpu)))
        dry = self.run_program("train", "deck.yaml", "--dry-run", *support.overrides("run.device=auto", "precision.compute=bf16"))
        self.assertTrue(dry.out.startswith("parameters"), dry.out)

    def test_a_host_that_has_too_little_memory_for_all_ranks(self):
        large = ("model.width=65536", "model.layers=96", "parallel.data=2")

        out = self.plan(*large, options=("--ranks", 2))

        self.assertRegex(out, r"(?m)^warning: does not fit, if all ranks are on this host: 2 ranks (?:on host \S+|in control "
                              r"group \S+ of host \S+) need [\d.]+ TiB together, and [\d.]+ [GT]iB are free; the fullest needs "
                              r"[\d.]+ TiB in all, most of it for \w+ .*; what would help: .*fewer data ranks on a host")
        start = self.run_program("train", "deck.yaml", *support.overrides(*large), ranks=2)
        self.assert_refused(start, 6, "out of memory: 2 ranks ", " need ", " together, and ", "what would help: ")
        self.assertNotIn("warning", self.plan(*large, options=("--ranks", 2, "--device", "cuda")))

    def test_what_was_cut_is_said(self):
        cut = "to fit --set: timing.trace_steps cut to the 1 up to step 5\n"
        (self.folder / "traced.yaml").write_text(support.DECK + "timing: {trace_steps: [3, 20]}\n", encoding="utf-8")
        for command in (("plan", "traced.yaml"), ("train", "traced.yaml", "--dry-run")):
            result = self.run_program(*command, "--set", "train.steps=5")
            self.assertEqual((result.code, result.err), (0, cut))

    def test_what_a_plan_does_not_need(self):
        out = self.plan()

        self.assertEqual(self.plan("data.train=[]", "data.validation=[]", "train.steps=0", "model.vocabulary=257",
                                   "data.vocabulary=nowhere", "schedule.warmup_steps=99", "checkpoint.keep_every=7"),
                         out)

    def test_refusals(self):
        other = self.run_program("plan", "deck.yaml", "--ranks", 4)
        none = self.run_program("plan", "deck.yaml", "--ranks", 0)

        self.assert_refused(other, 2, "parallel.data", "--ranks is 4; set it to 1 or set parallel.data to 4")
        self.assertNotIn("started", other.err)
        self.assert_refused(none, 2, "--ranks is 0")


class SearchForMemory(support.Case):
    """Decks that fit into a GPU by what the search finds alone."""

    SECTIONS = {"memory": ("recompute", "recompute_layers", "mlp_rows", "loss_rows", "resident_gib"), "train": ("microbatch",)}

    def machine(self, gib):
        """A file of the H200 with other memory."""
        machine = json.loads((LLAMA_8B.parent / "machines" / "h200.json").read_text(encoding="utf-8"))
        machine["memory_bytes"] = gib * GIB
        (self.folder / "gpu.json").write_text(json.dumps(machine), encoding="utf-8")
        return "gpu.json"

    def plan(self, *settings, options=()):
        result = self.run_program("plan", LLAMA_8B, "--ranks", 1, "--device", "cuda", *options, *support.overrides(*settings))
        self.assertEqual((result.code, result.err), (0, ""))
        return result.out

    def settings(self, words):
        """Overrides of what a row of the search says."""
        found = []
        for word in words.split():
            key = word.split("=")[0]
            section = next((name for name, keys in self.SECTIONS.items() if key in keys), "parallel")
            found.append(word if "." in key else f"{section}.{word}")
        return found

    def fastest(self, machine, *settings):
        """The overrides of the first row."""
        out = self.plan(*settings, options=("--machine", machine, "--search"))
        row = re.search(r"(?m)^ +[\d.]+ +\d+ +[\d.]+ (?: +[\d.]+  )? *(data=.*)$", out)
        self.assertIsNotNone(row, out)
        return self.settings(row[1])

    def test_state_on_the_host_where_nothing_fits_without(self):
        small = ("train.global_batch=8",)
        machine = self.machine(120)
        least = (*small, "train.microbatch=1", "memory.recompute=full", "memory.mlp_rows=256", "memory.loss_rows=1024")
        self.assertIn("warning: does not fit", self.plan(*least, options=("--machine", machine)))

        found = self.fastest(machine, *small)

        self.assertIn("memory.optimizer=host", found)
        self.assertTrue(any(word.startswith("memory.resident_gib=") for word in found), found)
        out = self.plan(*small, *found, options=("--machine", machine))
        self.assertNotIn("warning", out)
        self.assertRegex(out, r"(?m)^on the host ")

    def test_some_blocks_keep_their_activations(self):
        small = ("model.layers=8", "train.global_batch=8", "model.context=32768")
        machine = self.machine(70)
        whole = self.plan(*small, "train.microbatch=1", options=("--machine", machine))
        self.assertIn("warning: does not fit", whole)

        found = self.fastest(machine, *small)

        layers = [int(word.split("=")[1]) for word in found if word.startswith("memory.recompute_layers=")]
        self.assertEqual(len(layers), 1, found)
        self.assertNotIn("warning", self.plan(*small, *found, options=("--machine", machine)))
        fewer = [f"memory.recompute_layers={layers[0] - 1}" if "recompute_layers" in word else word for word in found]
        self.assertGreater(layers[0], 1)
        bytes_of = {}
        for name, settings in (("found", found), ("fewer", fewer)):
            self.plan(*small, *settings, options=("--machine", machine, "--json", "plan.json"))
            bytes_of[name] = json.loads((self.folder / "plan.json").read_text(encoding="utf-8"))["memory_bytes"]
        # The search leaves 3 GiB to libraries.
        self.assertLessEqual(bytes_of["found"], 67 * GIB)
        self.assertGreater(bytes_of["fewer"], 67 * GIB)


class Machine(support.Case):
    """Times of the tiny deck, from what bench measured of this machine."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        one = cls.run_program("bench", "deck.yaml", "--warmup", 1, "--steps", 2, "--machine", "machine.json")
        two = cls.run_program("bench", "deck.yaml", "--set", "parallel.data=2", "--machine", "machine.json", ranks=2)
        if one.code != 0 or two.code != 0:
            raise RuntimeError(one.err + two.err)
        cls.measured = one.out, two.out

    def plan(self, *settings, options=()):
        result = self.run_program("plan", "deck.yaml", "--machine", "machine.json", *options,
                                  *support.overrides(*settings))
        self.assertEqual((result.code, result.err), (0, ""))
        return result.out

    def test_one_rank_measures_ops_and_two_collectives(self):
        machine = json.loads((self.folder / "machine.json").read_text(encoding="utf-8"))

        ops = {row[0] for row in machine["ops"]["fp32"]}
        self.assertLessEqual({"linear_forward", "linear_backward_weight", "attention_backward", "adamw"}, ops)
        self.assertRegex(self.measured[0], r"machine\.json: \d+ op sizes and 0 collectives of ")
        calls = {(row[0], row[1], row[2]) for row in machine["collectives"]}
        self.assertLessEqual({("data", "all_reduce", 2), ("data", "all_gather", 2), ("tensor", "reduce_scatter", 2),
                              ("pipeline", "send", 2)}, calls)
        self.assertEqual(len(machine["sources"]), 2)
        self.assertGreater(machine["storage_bytes_per_second"], 0)

    def test_time_of_a_step(self):
        out = self.plan("parallel.data=2", options=("--ranks", 2, "--json", "plan.json"))

        found = json.loads((self.folder / "plan.json").read_text(encoding="utf-8"))
        shown = self.run_program("train", "deck.yaml", "--dry-run").out
        self.assertEqual(found["matmul_parameters"], int(re.search(r"(?m)^in matrix products +(\d+)$", shown)[1]))
        line = re.search(r"(?m)^on .*: ([\d.]+) ms a step, (\d+) tokens/s, (\d+) on each rank, "
                         r"utilization ([\d.]+) % of ([\d.]+) GFLOP/s, the fastest product that was measured, counting of "
                         r"attention what its mask leaves$", out)
        machine = json.loads((self.folder / "machine.json").read_text(encoding="utf-8"))
        fastest = max(row[2] / row[4] for row in machine["ops"]["fp32"])
        self.assertAlmostEqual(float(line[5]), 1e-9 * fastest, delta=0.06)
        self.assertAlmostEqual(float(line[4]), 100 * found["mfu"], delta=0.06)
        self.assertAlmostEqual(float(line[1]), 1e3 * found["step_seconds"], delta=0.01)
        self.assertAlmostEqual(float(line[2]), 12 * 32 / found["step_seconds"], delta=1)
        self.assertGreater(found["memory_bytes"], 0)
        self.assertEqual(found["host_memory_bytes"], 0)
        # 6 for every weight of a matrix product, of which layers of norms have none, and attention.
        self.assertGreater(found["flops"], 6 * 6 * 32 * 2 * 12 * 32**2)
        self.assertGreater(found["bytes"], 4 * 49376)
        rank = found["pipeline_ranks"][0]
        parts = rank["compute_seconds"] + sum(rank["exposed_seconds"].values())
        self.assertLessEqual(parts, found["step_seconds"] * (1 + 1e-6))
        self.assertGreater(rank["communication_seconds"]["data"], 0)

    def test_documents_that_training_refuses(self):
        for settings, key in ((("data.documents=masked",), "data.documents"),
                              (("data.end_token=10", "data.packing=best_fit"), "data.packing")):
            with self.subTest(settings):
                options = [word for setting in settings for word in ("--set", setting)]
                result = self.run_program("plan", "deck.yaml", "--ranks", 1, *options)
                self.assertEqual(result.code, 2)
                self.assertIn(key, result.err)

    def test_documents_shorten_attention(self):
        masked = ("data.documents=masked", "data.end_token=10", "model.context=128")  # documents of a line
        planned = {}
        for name, settings in (("joined", masked[2:]), ("masked", masked), ("unknown", (*masked, "data.train=[nowhere.bin]"))):
            out = self.plan(*settings, options=("--json", "plan.json"))
            planned[name] = (out, json.loads((self.folder / "plan.json").read_text(encoding="utf-8")))

        share = planned["masked"][1]["document_key_share"]
        self.assertRegex(planned["masked"][0],
                         rf"(?m)^documents +tokens see {100 * share:.1f} % of the keys of samples of one document, by \d+ samples$")
        self.assertLess(share, 0.5)
        # Attention has 7 GEMMs over pairs of which the causal half is computed, in 2 layers of width 32.
        attention = 7 * 2 * 0.5 * 12 * 2 * 32 * 128**2
        self.assertAlmostEqual(planned["joined"][1]["flops"] - planned["masked"][1]["flops"], (1 - share) * attention,
                               delta=1e-3 * attention)
        self.assertLess(planned["masked"][1]["step_seconds"], planned["joined"][1]["step_seconds"])
        # As runs count them, of one batch and not of all samples.
        once = ("train.steps=1", "train.validate_every=0", "data.validation=[]", "checkpoint.every=0", "checkpoint.final=false",
                "schedule.warmup_steps=0")
        counted = {}
        for name, settings in (("joined", masked[2:]), ("masked", masked)):
            self.train(name, *settings, *once)
            [line] = support.metrics(self.folder / name)
            counted[name] = line["mfu"] / line["mfu_full"]
        model_flops = {name: found["mfu"] * found["step_seconds"] for name, (_, found) in planned.items()}
        self.assertAlmostEqual(model_flops["masked"] / model_flops["joined"], counted["masked"] / counted["joined"], delta=2e-3)
        self.assertRegex(planned["unknown"][0],
                         r"(?m)^documents +not known, samples are taken to be of one document: .*nowhere\.bin")
        self.assertEqual(planned["unknown"][1]["flops"], planned["joined"][1]["flops"])
        self.assertNotIn("documents ", planned["joined"][0])

    def test_doubts(self):
        machine = json.loads((self.folder / "machine.json").read_text(encoding="utf-8"))
        machine["memory_bytes"] = 1024
        machine["device"] = "cuda"
        (self.folder / "other.json").write_text(json.dumps(machine), encoding="utf-8")

        out = self.run_program("plan", "deck.yaml", "--machine", "other.json").out

        self.assertRegex(out, r"warning: the machine file is of .*, and this plan is for the device cpu; see --device")
        self.assertRegex(out, r"warning: does not fit: the fullest rank needs [\d.]+ MiB, most of it for \w+ .*; "
                              r"one of .* has 0\.0 MiB; "
                              r"what would help: .*optimizer\.state: bf16 \(saves [\d.]+ MiB\).* or a smaller model\.context")
        self.assertNotIn("warning", self.plan())

    def test_search(self):
        out = self.plan(options=("--ranks", 4, "--search"))

        self.assertRegex(out, r"\d+ layouts tried, \d+ are legal and fit")
        self.assertRegex(out, r"(?m)^ +[\d.]+ +\d+ +[\d.]+  data=\d tensor=\d pipeline=\d")
        times = [float(value) for value in re.findall(r"(?m)^ +([\d.]+) +\d+ +[\d.]+  data=", out)]
        self.assertEqual(times, sorted(times))
        self.assertIn("left out\n", out)
        tried, legal = map(int, re.search(r"(\d+) layouts tried, (\d+) are legal", out).groups())
        counts = re.findall(r"(?m)^ +(\d+)  ", out[out.index("left out\n"):])
        self.assertEqual(legal + sum(map(int, counts)), tried)

    def test_movements(self):
        def movements(*settings, ranks=2):
            out = self.plan(*settings, options=("--ranks", ranks, "--movements"))
            return out[out.index("movements of a step"):]

        self.assertIn("none: every rank has what its layers use", movements(ranks=1))
        summed = movements("parallel.data=2")
        self.assertRegex(summed, r"gradients of .*, once a step, starts after backward of its units, ")
        self.assertRegex(summed, r"(?m)^    all_reduce over fold, \d+ bytes$")
        self.assertNotIn("values of", summed)
        kept = movements("parallel.data=2", "parallel.zero=1")
        self.assertRegex(kept, r"values of .*, once a step, starts after its update, behind forward of the units before it\n"
                               r"    all_gather over fold, \d+ bytes")
        self.assertIn("    reduce_scatter over fold, ", kept)
        self.assertIn("starts one bucket ahead of forward and backward, behind the bucket before it",
                      movements("parallel.data=2", "parallel.zero=3"))
        # Each of two microbatches widens the matrices of both blocks in its forward and its backward pass.
        frozen = movements("adapter.rank=2", "model.frozen_format=int8", "train.microbatch=6", ranks=1)
        f32_bytes = 4 * (4 * 32**2 + 3 * 32 * 128)
        self.assertEqual(len(re.findall(rf"dequantized .*, 4 times a step, .*\n    decode, {f32_bytes} bytes\n", frozen)), 2)
        # Output and down projections are cut along their rows, 32 of each.
        fake = movements("quantization.weights=int8", "parallel.tensor=2")
        self.assertIn(f"    agree_scales over tensor, {4 * 2 * 32} bytes\n    decode, {f32_bytes // 2} bytes\n", fake)
        hybrid = movements("parallel.data=4", "parallel.zero=1", "parallel.shard=2", ranks=4)
        self.assertRegex(hybrid, r"reduce_scatter over fold, (\d+) bytes\n    all_reduce over replica, ")

        on_host = movements("memory.optimizer=host", ranks=1)
        self.assertRegex(on_host, r"state of .*, once a step, starts around its update, nothing hides it\n"
                                  r"    to_device, (\d+) bytes\n    to_host, \1 bytes\n")
        held = self.plan("memory.optimizer=host", options=("--ranks", 1))
        self.assertRegex(held, r"(?m)^on the host   [\d.]+ \w+ at most for each rank: masters and optimizer state$")
        # A model of one chunk that stays moves nothing.
        self.assertNotIn("state of", movements("memory.optimizer=host", "memory.resident_gib=1", ranks=1))

    def test_how_often_to_save(self):
        out = self.plan("parallel.data=4", options=("--ranks", 4, "--mtbf-hours", 40, "--save-seconds", 50))

        # A failure every 10 h: Young's interval is sqrt(2 x 50 x 36000) = 1897 s.
        line = re.search(r"a save of 50\.0 s and a failure every 10\.0 h of the whole run: save every ([\d.]+) min", out)
        self.assertAlmostEqual(60 * float(line[1]), 1897, delta=0.03 * 1897)
        # A thousandth of the time to save: its root of the interval, 60 s.
        out = self.plan("parallel.data=4", options=("--ranks", 4, "--mtbf-hours", 40, "--save-seconds", 0.05))
        self.assertRegex(out, r"a save of 50\.0 ms and a failure every 10\.0 h of the whole run: save every (59\.\d|60\.0) s")

    def test_refusals(self):
        (self.folder / "damaged.json").write_text("{", encoding="utf-8")
        for words, options in ((("damaged.json is no machine file", "bench DECK --machine"), ("--machine", "damaged.json")),
                               (("nowhere.json",), ("--machine", "nowhere.json")),
                               (("--search goes with --machine",), ("--search",)),
                               (("--mtbf-hours goes with --machine",), ("--mtbf-hours", 3)),
                               (("--json does not go with --search",),
                                ("--machine", "machine.json", "--search", "--json", "plan.json")),
                               (("--mtbf-hours must be above 0",), ("--machine", "machine.json", "--mtbf-hours", 0))):
            with self.subTest(options=options):
                result = self.run_program("plan", "deck.yaml", *options)
                self.assertNotEqual(result.code, 0)
                for word in words:
                    self.assertIn(word, result.err)


if __name__ == "__main__":
    support.main()
