# SPDX-License-Identifier: Apache-2.0
"""Adapters beside PEFT: our folder in PEFT, PEFT's folder here, and 20 steps of training in both."""

import contextlib
import json

import support

import numpy
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from analysis.compare.recipe import Recipe
from analysis.compare.samples import Tokens
from analysis.deck import read_deck
from analysis.runs import Run

CONTEXT = 32
LOGITS_WITHIN = 1e-4
LOSSES_WITHIN = 1e-5
STEPS = 20
TARGETS = {"llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
           "gpt2": ["c_attn", "c_fc", "attn.c_proj", "mlp.c_proj"]}
MODEL = ("model.heads=4",)


class Peft(support.Case):
    """Both families."""

    figures = {}  # name -> largest difference

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        for family in TARGETS:
            cls.train(f"base_{family}", f"model.family={family}", "train.validate_every=0", *MODEL)
            result = cls.run_program("checkpoint", "export", f"base_{family}/checkpoints", "--output", f"{family}_hf")
            assert result.code == 0, result.err

    def run_well(self, *arguments):
        """Runs the program, which must succeed."""
        result = self.run_program(*arguments)
        self.assertEqual(result.code, 0, result.err)
        return result

    def base(self, family):
        """The base in transformers."""
        return AutoModelForCausalLM.from_pretrained(self.folder / f"{family}_hf", dtype=torch.float32)

    def new_adapter(self, family, **others):
        """PEFT's adapters with an A and a B of random numbers."""
        torch.manual_seed(11)
        config = LoraConfig(r=3, lora_alpha=5, target_modules=TARGETS[family], fan_in_fan_out=family == "gpt2",
                            task_type="CAUSAL_LM", **others)
        return get_peft_model(self.base(family), config)

    @torch.no_grad()
    def assert_same_logits(self, case, checkpoint, model):
        """A whole context of random letters."""
        rng = numpy.random.default_rng(7)
        ids = rng.integers(97, 123, CONTEXT).tolist()
        self.run_well("generate", "--checkpoint", checkpoint, "--prompt", bytes(ids).decode(), "--logits",
                      "logits.npy", "--max-tokens", 1, "--vocab", "bytes", "--stop-token", "-1")
        found = numpy.load(self.folder / "logits.npy")
        expected = model.eval()(torch.tensor([ids])).logits[0].numpy()
        self.figures[case] = float(numpy.abs(found - expected).max())
        self.assertLessEqual(self.figures[case], LOGITS_WITHIN, case)

    def test_our_adapters_in_peft(self):
        for family in TARGETS:
            with self.subTest(family):
                self.train(f"ours_{family}", f"model.family={family}", *MODEL, "train.validate_every=0",
                           f"checkpoint.initial=base_{family}/checkpoints", "adapter.rank=2", "adapter.alpha=6")
                self.run_well("checkpoint", "export", f"ours_{family}/checkpoints", "--output", f"ours_{family}_peft",
                              "--base-name", str(self.folder / f"{family}_hf"))

                model = PeftModel.from_pretrained(self.base(family), self.folder / f"ours_{family}_peft")

                self.assert_same_logits(f"export {family}", f"ours_{family}/checkpoints", model)

    def test_peft_adapters_here(self):
        for family in TARGETS:
            for rank_scaled in (False, True):
                with self.subTest(family, rank_scaled=rank_scaled):
                    model = self.new_adapter(family, use_rslora=rank_scaled)
                    for name, parameter in model.named_parameters():
                        if "lora_B" in name:
                            torch.nn.init.normal_(parameter, std=0.3)
                    name = f"theirs_{family}_{rank_scaled}"
                    model.save_pretrained(self.folder / name)
                    self.run_well("checkpoint", "import", name, "--output", f"{name}_here",
                                  "--base", f"base_{family}/checkpoints")

                    self.assert_same_logits(f"import {family}{' rslora' * rank_scaled}", f"{name}_here", model)

    def steps_of_peft(self, run, model):
        """Losses of PEFT on the samples that the run took, with its optimizer."""
        with contextlib.chdir(self.folder):
            path = self.folder / run
            recipe = Recipe(read_deck(Run(path, path.name)), str(path))
            tokens = Tokens(recipe.files("train"), recipe.text("data.dtype"))
        beta1, beta2 = json.loads(recipe.text("optimizer.betas"))
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, betas=(beta1, beta2), eps=recipe.real("optimizer.eps"),
                                      weight_decay=recipe.real("optimizer.weight_decay"))
        order, batch, losses = recipe.order(tokens), recipe.integer("train.global_batch"), []
        for step in range(STEPS):
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate(step + 1, STEPS)
            ids = torch.from_numpy(tokens.batch(order.starts(step * batch, batch), CONTEXT)).long()
            logits = model(ids[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, recipe.real("optimizer.clip_norm"))
            optimizer.step()
            losses.append(loss.item())
        return losses

    def test_training_beside_peft(self):
        # GPT-2's c_attn has one A there and three here, which would part in training.
        for family in TARGETS:
            with self.subTest(family):
                targets = [target for target in TARGETS[family] if target != "c_attn"]
                torch.manual_seed(12)
                config = LoraConfig(r=4, lora_alpha=8, target_modules=targets, fan_in_fan_out=family == "gpt2",
                                    task_type="CAUSAL_LM")
                model = get_peft_model(self.base(family), config)
                model.save_pretrained(self.folder / f"begin_{family}")
                self.run_well("checkpoint", "import", f"begin_{family}", "--output", f"tuned_{family}",
                              "--base", f"base_{family}/checkpoints")

                run = f"tuned_{family}/run"
                self.run_well("train", f"tuned_{family}/deck.yaml", *support.overrides(
                    "data.train=[text.bin]", f"train.steps={STEPS}", "train.global_batch=12", "train.microbatch=12",
                    "optimizer.lr=1e-2", "schedule.warmup_steps=3", "run.device=cpu"))
                found = support.column(self.folder / run, "loss")
                expected = self.steps_of_peft(run, model.train())

                worst = max(abs(a - b) for a, b in zip(found, expected, strict=True))
                self.figures[f"training {family}"] = worst
                self.assertLessEqual(worst, LOSSES_WITHIN, f"{found}\n{expected}")
                self.assertLess(found[-1], found[0])
