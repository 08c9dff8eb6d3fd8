#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Losses of tokens' values beside PyTorch: 20 steps from the same weights over the same samples, each loss.

losses_test.py --binary FILE
"""

import contextlib
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "e2e"), str(HERE.parent.parent)]

import support

try:
    import numpy
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from analysis.compare import training as comparison
from analysis.compare.recipe import read_recipe, read_weights
from analysis.compare.samples import permuted
from analysis.compare.torch_training import Group, Options, Training

STEPS = 20
END = 256
DOCUMENTS = 600
COMMON = ("model.width=64", "model.heads=4", "model.init_std=0.1", "optimizer.lr=5e-3", "schedule.warmup_steps=5",
          "data.train=[t.npy]", "data.validation=[]", "train.validate_every=0", "checkpoint.every=0",
          "train.z_loss=0", f"train.steps={STEPS}")
TOLERANCE = 2e-4  # nats


class Peer(Training):
    """The same training with a loss of its own."""

    def __init__(self, run, initial, columns, loss):
        super().__init__(read_recipe(run, only={}), read_weights(initial), Options("cpu"), Group("cpu"))
        self.columns, self.loss, self.number = columns, loss, 0
        self.values = {}

    def step(self, number):
        self.number = number
        super().step(number)

    def log_probabilities(self, inputs):
        """(B, T, vocabulary)."""
        found = []
        self.model.summed_loss = lambda logits, targets: found.append(logits) or logits.sum()
        self.model(inputs, inputs)
        return torch.log_softmax(found[0].double(), dim=-1)

    def gradients(self, batch):
        """Of the mean over the global batch."""
        inputs, targets = batch
        first = self.order.starts((self.number - 1) * self.global_batch, self.global_batch)
        where = torch.from_numpy(first)[:, None] + 1 + torch.arange(self.order.length)
        values = {name: torch.from_numpy(column)[where] for name, column in self.columns.items()}
        scores = self.log_probabilities(inputs)
        own = scores.gather(-1, targets[..., None])[..., 0]
        terms, weights = self.loss(scores, own, values)
        mean = (weights * terms).sum() / weights.sum()
        mean.backward()
        return mean.detach() * self.global_batch * self.order.length  # training_losses() divides by these


class PairPeer(Peer):
    """A pair of documents is a sample, in the order in which they are packed."""

    def gradients(self, batch):
        """Each document is read alone."""
        pairs = len(self.columns["begins"]) // 2
        index = numpy.arange((self.number - 1) * self.global_batch, self.number * self.global_batch, dtype=numpy.uint64)
        losses = []
        for epoch, place in zip(index // pairs, index % pairs):
            pair = int(permuted(numpy.array([place], numpy.uint64), pairs, self.order.seed, int(epoch))[0])
            losses.append(self.pair_loss(2 * pair))
        mean = torch.stack(losses).mean()
        mean.backward()
        return mean.detach() * self.global_batch * self.order.length

    def pair_loss(self, document):
        """-log sigmoid of beta times the margin."""
        gains = []
        for number in (document, document + 1):
            begin, end = (int(self.columns["begins"][number + i]) if number + i < len(self.columns["begins"])
                          else len(self.columns["tokens"]) for i in (0, 1))
            tokens = torch.from_numpy(self.columns["tokens"][begin:end].astype(numpy.int64))[None]
            scores = self.log_probabilities(tokens[:, :-1]).gather(-1, tokens[:, 1:, None])[0, :, 0]
            reference = torch.from_numpy(self.columns["reference"][begin + 1:end])
            gains.append((scores - reference).sum())
        return -torch.nn.functional.logsigmoid(0.3 * (gains[0] - gains[1]))


def weighted(_, own, values):
    """The mean with weights."""
    return -own, values["weights"]


def clipped(_, own, values):
    """Proximal policy optimization with the divergence from a reference."""
    ratio = (own - values["old_log_probabilities"]).exp()
    bounded = ratio.clamp(1 - 0.1, 1 + 0.3)
    distance = values["reference_log_probabilities"] - own
    terms = -torch.minimum(ratio * values["advantages"], bounded * values["advantages"])
    return terms + 0.2 * (distance.exp() - distance - 1), values["weights"]


def distilled(scores, own, values):
    """A quarter from the next token, the rest from the teacher."""
    taught = torch.log_softmax(values["teacher_log_probabilities"], dim=-1)
    theirs = scores.gather(-1, values["teacher_ids"].long())
    return -0.25 * own + 0.75 * (taught.exp() * (taught - theirs)).sum(-1), torch.ones_like(own)


class Losses(support.Case):
    """Every loss in fp32."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        chance = numpy.random.default_rng(1)
        lengths = chance.integers(4, 15, 2 * (DOCUMENTS // 2))
        texts = [numpy.append((97 + (numpy.arange(n - 1) * 3 + n) % 9), END) for n in lengths]
        tokens = numpy.concatenate(texts).astype(numpy.uint16)
        cls.columns = {"weights": chance.choice([0, 0.5, 1, 2], len(tokens)), "advantages": chance.normal(size=len(tokens)),
                       "old_log_probabilities": -5 - chance.random(len(tokens)),
                       "reference_log_probabilities": -5 - chance.random(len(tokens)),
                       "teacher_log_probabilities": -3 * chance.random((len(tokens), 4))}
        cls.columns = {name: column.astype(numpy.float32) for name, column in cls.columns.items()}
        cls.columns["teacher_ids"] = (tokens[:, None] + numpy.array([0, 1, 5, 9])).astype(numpy.int32) % 257
        numpy.save(cls.folder / "t.npy", tokens)
        for name, column in cls.columns.items():
            numpy.save(cls.folder / f"t.{name}.npy", column)
        ends = numpy.cumsum(lengths)
        cls.pairs = {"begins": numpy.append(0, ends[:-1]), "tokens": tokens,
                     "reference": cls.columns["reference_log_probabilities"]}

    def compare(self, name, settings, peer):
        self.train(name, *COMMON, *settings)
        self.train(f"{name}_initial", *COMMON, *settings, *comparison.INITIAL, f"run.directory={name}_initial")
        with contextlib.chdir(self.folder):
            training = peer(self.folder / name, self.folder / f"{name}_initial")
            for step in range(1, STEPS + 1):
                training.step(step)
        found, expected = support.column(self.folder / name, "loss"), training.training_losses()
        worst = max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(found, expected))
        print(f"{name}: largest difference {worst:.2e}, allowed {TOLERANCE:.0e}")
        self.assertEqual(len(found), STEPS)
        self.assertLessEqual(worst, TOLERANCE, f"{found}\n{expected}")
        self.assertGreater(max(found) - min(found), 0.01)  # something is learned

    def with_loss(self, loss):
        return lambda run, initial: Peer(run, initial, self.columns, loss)

    def test_weights(self):
        self.compare("weighted", ("data.token_weights=true",), self.with_loss(weighted))

    def test_a_clipped_loss(self):
        self.compare("clipped", ("data.token_weights=true", "train.loss=clipped", "train.clip_low=0.1",
                                 "train.clip_high=0.3", "train.kl_weight=0.2"), self.with_loss(clipped))

    def test_distillation(self):
        self.compare("distilled", ("train.loss=distillation", "train.teacher_tokens=4", "train.teacher_weight=0.75"),
                     self.with_loss(distilled))

    def test_preference(self):
        self.compare("preference", ("train.loss=preference", "train.preference_beta=0.3", "data.packing=document",
                                    "data.documents=masked", f"data.end_token={END}", "data.predict_starts=false"),
                     lambda run, initial: PairPeer(run, initial, self.pairs, None))


if __name__ == "__main__":
    support.main()
