#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""checkpoint upcycle: experts that compute what the dense model does, and what is refused."""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import support

MODELS = {"gated": (), "ungated": ("model.activation=gelu_tanh", "model.qkv_bias=true", "model.kv_heads=1"),
          "sandwich": ("model.norm_place=sandwich", "model.tie_embeddings=true")}


class Upcycle(support.Case):
    """A few dense models that have learned a little."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for name, settings in MODELS.items():
            cls.train(name, "train.steps=20", "train.validate_every=0", *settings)

    def run_well(self, *arguments):
        """Runs the program, which must succeed."""
        result = self.run_program(*arguments)
        self.assertEqual(result.code, 0, result.err)
        return result

    def loss(self, checkpoint):
        """The loss that the checkpoint's own deck gives on the whole text."""
        self.run_well("eval", "--checkpoint", checkpoint, "--json", "eval.json", *support.overrides(
            "data.validation=[text.bin]", "train.validate_batches=0"))
        return json.loads((self.folder / "eval.json").read_text(encoding="utf-8"))["loss"]

    def model_of(self, folder):
        """Name -> bytes of the model's tensors."""
        return {name: bytes(values) for name, values in support.tensors(self.folder / folder).items()
                if name.startswith("model/")}

    def test_the_loss_stays(self):
        for name in MODELS:
            for experts, active in ((1, 1), (4, 2), (5, 5)):
                with self.subTest(name, experts=experts, active=active):
                    output = f"{name}_{experts}"
                    self.run_well("checkpoint", "upcycle", f"{name}/checkpoints", "--experts", experts,
                                  "--active", active, "--output", output)
                    self.run_well("checkpoint", "verify", output)

                    dense = self.loss(f"{name}/checkpoints")
                    self.assertLess(abs(self.loss(output) - dense), 1e-6 * dense)

    def test_every_expert_is_a_copy_and_routers_are_random(self):
        self.run_well("checkpoint", "upcycle", "gated/checkpoints", "--experts", 3, "--output", "three")
        self.run_well("checkpoint", "upcycle", "gated/checkpoints", "--experts", 3, "--output", "same")
        self.run_well("checkpoint", "upcycle", "gated/checkpoints", "--experts", 3, "--seed", 8, "--output", "other")

        dense = self.model_of("gated/checkpoints/step_00000020")
        made, same, other = (self.model_of(f"{name}/step_00000000") for name in ("three", "same", "other"))

        self.assertEqual(made, same)
        routers = {f"model/blocks.{layer}.experts.router.weight" for layer in (0, 1)}
        self.assertEqual({name for name in made if made[name] != other[name]}, routers)
        self.assertEqual(len({made[name] for name in routers}), 2)
        expected = {}
        for name, values in dense.items():
            copies = [name.replace(".mlp.", f".experts.{expert}.") for expert in range(3)]
            expected.update(dict.fromkeys(copies, values))
        self.assertEqual({name: values for name, values in made.items() if name not in routers}, expected)
        # A new model with this seed begins with these routers.
        self.train("fresh", "train.steps=1", "train.validate_every=0", "optimizer.lr=1e-30", "experts.count=3")
        fresh = self.model_of("fresh/checkpoints/step_00000001")
        self.assertEqual({name: made[name] for name in routers}, {name: fresh[name] for name in routers})

    def test_training_goes_on_from_the_deck(self):
        self.run_well("checkpoint", "upcycle", "gated/checkpoints", "--experts", 4, "--output", "on")

        result = self.run_well("train", "on/deck.yaml", *support.overrides(
            "train.steps=30", "train.validate_every=0", "schedule.warmup_steps=0", "optimizer.lr=3e-3"))

        self.assertIn("starts from the weights of", result.err)
        losses = support.column(self.folder / "on" / "run", "loss")
        self.assertEqual(len(losses), 30)
        self.assertLess(sum(losses[-5:]), sum(losses[:5]))
        trained = self.model_of("on/run/checkpoints/step_00000030")
        self.assertNotEqual(trained["model/blocks.0.experts.0.up.weight"], trained["model/blocks.0.experts.1.up.weight"])

    def test_averages_are_taken(self):
        self.train("averaged", "train.steps=20", "train.validate_every=0", "optimizer.ema_decay=0.9")
        self.run_well("checkpoint", "upcycle", "averaged/checkpoints", "--experts", 2, "--output", "weights")
        self.run_well("checkpoint", "upcycle", "averaged/checkpoints", "--experts", 2, "--ema", "--output", "averages")

        self.assertNotAlmostEqual(self.loss("weights"), self.loss("averages"), delta=1e-4)

    def test_refusals(self):
        self.train("biased", "train.steps=1", "train.validate_every=0", "model.bias=true")
        self.run_well("checkpoint", "upcycle", "gated/checkpoints", "--experts", 2, "--output", "already")
        self.run_well("checkpoint", "quantize", "gated/checkpoints", "--weights", "int8", "--output", "rounded")
        before = support.snapshot(self.folder)
        for code, words, arguments in (
                (2, ["--output"], ("gated/checkpoints", "--experts", 2)),
                (2, ["needs --experts"], ("gated/checkpoints", "--output", "nothing")),
                (2, ["experts.count"], ("gated/checkpoints", "--experts", -1, "--output", "nothing")),
                (2, ["experts.active", "3 of 2 experts"],
                 ("gated/checkpoints", "--experts", 2, "--active", 3, "--output", "nothing")),
                (2, ["model.bias"], ("biased/checkpoints", "--experts", 2, "--output", "nothing")),
                (2, ["experts already"], ("already", "--experts", 2, "--output", "nothing")),
                (4, ["quantized"], ("rounded", "--experts", 2, "--output", "nothing")),
                (4, ["nowhere"], ("nowhere", "--experts", 2, "--output", "nothing")),
                (5, ["exists already"], ("gated/checkpoints", "--experts", 2, "--output", "already"))):
            with self.subTest(arguments=arguments):
                self.assert_refused(self.run_program("checkpoint", "upcycle", *arguments), code, *words)
        self.assertEqual(support.snapshot(self.folder), before)


if __name__ == "__main__":
    support.main()
