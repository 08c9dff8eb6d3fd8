# SPDX-License-Identifier: Apache-2.0
"""Questions that checkpoints answer: layouts, checkpoints, files, refusals."""

import json
import pathlib
import subprocess
import sys

import support

SCRIPT = str(pathlib.Path(__file__).resolve().parents[2] / "jobs/data/tasks.py")

ANIMALS = """\
{"task": "animals", "kind": "multiple_choice", "metric": "acc_norm"}
{"id": "a", "context": "The red cat sat on", "endings": ["line 3.", "xylophone"], "label": 0}
{"id": "b", "context": "The", "endings": ["zzz", "old hen sat", "dog dog dog"], "label": 1}
{"contexts": ["The blue cow ", "A context of more than the thirty-two bytes of the model"], "ending": "sat", "label": 0}
"""

LAST = """\
{"task": "last", "kind": "completion"}
{"context": "The red cat sat on", "ending": "line"}
{"context": "", "ending": "The"}
"""

FIGURES = ("acc", "acc_norm", "acc_bytes", "acc_token")


class Tasks(support.Case):
    """A tiny checkpoint of two saved steps, and task files."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("run")
        (cls.folder / "animals.jsonl").write_text(ANIMALS, encoding="utf-8")
        (cls.folder / "last.jsonl").write_text(LAST, encoding="utf-8")

    def evaluate(self, *arguments, ranks=0, checkpoint=("run",), settings=()):
        """Prints and figures of an eval without a deck, for which no token file is needed."""
        result = self.run_program("eval", "--checkpoint", *checkpoint, *arguments, "--json", "found.json",
                                  *support.overrides(*settings), ranks=ranks)
        self.assertEqual(result.code, 0, result.err)
        return result, json.loads((self.folder / "found.json").read_text(encoding="utf-8"))

    def test_the_table_and_the_json_have_all_figures(self):
        result, found = self.evaluate("--tasks", "animals.jsonl,last.jsonl")

        rows = [line.split() for line in result.out.splitlines()]
        self.assertEqual([(row[1], row[3]) for row in rows[1:]],
                         [("animals", name) for name in FIGURES] + [("last", "acc"), ("last", "perplexity")])
        animals, last = found["tasks"]
        self.assertEqual([animals["questions"], animals["endings"], found["endings"]], [3, 7, 9])
        self.assertEqual(animals["metric"], "acc_norm")
        self.assertAlmostEqual(float(rows[2][4]), animals["acc_norm"], delta=1e-4)
        self.assertGreater(last["perplexity"], 1)
        self.assertGreater(found["endings_per_second"], 0)

    def test_a_token_across_the_border_gives_nothing_of_the_ending_away(self):
        support.write_vocabulary(self.folder / "digits", merges=[("1", "2"), ("12", "3")])
        self.train("spanning", "model.vocabulary=300", "data.vocabulary=digits", "train.validate_every=0", "data.validation=[]")
        header = '{"task": "NAME", "kind": "completion", "metric": "perplexity", "delimiter": ""}\n'
        for name, ending in (("whole", "4"), ("across", "34"), ("swallowed", "3")):
            (self.folder / f"{name}.jsonl").write_text(header.replace("NAME", name) + json.dumps(
                {"context": "num 12", "ending": ending}) + "\n" + json.dumps({"context": "", "ending": "n"}) + "\n", encoding="utf-8")

        _, found = self.evaluate("--tasks", "whole.jsonl,across.jsonl,swallowed.jsonl", checkpoint=("spanning",))

        # "num 124" is [.., 12, 4]; of "num 1234", [.., 123, 4], lm_eval scores 4 after the context, which is [.., 12].
        whole, across, swallowed = found["tasks"]
        self.assertEqual(across["perplexity"], whole["perplexity"])
        # "num 123" is [.., 123]: nothing follows the context's tokens, so that its log-probability is 0.
        self.assertLess(swallowed["perplexity"], whole["perplexity"])
        self.assertEqual(found["endings"], 6)
        (self.folder / "nothing.jsonl").write_text(header.replace("NAME", "nothing") + json.dumps(
            {"context": "num 12", "ending": "3"}) + "\n", encoding="utf-8")
        self.assert_refused(self.run_program("eval", "--checkpoint", "spanning", "--tasks", "nothing.jsonl"), 3,
                            "nothing.jsonl: no ending has a token of its own")

    def test_every_layout_and_batch_gives_the_same_figures(self):
        _, one = self.evaluate("--tasks", "animals.jsonl,last.jsonl")
        one_copy = "parallel.data=1"
        for layout in ((), (one_copy, "parallel.tensor=2"), (one_copy, "parallel.pipeline=2"), ("train.microbatch=1",)):
            with self.subTest(layout=layout):
                ranks = 0 if layout == ("train.microbatch=1",) else 2
                _, found = self.evaluate("--tasks", "animals.jsonl", "--tasks", "last.jsonl", ranks=ranks,
                                         settings=layout)
                for a, b in zip(found["tasks"], one["tasks"]):
                    for key, value in b.items():
                        if isinstance(value, float):
                            self.assertAlmostEqual(a[key], value, delta=1e-5 * value)
                        else:
                            self.assertEqual(a[key], value)

    def test_several_checkpoints_are_recorded_in_their_run(self):
        self.copy_of("run", "copy")
        (self.folder / "text.bin").rename(self.folder / "away.bin")
        self.addCleanup((self.folder / "away.bin").rename, self.folder / "text.bin")

        _, found = self.evaluate("--tasks", "last", "--tasks-folder", ".",
                                 checkpoint=("copy/checkpoints/step_00000010", "copy"))

        self.assertEqual([entry["step"] for entry in found], [10, 20])
        self.assertNotEqual(found[0]["tasks"], found[1]["tasks"])
        lines = (self.folder / "copy/eval_tasks.jsonl").read_text(encoding="utf-8").splitlines()
        self.assertEqual([json.loads(line) for line in lines[-2:]],
                         [{"step": entry["step"], "tasks": entry["tasks"]} for entry in found])

    def test_what_cannot_be_measured_is_refused(self):
        def refused(code, *words, options=(), ranks=0):
            self.assert_refused(self.run_program("eval", "--checkpoint", "run", *options, ranks=ranks), code, *words)

        (self.folder / "broken.jsonl").write_bytes(LAST.encode() + b'{"context": "\xff"}\n')
        (self.folder / "long.jsonl").write_text(LAST + json.dumps({"context": "a", "ending": "b" * 40}),
                                                encoding="utf-8")
        refused(3, "broken.jsonl:4: is no JSON in UTF-8", options=("--tasks", "broken.jsonl"), ranks=2)
        refused(3, "long.jsonl:4: ", "41 tokens", "context of 32", options=("--tasks", "long.jsonl"))
        refused(2, "the task 'piqa'", "data/tasks/piqa.jsonl is not there", options=("--tasks", "piqa"))
        refused(2, "--words does not go with --tasks", options=("--tasks", "last.jsonl", "--words"))
        refused(2, "tasks need the vocabulary",
                options=("--tasks", "last.jsonl", "--set", "data.vocabulary="))

    def test_training_scores_tasks_at_a_period(self):
        tasks = ("train.tasks=[animals.jsonl, last.jsonl]", "train.tasks_every=8")

        self.train("scored", *tasks)
        self.train("parted", *tasks, "parallel.data=1", "parallel.context=2", ranks=2, options=("--stop-after", 10))
        self.train("parted", *tasks)

        def lines(run):
            text = (self.folder / run / "tasks.jsonl").read_text(encoding="utf-8")
            return [json.loads(line) for line in text.splitlines()]
        scored, parted = lines("scored"), lines("parted")
        self.assertEqual([line["step"] for line in scored], [8, 16, 20])
        self.assertEqual([line["step"] for line in parted], [8, 16, 20])
        for a, b in zip(parted, scored):
            self.assertAlmostEqual(a["tasks"][1]["perplexity"] / b["tasks"][1]["perplexity"], 1, delta=1e-4)
        _, found = self.evaluate("--tasks", "animals.jsonl,last.jsonl", checkpoint=("scored",))
        self.assertEqual(found["tasks"][0], scored[-1]["tasks"][0])
        self.assertAlmostEqual(found["tasks"][1]["perplexity"] / scored[-1]["tasks"][1]["perplexity"], 1, delta=1e-5)
        self.assertEqual(support.column(self.folder / "scored", "loss"),
                         support.column(self.folder / "run", "loss"))

    def convert(self, task, *files):
        """Rows of the task file that the script makes of published files."""
        paths = []
        for i, text in enumerate(files):
            paths += ["--input", str(self.folder / f"published_{i}")]
            (self.folder / f"published_{i}").write_text(text, encoding="utf-8")
        done = subprocess.run([sys.executable, SCRIPT, task, *paths, "--output", str(self.folder / "made")],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return done.stderr
        text = (self.folder / f"made/{task}.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.split("\n") if line]

    def test_published_files_become_task_files(self):
        choice = {"kind": "multiple_choice", "metric": "acc_norm"}
        arc = {"id": "Q1", "answerKey": "B", "question": {
            "stem": "What?", "choices": [{"text": "x", "label": "A"}, {"text": "y z", "label": "B"}]}}
        made = {
            "hellaswag": [{"ind": 4, "activity_label": "Roof", "ctx_a": "A man sits.", "ctx_b": "he", "label": 2,
                           "endings": ["runs. [title] Go [step] far.", "b  c", "d", "e"]}],
            "arc_easy": [arc],
            "lambada": [{"text": "one two \u2028 three"}],
            "winogrande": [{"qID": "w", "sentence": "The cup fits not as _ is large .", "option1": "cup",
                            "option2": "box", "answer": "2"}],
        }
        expected = {
            "hellaswag": [{**choice, "task": "hellaswag"},
                          {"id": 4, "context": "Roof: A man sits. He", "endings": ["runs.. Go far.", "b c", "d", "e"],
                           "label": 2}],
            "arc_easy": [{**choice, "task": "arc_easy"},
                         {"id": "Q1", "context": "Question: What?\nAnswer:", "endings": ["x", "y z"], "label": 1}],
            "lambada": [{"kind": "completion", "metric": "acc", "task": "lambada"},
                        {"context": "one two \u2028", "ending": "three"}],
            "winogrande": [{"kind": "multiple_choice", "metric": "acc", "task": "winogrande"},
                           {"id": "w", "contexts": ["The cup fits not as cup", "The cup fits not as box"],
                            "ending": "is large .", "label": 1}],
        }
        for task, rows in made.items():
            with self.subTest(task=task):
                self.assertEqual(self.convert(task, "".join(json.dumps(row) + "\n" for row in rows)), expected[task])
        piqa = json.dumps({"goal": "Open it", "sol1": "Push.", "sol2": "Pull."}) + "\n"
        self.assertEqual(self.convert("piqa", piqa, "1\n")[1],
                         {"context": "Question: Open it\nAnswer:", "endings": ["Push.", "Pull."], "label": 1})
        _, found = self.evaluate("--tasks", "arc_easy,winogrande", "--tasks-folder", "made",
                                 settings=("model.context=32",))
        self.assertEqual([task["questions"] for task in found["tasks"]], [1, 1])

        self.assertIn("1 questions have 2 labels", self.convert("piqa", piqa, "1\n0\n"))
        self.assertIn("question 1 is none of lambada: KeyError 'text'", self.convert("lambada", "{}"))
        self.assertIn("jobs/data/tasks.py: line 3 of the published file is no JSON",
                      self.convert("lambada", '{"text": "a b"}\n\n{'))
        self.assertIn("ARC-V1-Feb2018.zip", self.convert("arc_easy"))


if __name__ == "__main__":
    support.main()
