#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""data.packing: documents packed into samples."""

import support

EXACT = ("step", "loss", "grad_norm")
PACKED = ("data.train=[documents.bin]", "data.validation=[documents.bin]", "data.end_token=256", "data.predict_starts=false",
          "data.documents=masked", "data.packing=best_fit")


class Packing(support.Case):
    """Documents of 3 to 50 tokens, in samples of 32."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        ids = []
        words = support.text().split(" ")
        for number in range(60):
            length = 3 + number * number % 48
            document = " ".join(words[7 * number:])[:length - 1]
            ids += [*document.encode(), 256]
        support.write_tokens(cls.folder / "documents.bin", ids)

    def losses(self, run, *settings, ranks=1):
        """Losses and gradient norms of a run, and what it said."""
        result = self.train(run, *PACKED, *settings, ranks=ranks)
        run = self.folder / run
        return support.column(run, "loss"), support.column(run, "grad_norm"), result.err

    def test_layouts_see_the_same_samples(self):
        for position in ("rope", "learned"):
            with self.subTest(position=position):
                self.compare_layouts(f"model.position={position}", position)

    def compare_layouts(self, model, name):
        loss, norm, said = self.losses(name, model)
        self.assertRegex(said, r"packing best_fit: 60 documents, \d+ pieces, \d+ samples of 32 tokens, [\d.]+ % of them padding; "
                               r"[\d.]+ % of the documents are cut \(contiguous: [\d.]+ %\)")
        for number, settings in enumerate((("train.microbatch=2", "parallel.zero=1"), ("parallel.data=1", "parallel.pipeline=2"),
                                           ("parallel.data=1", "parallel.tensor=2"),
                                           ("parallel.data=1", "parallel.tensor=2", "parallel.sequence=true"))):
            other_loss, other_norm, _ = self.losses(f"{name}{number}", model, *settings, ranks=2)
            self.assert_close(other_loss, loss, 1e-4)
            self.assert_close(other_norm, norm, 1e-3)
            self.assert_close([line["validation_loss"] for line in support.metrics(self.folder / f"{name}{number}")
                               if "validation_loss" in line],
                              [line["validation_loss"] for line in support.metrics(self.folder / name) if "validation_loss" in line],
                              1e-4)

    def test_a_resume_goes_on_within_an_epoch(self):
        self.train("whole", *PACKED)
        self.train("parts", *PACKED, options=("--stop-after", "7"))
        self.train("parts", *PACKED)

        for key in EXACT:
            self.assertEqual(support.column(self.folder / "parts", key), support.column(self.folder / "whole", key), key)
        self.train("other", *PACKED, options=("--stop-after", "3"))
        result = self.train("other", *PACKED, "data.packing=document", code=4)
        self.assertIn("packing=best_fit", result.err)

    def test_an_epoch_in_one_batch_has_the_gradients_of_its_documents_alone(self):
        figures = {}
        for packing in ("best_fit", "document"):
            said = self.losses(f"count_{packing}", f"data.packing={packing}", "train.steps=1", "schedule.warmup_steps=0")[2]
            figures[packing] = int(said.split(" samples of 32 tokens, ")[0].split(" ")[-1])
        self.assertLess(figures["best_fit"], 0.8 * figures["document"])

        for position in ("rope", "learned", "sinusoidal"):
            def epoch(name, packing, *settings, position=position):
                return self.losses(f"{name}_{position}", f"data.packing={packing}", f"train.global_batch={figures[packing]}",
                                   "train.microbatch=1", "train.steps=6", "train.validate_every=0", f"model.position={position}",
                                   *settings)

            with self.subTest(position=position):
                alone, alone_norm, _ = epoch("alone", "document")
                packed, packed_norm, _ = epoch("packed", "best_fit")
                joined, _, _ = epoch("joined", "best_fit", "data.documents=joined")
                one, _, _ = epoch("one_joined", "document", "data.documents=joined")

                self.assert_close(packed, alone, 2e-5)
                self.assert_close(packed_norm, alone_norm, 2e-4)
                self.assert_close(one, alone, 2e-5)  # padding, too, is seen by nothing that counts
                self.assertGreater(abs(joined[-1] - alone[-1]), 1e-3 * alone[-1])

    def test_a_mixture_and_a_split_are_packed(self):
        mixed = self.losses("mixed", "data.train=[documents.bin,text.bin]", "data.weights=[2,1]")[2]
        self.assertIn("packing best_fit: 61 documents", mixed)
        split = self.losses("split", "data.validation=[]", "data.validation_fraction=0.2")[2]
        self.assertRegex(split, r"packing best_fit: [345]\d documents")

    def test_an_end_that_is_not_the_vocabularys_is_named(self):
        self.assertNotIn("data.end_token is", self.losses("right_end", "train.steps=1")[2])
        self.assertIn("data.end_token is 46, and the end of text of data.vocabulary 256",
                      self.losses("other_end", "train.steps=1", "data.end_token=46")[2])

    def test_what_does_not_go_together_is_refused(self):
        for settings, words in ((("data.train=[synthetic]",), "have no documents"), (("data.sampling=windows",), "data.sampling to blocks"),
                                (("data.predict_starts=true",), "data.predict_starts")):
            result = self.train("refused", *PACKED, *settings, code=2)
            self.assertIn("data.packing", result.err)
            self.assertIn(words, result.err)


if __name__ == "__main__":
    support.main()
