#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adapters of mixtures of experts: training on layouts, merging, and what is refused."""

import json
import struct

import support

ADAPTER = ("adapter.rank=2", "adapter.alpha=8", "checkpoint.initial=runs/base", "optimizer.lr=0.01")
STEP = "step_00000006"


class AdapterExperts(support.Case):
    """A model with experts, and runs that adapt it."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        (cls.folder / "base.yaml").write_text(support.EXPERTS_DECK, encoding="utf-8")
        cls.train_run("base")
        cls.train_run("tuned", *ADAPTER)

    @classmethod
    def train_run(cls, name, *settings, ranks=1):
        """Trains into runs/<name>."""
        result = cls.run_program("train", "base.yaml", *support.overrides(f"run.name={name}", *settings), ranks=ranks)
        assert result.code == 0, result.err

    def run_well(self, *arguments, **options):
        """Runs the program, which must succeed."""
        result = self.run_program(*arguments, **options)
        self.assertEqual(result.code, 0, result.err)
        return result

    def loss(self, checkpoint, *settings):
        """What eval finds, with all digits."""
        self.run_well("eval", "--checkpoint", checkpoint, "--json", "loss.json", *support.overrides(*settings))
        return json.loads((self.folder / "loss.json").read_text(encoding="utf-8"))["loss"]

    def logits(self, checkpoint):
        """Of a prompt."""
        self.run_well("generate", "--checkpoint", checkpoint, "--prompt", "The red cow", "--logits", "logits.npy",
                      "--max-tokens", 1)
        data = (self.folder / "logits.npy").read_bytes()
        begin = 10 + struct.unpack("<H", data[8:10])[0]
        return struct.unpack(f"<{(len(data) - begin) // 4}f", data[begin:])

    def test_every_expert_has_adapters_of_its_own(self):
        tensors = support.tensors(self.folder / "runs/tuned/checkpoints" / STEP)

        for expert in ("0", "1", "2", "3", "shared"):
            for matrix in ("gate", "up", "down"):
                adapter = tensors[f"model/blocks.1.experts.{expert}.{matrix}.lora_B.weight"]
                self.assertEqual(len(adapter), 4 * 2 * 64)
                self.assertTrue(any(adapter), f"{expert}.{matrix} was not trained")
        self.assertFalse([name for name in tensors if name.startswith("model/") and "lora" not in name])

    def test_merged_is_unmerged(self):
        self.run_well("checkpoint", "merge", "runs/tuned", "--output", "whole")

        self.assertGreater(abs(self.loss("runs/tuned") - self.loss("runs/base")), 1e-3)
        self.assertAlmostEqual(self.loss("whole"), self.loss("runs/tuned"), delta=1e-6)
        for merged, added in zip(self.logits("whole"), self.logits("runs/tuned"), strict=True):
            self.assertAlmostEqual(merged, added, delta=2e-5)

    def test_layouts_train_the_same_adapters(self):
        expected = self.loss("runs/tuned")
        for name, layout in (("tensor", ("parallel.tensor=2",)), ("zero", ("parallel.data=2", "parallel.zero=3")),
                             ("expert", ("parallel.data=2", "parallel.expert=2", "parallel.zero=1"))):
            with self.subTest(name):
                self.train_run(name, *ADAPTER, *layout, ranks=2)
                self.assertAlmostEqual(self.loss(f"runs/{name}"), expected, delta=1e-5)

    def test_layouts_adapt_the_same_quantized_base(self):
        zero, expert = (("parallel.data=2", f"parallel.zero={level}", f"parallel.expert={ranks}")
                        for level, ranks in ((3, 1), (2, 2)))
        for bits, layouts in (("int4", (zero, expert)), ("nf4", (zero,))):  # blocks of nf4 begin anew on expert ranks
            self.train_run(f"one_{bits}", *ADAPTER, f"model.frozen_format={bits}")
            expected = self.loss(f"runs/one_{bits}")
            for number, layout in enumerate(layouts):
                with self.subTest(bits=bits, layout=layout):
                    name = f"two_{bits}_{number}"
                    self.train_run(name, *ADAPTER, f"model.frozen_format={bits}", *layout, ranks=2)
                    self.assertAlmostEqual(self.loss(f"runs/{name}"), expected, delta=1e-5)

    def test_a_quantized_base_is_adapted(self):
        for bits in ("int8", "nf4"):
            with self.subTest(bits):
                self.train_run(bits, *ADAPTER, f"model.frozen_format={bits}")
                found = self.loss(f"runs/{bits}")
                self.assertLess(found, self.loss("runs/base"))
                self.assertAlmostEqual(found, self.loss("runs/tuned"), delta=0.02)

    def test_adapters_of_attention_alone_go_to_peft_and_back(self):
        mixtral = ("experts.shared=0", "experts.first_dense=0")
        targets = "adapter.targets=[attention.query, attention.key, attention.value, attention.output]"
        self.train_run("mixtral", *mixtral)
        self.train_run("attentive", *mixtral, *ADAPTER, "checkpoint.initial=runs/mixtral", targets)
        self.run_well("checkpoint", "export", "runs/attentive", "--output", "peft")
        self.run_well("checkpoint", "import", "peft", "--output", "back", "--base", "runs/mixtral")

        given = ("data.validation=[synthetic]", "train.validate_batches=2", "train.global_batch=8", "run.seed=7")
        self.assertAlmostEqual(self.loss("back", *given), self.loss("runs/attentive", *given), delta=1e-6)
        self.assertGreater(abs(self.loss("runs/attentive") - self.loss("runs/mixtral")), 1e-4)

    def test_what_goes_nowhere_is_refused(self):
        self.assert_refused(self.run_program("checkpoint", "export", "runs/tuned", "--output", "folder"), 2,
                            "fold them into the model with checkpoint merge")
        dropped = self.run_program("train", "base.yaml", *support.overrides(*ADAPTER, "run.name=x", "adapter.dropout=0.1"))
        self.assert_refused(dropped, 2, "inputs of experts' adapters are not dropped")
        self.assertFalse((self.folder / "folder").exists())


if __name__ == "__main__":
    support.main()
