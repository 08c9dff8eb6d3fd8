# SPDX-License-Identifier: Apache-2.0
"""Files that are damaged or hostile: a command says so in one line, or goes on without them."""
from __future__ import annotations

import contextlib
import copy
import json
import shutil
import unittest
from pathlib import Path
from typing import Any, Iterator
from unittest import mock

from analysis.compare.speed import read_lines
from analysis.compare.vit_weights import read_safetensors
from analysis.errors import UserError
from analysis.json_files import NUMBER, misfit, parse_json
from analysis.quantization_rows import read_rows
from analysis.report.optimizations import optimization_sections
from analysis.runs import Run
from analysis.scaling import read_cases
from analysis.study.live import last_line, result_text
from analysis.study.record import Record, find_study, read_record
from analysis.style import plt
from analysis.sweep import read_points
from analysis.tests.commands import CommandTest, run_command
from analysis.tests.fake_runs import metrics_row, write_deck, write_metrics, write_scaled, write_start_deck
from analysis.tests.study_case import StudyTest
from analysis.yaml_files import load_yaml

NO_JSON = (b"", b"{", b"\xff\xfe", b"\x00", b"[" * 100_000, b'{"a":' * 100_000, b"[]", b"null", b"3", b'"x"', b"{}", b"9" * 5000)
VALUES: tuple[Any, ...] = (None, True, -1, 1.5, 10 ** 400, float("inf"), float("nan"), "", "\x1b[31m<b>", "1", [], [[1]], {},
                           {"a": None})


def bomb(first: str, levels: int = 9) -> str:
    """Lines of YAML, the last of which stands for 9 to the power of `levels` values; its name is *z."""
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{level}: &a{level} [{', '.join(9 * [f'*a{level - 1}'])}]" for level in range(1, levels)]
    return "\n".join([*lines, f"z: &z [{', '.join(9 * [f'*a{levels - 1}'])}]"]) + "\n"


