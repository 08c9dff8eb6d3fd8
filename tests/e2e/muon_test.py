#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""optimizer.name muon: whole runs on every layout it takes, stopped and resumed."""

import math

import support

MUON = ("optimizer.name=muon", "optimizer.momentum=0.95")
LAST = "checkpoints/step_00000020"


class Muon(support.Case):
    """Twenty steps of the tiny deck on one rank, beside which others are held."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("whole", *MUON)

    def losses(self, run):
        return support.column(self.folder / run, "loss")

    def test_it_learns(self):
        losses = self.losses("whole")

        self.assertLess(losses[-1], 0.7 * losses[0])

    def test_other_layouts_give_the_same_curve(self):
        layouts = {"data": ("parallel.data=2",), "zero 1": ("parallel.data=2", "parallel.zero=1"),
                   "pipeline": ("parallel.pipeline=2",), "tensor": ("parallel.tensor=2",),
                   "sequence": ("parallel.tensor=2", "parallel.sequence=true"),
                   "four": ("parallel.data=4", "parallel.zero=2"),
                   "pipeline and zero 1": ("parallel.data=2", "parallel.pipeline=2", "parallel.zero=1"),
                   "tensor and zero 2": ("parallel.data=2", "parallel.tensor=2", "parallel.zero=2")}
        for run, layout in layouts.items():
            with self.subTest(run):
                axes = dict(setting.split("=") for setting in layout if setting.split("=")[1].isdigit())
                ranks = math.prod(int(n) for axis, n in axes.items() if axis != "parallel.zero")
                self.train(run, *MUON, "parallel.data=1", *layout, ranks=ranks)

                self.assert_close(self.losses(run), self.losses("whole"), 1e-3)

    def test_shards_of_two_ranks_have_the_bits_of_no_shards(self):
        """Sums of two terms have one order, if the norm is not summed by shards."""
        unclipped = (*MUON, "optimizer.clip_norm=0")
        for zero in (0, 1, 2, 3):
            self.train(f"zero{zero}", *unclipped, f"parallel.zero={zero}", ranks=2)

        for zero in (1, 2, 3):
            with self.subTest(zero=zero):
                self.assertEqual(self.losses(f"zero{zero}"), self.losses("zero0"))
                self.assertEqual(support.tensors(self.folder / f"zero{zero}" / LAST),
                                 support.tensors(self.folder / "zero0" / LAST))

    def test_a_resumed_run_has_the_same_bits(self):
        self.train("parts", *MUON, options=("--stop-after", "7"))
        self.train("parts", *MUON)

        self.assertEqual(self.losses("parts"), self.losses("whole"))
        self.assertEqual(support.tensors(self.folder / "parts" / LAST), support.tensors(self.folder / "whole" / LAST))

    def test_shards_resume_with_the_same_bits(self):
        layout = (*MUON, "parallel.zero=1")
        self.train("sharded", *layout, ranks=2)
        self.train("sharded parts", *layout, ranks=2, options=("--stop-after", "7"))
        self.train("sharded parts", *layout, ranks=2)

        self.assertEqual(self.losses("sharded parts"), self.losses("sharded"))

    def test_a_checkpoint_goes_on_in_another_layout(self):
        for first, second in (((), ("parallel.data=2", "parallel.zero=1")),
                              (("parallel.data=2", "parallel.zero=2"), ("parallel.tensor=2",)),
                              (("parallel.tensor=2",), ())):
            with self.subTest((first, second)):
                run = f"moved {'_'.join((*first, 'to', *second))}".replace(".", "_")
                self.train(run, *MUON, "parallel.data=1", *first, ranks=2 if first else 1, options=("--stop-after", "10"))
                self.train(run, *MUON, "parallel.data=1", *second, ranks=2 if second else 1)

                self.assert_close(self.losses(run), self.losses("whole"), 1e-3)


if __name__ == "__main__":
    support.main()
