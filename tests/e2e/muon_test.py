#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""optimizer.name muon: whole runs on every layout it takes, stopped and resumed."""

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
        self.train("data", *MUON, ranks=2)
        self.train("pipeline", *MUON, "parallel.data=1", "parallel.pipeline=2", ranks=2)

        for run in ("data", "pipeline"):
            with self.subTest(run):
                self.assert_close(self.losses(run), self.losses("whole"), 1e-3)

    def test_a_resumed_run_has_the_same_bits(self):
        self.train("parts", *MUON, options=("--stop-after", "7"))
        self.train("parts", *MUON)

        self.assertEqual(self.losses("parts"), self.losses("whole"))
        self.assertEqual(support.tensors(self.folder / "parts" / LAST), support.tensors(self.folder / "whole" / LAST))

    def test_a_checkpoint_goes_on_in_another_layout(self):
        self.train("moved", *MUON, options=("--stop-after", "10"))
        self.train("moved", *MUON, ranks=2)

        self.assert_close(self.losses("moved"), self.losses("whole"), 1e-3)

    def test_cut_matrices_are_refused(self):
        for setting in ("parallel.zero=1", "parallel.tensor=2"):
            layout = ("parallel.data=1",) if "tensor" in setting else ("parallel.data=2",)
            result = self.run_program("train", "deck.yaml", *support.overrides(*MUON, *layout, setting), ranks=2)

            self.assert_refused(result, 2, setting.split("=", maxsplit=1)[0], "muon updates whole matrices")


if __name__ == "__main__":
    support.main()