def places(content: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of every value in a tree but the tree itself."""
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in pairs:
        yield (*before, key)
        yield from places(value, (*before, key))


def changed(content: Any, place: tuple[Any, ...], value: Any) -> Any:
    whole = inner = copy.deepcopy(content)
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return whole


class DamagedTest(CommandTest):
    def expect_sound(self, *words: object, at: Path | None = None) -> int:
        """Success, or one line, which names the file; no Python error in any case."""
        code, out, err = run_command(*words)
        plt.close("all")  # an error leaves what was drawn before it
        if code == 0:
            self.assertEqual(err, "")
        else:
            self.assertEqual((code, out), (2, ""))
            self.assertRegex(err, r"\Aanalysis: [^\n]{1,3000}\n\Z")
            self.assertIn(str(at or ""), err)
        return code

    def expect_refused(self, *words: object, at: Path) -> None:
        self.assertEqual(self.expect_sound(*words, at=at), 2)


class Forms(unittest.TestCase):
    def test_what_does_not_have_its_form(self) -> None:
        form = {"a": int, "b?": [NUMBER, 1], "c?": {str: (str, bool)}}
        for value, problem in (({"a": 1}, ""), ({"a": 1, "b": [1, 1.5, None], "c": {"x": "y", "z": True}, "d": 5}, ""),
                               ([], "it is a list, expected an object"), ({}, "a is missing"),
                               ({"a": True}, "a is true or false, expected a whole number"),
                               ({"a": 1, "b": []}, "b holds 0, expected at least 1"),
                               ({"a": 1, "b": [1, "2"]}, "b[1] is a text, expected a number"),
                               ({"a": 1, "c": {"x": 1}}, "c.x is a whole number, expected a text")):
            self.assertEqual(misfit(value, form), problem)
        self.assertEqual(misfit(parse_json("1e999"), float), "it is inf, expected a number below 1e+100")
        self.assertEqual(misfit(parse_json("9" * 101), int), "it is a number, expected a whole number")
        with self.assertRaisesRegex(ValueError, "too many brackets"):
            parse_json("[" * 100_000)


class Studies(StudyTest, DamagedTest):
    def setUp(self) -> None:
        super().setUp()
        no_pdf = mock.patch("analysis.report.command.write_pdf", lambda document, path: "")
        no_pdf.start()
        self.addCleanup(no_pdf.stop)

    def ran(self, **changes: Any) -> Path:
        """The folder of a point of a study that ran, of one axis and without figures."""
        self.write(**{"axes": {"ranks": [1, 2]}, "tables": [{"columns": ["step_seconds", "speed_up"]}]} | changes)
        self.assertEqual(self.run_study()[0], 0)
        return sorted(Path("runs/tiny/points").glob("*/point.json"))[1].parent

    def expect_each_value(self, path: Path, refused: tuple[str, ...] = ()) -> None:
        """A value of every other kind at every place of a file of JSON; those of keys `refused` are errors."""
        whole = json.loads(path.read_text(encoding="utf-8"))
        for place in places(whole):
            for value in VALUES:
                with self.subTest(place=place, value=str(value)[:20]):
                    path.write_text(json.dumps(changed(whole, place, value)), encoding="utf-8")
                    code = self.expect_sound("study", "runs/tiny", at=path)
                    self.assertTrue(code == 2 or place[0] not in refused or type(value) is type(changed(whole, place, None)))
        path.write_text(json.dumps(whole), encoding="utf-8")

    def test_point_json(self) -> None:
        path = self.ran() / "point.json"
        for content in NO_JSON:
            with self.subTest(content=content[:10]):
                whole = path.read_bytes()
                path.write_bytes(content)
                for command in ("study", "report"):
                    self.expect_refused(command, "runs/tiny", at=path)
                path.write_bytes(whole)
        self.expect_each_value(path)
        for key, value in (("settings", []), ("labels", None), ("state", "\x1b[31mdone"), ("state", 3), ("name", "../other"),
                           ("machine", "\x1b[31m<b>"), ("seconds", "1"), ("format", 2), ("more", 1), ("launch", [1])):
            with self.subTest(key=key, value=value):
                whole = path.read_text(encoding="utf-8")
                path.write_text(json.dumps({**json.loads(whole), key: value}), encoding="utf-8")
                self.expect_refused("report", "runs/tiny", at=path)
                path.write_text(whole, encoding="utf-8")
        self.assertEqual(self.expect_sound("report", "runs/tiny"), 0)

    def test_what_bench_and_plan_wrote(self) -> None:
        for changes in ({"set": {"mode": "all"}}, {"set": {"mode": "decode"}}):
            shutil.rmtree("runs", ignore_errors=True)
            place = self.ran(**changes)
            (place / "plan.json").write_text('{"memory_bytes": 5, "step_seconds": 0.5}', encoding="utf-8")
            for name in ("bench.json", "plan.json"):
                whole = (place / name).read_bytes()
                for content in NO_JSON:
                    (place / name).write_bytes(content)
                    self.expect_refused("report", "runs/tiny", at=place / name)
                (place / name).write_bytes(whole)
                self.expect_each_value(place / name)
        (place / "plan.json").unlink()
        (place / "plan.txt").write_text("largest  stage 0: 1.2.3 MiB on each\n" "in use  . MiB at most\n", encoding="utf-8")
        self.assertEqual(self.expect_sound("report", "runs/tiny"), 0)

    def test_a_live_table_goes_on(self) -> None:
        place = self.ran()
        record = read_record(place / "point.json")
        for content in NO_JSON:
            (place / "bench.json").write_bytes(content)
            self.assertIn("cannot be read", result_text(Path("runs/tiny"), record))
            (place / "metrics.jsonl").write_bytes(content + b"}\n")
            self.assertEqual(last_line(place / "metrics.jsonl"), {})
        running = Record("p", "", {}, 1, {"command": "train"}, "running")
        for row in ({"loss": 1, "tokens_per_second": 5}, {"step": 1, "loss": "x", "tokens_per_second": 5}):
            write_metrics(Path("runs/tiny/points/p"), [row])
            self.assertEqual(result_text(Path("runs/tiny"), running), "")

    def test_study_yaml(self) -> None:
        self.ran()
        path = find_study("runs/tiny") / "study.yaml"
        whole = path.read_text(encoding="utf-8")
        for content in ("", "[]", "{", "3", "\x00", "\x1b", "[" * 100_000, "a: &a [*a]",
                        "title: &t [*t]\n" + whole.replace("title:", "about:"),
                        bomb("[x]"), f"{bomb('[x]')}title: *z\nname: a\ntables: *z\n", bomb("{x: 1}").replace("[*", "[<<, *"),
                        f"a: &a {'x' * 2000}\nb: &b [{', '.join(999 * ['*a'])}]\n", "title: 2001-99-99", "title: !!bool x",
                        "title: !!timestamp x", "? [a]\n: b", "a: 1\na: 2", f"title: {'9' * 5000}", f"title: 0x{'f' * 5000}",
                        "!!python/object/apply:os.system [touch x]", whole.replace("axes:", "repeat: 999999999\naxes:"),
                        whole.replace("command: bench", "command: [bench]"), whole + "point: *x\n"):
            with self.subTest(content=content[:30]):
                path.write_text(content, encoding="utf-8")
                self.expect_refused("study", "runs/tiny", at=path)
                self.expect_refused("report", "runs/tiny", at=path)
        path.write_bytes(b"\xff\xfe")
        self.expect_refused("study", "runs/tiny", at=path)
        self.assertRegex(self.run_study()[2], r"\Astudy.py: runs/tiny/study.yaml[^\n]+\n\Z")
        path.write_text(whole.replace("title: A tiny study", "title: 3"), encoding="utf-8")
        self.assertEqual(self.expect_sound("study", "runs/tiny"), 0)

    def test_every_value_of_study_yaml(self) -> None:
        self.ran(base=None, plots=[{"name": "p", "x": "ranks", "y": ["step_seconds"], "log": ["x"]}])
        path = Path("runs/tiny/study.yaml")
        whole = load_yaml(path)
        with mock.patch("analysis.study.command.pictures_of", lambda folder, result: []):
            for place in places(whole):
                for value in VALUES:
                    with self.subTest(place=place, value=str(value)[:20]):
                        path.write_text(json.dumps(changed(whole, place, value)), encoding="utf-8")  # YAML, too
                        self.expect_sound("study", "runs/tiny", at=path)

    def test_an_axis_that_names_another_file(self) -> None:
        self.ran()
        Path("layouts").write_bytes(b"root:x:0\n\xff=1\n")
        path = Path("runs/tiny/study.yaml")
        text = path.read_text(encoding="utf-8").replace("axes:\n  ranks:\n  - 1\n  - 2\n", "axes:\n  ranks: layouts\n")
        path.write_text(text, encoding="utf-8")
        self.expect_refused("study", "runs/tiny", at=Path("layouts:1"))

    def test_a_deck_that_is_gone_bad_says_nothing_of_the_data(self) -> None:
        self.ran()
        for content in (b"{", b"data: [x]\n", b"data: 3\n", b"\xff"):
            Path("deck.yaml").write_bytes(content)
            self.assertEqual(self.expect_sound("report", "runs/tiny"), 0)

    def test_plots_and_reports_of_nothing(self) -> None:
        plots = [{"kind": kind, "name": kind, "x": "ranks", "y": ["step_seconds"], "where": {"ranks": 2}}
                 for kind in ("lines", "bars")]
        plots += [{"kind": kind} for kind in ("learning", "scaling", "sweep", "time")]
        self.write(axes={"ranks": [1, 2]}, plots=plots)
        self.run_study("--only", "ranks_1")
        for words in (("study",), ("report",)):
            code, out, err = run_command(*words, "runs/tiny")
            self.assertEqual((code, err), (0, ""))
            self.assertIn("note: plot bars is left out: no point of it has run\n", out)
            self.assertFalse(Path("runs/tiny/report/bars.png").exists())
        point = Path("runs/tiny/points/ranks_1/point.json")
        point.write_text(point.read_text(encoding="utf-8").replace('"ranks": "1"', '"ranks": "7"'), encoding="utf-8")
        for words in (("study",), ("report",)):
            code, out, err = run_command(*words, "runs/tiny")
            self.assertEqual((code, err), (0, ""))
            self.assertIn("note: ranks_1 is no point of the study any more; left out\n", out)

    def test_a_mode_that_no_point_measured(self) -> None:
        place = self.ran(axes={"model.context": [8, 16]}, base=None, set={"mode": "all"},
                         plots=[{"kind": "bars", "x": "mode", "y": ["step_seconds"]}])
        for path in place.parent.glob("*/bench.json"):
            content = json.loads(path.read_text(encoding="utf-8"))
            del content["modes"]["forward"]
            path.write_text(json.dumps(content), encoding="utf-8")
        self.assertEqual(self.expect_sound("report", "runs/tiny"), 0)


class Runs(DamagedTest):
    def setUp(self) -> None:
        super().setUp()
        self.run_folder = self.folder / "run"
        write_deck(self.run_folder)
        write_scaled(self.run_folder, (1, 1, 1, 1), {"forward": 30.0, "backward": 60.0})
        self.rows = [metrics_row(step) for step in range(1, 51)]
        self.metrics = self.run_folder / "metrics.jsonl"
        write_metrics(self.run_folder, self.rows)

    def expect_all(self, *names: str) -> None:
        for name in names:
            options = [] if name == "summary" else ["--output", self.output]
            options += ["--base", "run"] if name == "quantization" else []
            self.expect_sound(name, self.run_folder, *options, at=self.run_folder)

    def test_lines_that_are_no_json(self) -> None:
        for content in NO_JSON:
            with self.subTest(content=content[:10]):
                self.metrics.write_bytes(content + b"\n" + b'{"step": 2, "loss": 1.0}\n')
                self.expect_all("summary", "sweep")
                self.metrics.write_bytes(b'{"step": 2, "loss": 1.0}\n' + content + b"}\n")
                self.expect_all("summary", "report")

    def test_values_of_every_kind(self) -> None:
        for key in (*self.rows[-1], "top1", "validation_top1", "images_per_second", "mfu", "spike", "memory_peak_bytes"):
            for value in VALUES:
                with self.subTest(key=key, value=str(value)[:20]):
                    write_metrics(self.run_folder, [*self.rows[:-1], self.rows[-1] | {key: value}])
                    self.expect_all("summary")
        for key, value in (("loss", "1.0"), ("validation_loss", "1.0"), ("step", True), ("step", 10 ** 200), ("tokens", [1])):
            write_metrics(self.run_folder, [*self.rows[:-1], self.rows[-1] | {key: value}])
            self.expect_refused("learning", self.run_folder, at=self.metrics)

    def test_numbers_of_decks(self) -> None:
        sizes = {"model__heads": 2, "model__kv_heads": 2, "model__ffn_width": 8, "model__vocabulary": 8,
                 "model__position": "rope", "model__norm": "rmsnorm", "model__norm_place": "pre", "model__activation": "gelu", "model__bias": "false",
                 "model__tie_embeddings": "true", "timing__every": 1}
        run = Run(self.run_folder, "run")
        for key in ("timing__every", "train__steps", "model__heads", "model__layers", "model__context", "train__global_batch",
                    "train__microbatch", "adapter__rank"):
            for value in ("x", "0", "-1", "1e999", "9" * 5000, "\x1b"):
                with self.subTest(key=key, value=value[:20]):
                    write_start_deck(self.run_folder, 1, **sizes | {key: value})
                    for read in (lambda: read_points([run]), lambda: read_rows([str(self.run_folder)]),
                                 lambda: optimization_sections(read_cases(run, 5)[0])):
                        with contextlib.suppress(UserError):
                            read()
        write_start_deck(self.run_folder, 1, model__context="9" * 5000)
        self.expect_refused("report", self.run_folder, at=self.run_folder / "deck.yaml")

    def test_nothing_that_can_be_drawn(self) -> None:
        for rows in ([{"step": 1}], [row | {"perplexity": 1e308, "loss": 1e300} for row in self.rows],
                     [{"step": 1, "loss": 2.0, "perplexity": 1e308}, {"step": 2, "loss": 900.0}]):
            write_metrics(self.run_folder, rows)
            self.expect_all("summary", "learning", "quantization", "sweep")


class Others(DamagedTest):
    def test_files_of_comparisons(self) -> None:
        path = self.folder / "file"
        for content in NO_JSON:
            path.write_bytes(content + b"\n")
            with self.subTest(content=content[:10]), self.assertRaises(UserError):
                read_lines(path)
            if content != b"{}":
                path.write_bytes(len(content).to_bytes(8, "little") + content)
                with self.subTest(content=content[:10]), self.assertRaises(UserError):
                    read_safetensors(path)

    def test_json_that_users_name(self) -> None:
        path = self.folder / "set.json"
        for content in NO_JSON:
            with self.subTest(content=content[:10]):
                path.write_bytes(content)
                self.expect_refused("memory", path, "--output", self.output, at=path)
                self.expect_refused("quantization", path, "--output", self.output, at=path)
                self.expect_refused("images", "--samples", self.folder, "--output", self.folder / "a.png", at=path)
                self.expect_refused("published", "--machine", path, at=path)


if __name__ == "__main__":
    unittest.main()
