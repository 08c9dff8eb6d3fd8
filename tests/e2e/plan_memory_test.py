#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory that `plan` predicts beside the peak that a run of the same deck records, on the fullest rank."""

import json
import unittest

import support

WITHIN = 0.02
TRAINED = ("train.steps=2", "train.validate_every=0", "data.validation=[]", "checkpoint.every=0", "checkpoint.final=false",
           "schedule.warmup_steps=1", "model.layers=4", "model.width=64", "model.heads=4")
# A base of this shape, with its parameters as they are or quantized.
ADAPTED = ("adapter.rank=4", "checkpoint.initial=base/checkpoints")
# Name -> ranks and settings.
POINTS = {
    "one rank": (1, ()),
    "microbatches": (1, ("train.microbatch=3",)),
    "gpt2": (1, ("model.family=gpt2",)),
    "bf16": (1, ("precision.compute=bf16",)),
    "8-bit products by blocks": (1, ("precision.gemm=fp8_block", "precision.fp8_min_width=64")),
    "8-bit products by blocks, rows that are filled up": (1, ("precision.gemm=fp8_block", "precision.fp8_min_width=64",
                                                              "precision.compute=bf16", "train.microbatch=3",
                                                              "model.context=31")),
    "8-bit weights that are kept": (1, ("precision.gemm=fp8_tensor", "precision.fp8_min_width=64",
                                        "precision.fp8_cache_weights=true", "train.microbatch=3")),
    "selective recomputation": (1, ("memory.recompute=selective",)),
    "full recomputation": (1, ("memory.recompute=full",)),
    "pieces": (1, ("memory.recompute=full", "memory.mlp_rows=24", "memory.loss_rows=20")),
    "muon": (1, ("optimizer.name=muon",)),
    "muon, data 2": (2, ("optimizer.name=muon", "parallel.data=2")),
    "muon, data 2, zero 1": (2, ("optimizer.name=muon", "parallel.data=2", "parallel.zero=1")),
    "muon, data 2, zero 2": (2, ("optimizer.name=muon", "parallel.data=2", "parallel.zero=2", "train.microbatch=3")),
    "moments in bf16": (1, ("optimizer.state=bf16",)),
    "moments in bf16, data 2, zero 1": (2, ("optimizer.state=bf16", "parallel.data=2", "parallel.zero=1")),
    "adapters": (1, ADAPTED),
    "adapters, data 2": (2, (*ADAPTED, "parallel.data=2")),
    "adapters on int8": (1, (*ADAPTED, "model.frozen_format=int8")),
    "data 2, zero 0": (2, ("parallel.data=2",)),
    "data 2, zero 1": (2, ("parallel.data=2", "parallel.zero=1")),
    "data 2, zero 2": (2, ("parallel.data=2", "parallel.zero=2", "train.microbatch=3")),
    "data 2, zero 3": (2, ("parallel.data=2", "parallel.zero=3", "train.microbatch=3", "parallel.bucket_mib=0.1")),
    "data 4, zero 3, shard 2": (4, ("parallel.data=4", "parallel.zero=3", "parallel.shard=2", "train.microbatch=3")),
    "data 2, pipeline 2, zero 2": (4, ("parallel.data=2", "parallel.pipeline=2", "parallel.zero=2", "train.microbatch=3")),
    "tensor 2": (2, ("parallel.tensor=2",)),
    "tensor 2, sequence": (2, ("parallel.tensor=2", "parallel.sequence=true")),
    "pipeline 2, gpipe": (2, ("parallel.pipeline=2", "parallel.schedule=gpipe", "train.microbatch=3")),
    "pipeline 2, 1f1b": (2, ("parallel.pipeline=2", "train.microbatch=3")),
    "pipeline 2, interleaved": (2, ("parallel.pipeline=2", "parallel.schedule=interleaved",
                                    "parallel.virtual_stages=2", "train.microbatch=3")),
    "pipeline 2, zero bubble": (2, ("parallel.pipeline=2", "parallel.schedule=zero_bubble", "train.microbatch=3")),
    "data 2, pipeline 2, zero 1, full recomputation": (4, ("parallel.data=2", "parallel.pipeline=2", "parallel.zero=1",
                                                           "memory.recompute=full", "train.microbatch=3")),
    "data 2, tensor 2, zero 1, sequence": (4, ("parallel.data=2", "parallel.tensor=2", "parallel.zero=1",
                                               "parallel.sequence=true", "train.microbatch=3")),
}


class PlanMemory(support.Case):
    """Runs of two steps on CPU ranks."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("base", *TRAINED, "checkpoint.final=true")

    def predicted(self, ranks, settings):
        """Bytes in use and bytes reserved of the fullest rank."""
        result = self.run_program("plan", "deck.yaml", "--ranks", ranks, "--json", "plan.json",
                                  *support.overrides(*TRAINED, *settings))
        self.assertEqual((result.code, result.err), (0, ""))
        found = json.loads((self.folder / "plan.json").read_text(encoding="utf-8"))
        return found["memory_in_use_bytes"], found["memory_bytes"]

    def recorded(self, run, ranks, settings):
        """Most bytes in use on any rank, as the timing files have them."""
        result = self.run_program("train", "deck.yaml", *support.overrides(f"run.directory={run}", *TRAINED, *settings),
                                  ranks=0 if ranks == 1 else ranks)
        self.assertEqual(result.code, 0, result.err)
        peaks = []
        for rank in range(ranks):
            found = support.h5(self.folder / f"{run}/timing/start_0001/rank_{rank:05d}.h5")
            peaks += found["steps/memory_peak_bytes"]["values"]
        return max(peaks)

    @unittest.skipIf(support.python_with_h5py() is None, "h5py is not installed")
    def test_plans_hold_what_runs_use(self):
        peaks = {}
        for number, (name, (ranks, settings)) in enumerate(POINTS.items()):
            with self.subTest(name):
                in_use, reserved = self.predicted(ranks, settings)
                peaks[name] = self.recorded(f"run_{number}", ranks, settings)

                self.assertAlmostEqual(in_use / peaks[name], 1, delta=WITHIN)
                self.assertGreaterEqual(reserved, peaks[name])
        # Points that take equally much would not be told apart.
        self.assertGreater(len(set(peaks.values())), len(POINTS) - 3, peaks)


if __name__ == "__main__":
    support.main()
