#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tokenize, checkpoint info and checkpoint verify."""

import json
import struct

import support

TENSOR = "model/blocks.1.mlp.up.weight"


class Tokenize(support.Case):
    """Text to token files and back into training."""

    def tokenize(self, output, *inputs):
        """Tokenizes with the bytes vocabulary."""
        result = self.run_program("tokenize", "--vocab", "bytes", "--input", *inputs, "--output", output)
        self.assertEqual(result.code, 0, result.err)
        return result

    def test_bytes_become_ids_and_files_end_documents(self):
        self.tokenize("out.bin", "text.txt", "text.txt")

        data = (self.folder / "out.bin").read_bytes()
        document = [*support.text().encode(), 256]
        self.assertEqual(struct.unpack("<3i", data[:12]), (20240520, 1, 2 * len(document)))
        self.assertEqual(list(struct.unpack(f"<{2 * len(document)}H", data[1024:])), 2 * document)

    def test_a_line_ends_a_document(self):
        (self.folder / "two.txt").write_text("one\n<|endoftext|>\ntwo\n", encoding="utf-8")

        self.tokenize("two.bin", "two.txt")

        ids = (self.folder / "two.bin").read_bytes()[1024:]
        found = struct.unpack(f"<{len(ids) // 2}H", ids)
        self.assertEqual(found.count(256), 2)
        self.assertEqual(bytes(i for i in found if i != 256).split(), [b"one", b"two"])

    def test_a_separator_ends_a_document(self):
        (self.folder / "parts.txt").write_bytes(b"one\0two\0")

        result = self.run_program("tokenize", "--vocab", "bytes", "--input", "parts.txt", "--output", "parts.bin",
                                  "--document-separator", r"\x00")

        self.assertEqual(result.code, 0, result.err)
        ids = (self.folder / "parts.bin").read_bytes()[1024:]
        self.assertEqual(list(struct.unpack("<8H", ids)), [*b"one", 256, *b"two", 256])

    def test_a_vocabulary_smaller_than_asked_for_is_said(self):
        (self.folder / "aaaa.txt").write_text("aaaa", encoding="utf-8")

        result = self.run_program("tokenize", "--train-vocab", 400, "--input", "aaaa.txt", "--output-vocab", "aaaa")

        self.assertEqual(result.code, 0, result.err)
        self.assertIn("aaaa: a vocabulary of 259", result.out)
        self.assertIn("the vocabulary has 259 ids, not the 400 of --train-vocab", result.err)
        self.assertEqual(len((self.folder / "aaaa/merges.txt").read_text(encoding="utf-8").splitlines()), 3)

    def test_special_tokens_of_the_vocabulary_stand_around_documents(self):
        support.write_vocabulary(self.folder / "bos", 300)
        config = {"add_bos_token": True, "bos_token": "!!"}
        (self.folder / "bos/tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        (self.folder / "two.txt").write_text("a\n<|endoftext|>\nb", encoding="utf-8")
        vocabulary = json.loads((self.folder / "bos/vocab.json").read_text(encoding="utf-8"))
        bos, end, a, b, line = (vocabulary[name] for name in ("!!", "<|endoftext|>", "a", "b", "\u010a"))

        for options, before in (((), [bos]), (("--no-special-tokens",), [])):
            result = self.run_program("tokenize", "--vocab", "bos", "--input", "two.txt", "--output", "two.bin", *options)
            self.assertEqual(result.code, 0, result.err)
            ids = (self.folder / "two.bin").read_bytes()[1024:]
            self.assertEqual(list(struct.unpack(f"<{len(ids) // 2}H", ids)), [*before, a, line, end, *before, b, end])
            back = self.run_program("tokenize", "--decode", "--vocab", "bos", "--input", "two.bin")
            self.assertEqual(back.out, "a\n<|endoftext|>\nb")

    def test_tokens_come_back_as_bytes(self):
        data = bytes(range(256)) * 3 + "é😀 שלום\n".encode() + b"\xff\xfe"
        (self.folder / "any.dat").write_bytes(data)
        for name in ("any.bin", "any.npy", "any.h5"):
            self.tokenize(name, "any.dat")
            decode = ("tokenize", "--decode", "--vocab", "bytes", "--input", name)
            self.assertEqual(self.run_program(*decode).raw, data)
            result = self.run_program(*decode, "--output", "back.dat")
            self.assertEqual(result.code, 0, result.err)
            self.assertEqual((self.folder / "back.dat").read_bytes(), data)

    def test_every_format_trains_alike(self):
        losses = []
        for name in ("same.bin", "same.npy", "same.h5"):
            self.tokenize(name, "text.txt")
            run = f"run_{name[5:]}"
            self.train(run, f"data.train=[{name}]", "train.steps=5", ranks=2)
            losses.append(support.column(self.folder / run, "loss"))

        self.assertEqual(losses[1:], losses[:1] * 2)

    def test_refusals_leave_nothing_behind(self):
        common = ("tokenize", "--vocab", "bytes")
        cases = [
            (2, ["--vocab"], ("tokenize", "--input", "text.txt", "--output", "x.bin")),
            (3, ["none.txt"], (*common, "--input", "none.txt", "--output", "x.bin")),
            (3, ["nowhere"], ("tokenize", "--vocab", "nowhere", "--input", "text.txt", "--output", "x.bin")),
            (3, ["empty.txt", "empty"], (*common, "--input", "empty.txt", "--output", "x.bin")),
            (3, [".", "directory"], (*common, "--input", ".", "--output", "x.bin")),
            (2, ["--document-separator"], (*common, "--input", "text.txt", "--output", "x.bin",
                                           "--document-separator", "")),
            (2, ["--special"], (*common, "--decode", "--input", "text.bin", "--special", "<a>")),
            (3, ["text.txt"], (*common, "--decode", "--input", "text.txt", "--output", "x.txt")),
            (5, ["none/x.txt"], (*common, "--decode", "--input", "text.bin", "--output", "none/x.txt")),
            (5, ["text.txt/x.bin"], (*common, "--input", "text.txt", "--output", "text.txt/x.bin")),
        ]
        (self.folder / "empty.txt").write_bytes(b"")
        before = support.snapshot(self.folder)
        for code, words, arguments in cases:
            with self.subTest(arguments=arguments):
                self.assert_refused(self.run_program(*arguments), code, *words)
        self.assertEqual(support.snapshot(self.folder), before)

    def test_two_ranks_are_refused(self):
        result = self.run_program("tokenize", "--vocab", "bytes", "--input", "text.txt", "--output", "x.bin",
                                  ranks=2)

        self.assert_refused(result, 2, "one rank")


class Checkpoint(support.Case):
    """A checkpoint of two ranks, sound and damaged in every way."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("run", ranks=2)

    def damaged(self, name):
        """A copy of the last step to damage."""
        return self.copy_of("run", name) / "checkpoints/step_00000020"

    def verify(self, folder):
        """Result of `checkpoint verify`, which must not change anything."""
        before = support.snapshot(folder)
        result = self.run_program("checkpoint", "verify", folder)
        self.assertEqual(support.snapshot(folder), before)
        self.assertLess(result.seconds, 10)
        return result

    def test_sound(self):
        result = self.run_program("checkpoint", "verify", "run/checkpoints/step_00000010", "run/checkpoints")

        self.assertEqual(result.code, 0, result.err)
        self.assertEqual([line.split(":")[0] for line in result.out.splitlines()],
                         ["run/checkpoints/step_00000010", "run/checkpoints/step_00000020"])

    def test_info_reports_what_is_in_it(self):
        result = self.run_program("checkpoint", "info", "run/checkpoints")

        self.assertEqual(result.code, 0, result.err)
        for word in ("step_00000020", "data 2 x tensor 1 x pipeline 1", TENSOR, "(128, 32)"):
            self.assertIn(word, result.out)
        self.assertRegex(result.out, r"(?m)^tokens +7680$")

    def test_a_flipped_byte_of_a_tensor_is_named(self):
        folder = self.damaged("flipped")
        support.flip_byte(folder, TENSOR)

        result = self.verify(folder)

        self.assertEqual((result.code, result.out), (4, ""))
        problem, advice = result.err.splitlines()
        self.assertIn(TENSOR, problem)
        self.assertRegex(advice, r"^hyperslab: .*step_\d{8}: the checkpoint is damaged; remove this folder")

    def test_a_flipped_byte_of_any_part_is_found(self):
        folder = self.damaged("anywhere")
        path = folder / "rank_00001.h5"
        sound = path.read_bytes()
        entry = next(file for file in support.manifest(folder)["files"] if file["name"] == path.name)
        parts = [(offset, size) for offset, size, _ in entry["structure"]]
        parts += support.pieces(folder, path.name)
        covered = bytearray(len(sound))
        for offset, size in parts:
            covered[offset:offset + size] = bytes([1]) * size
        self.assertEqual(set(byte for byte, part in zip(sound, covered) if not part), {0})

        for offset, size in parts[::8]:
            for index in (offset, offset + size - 1):
                with self.subTest(index=index):
                    damaged = bytearray(sound)
                    damaged[index] ^= 0x10
                    path.write_bytes(damaged)
                    self.assertEqual(self.verify(folder).code, 4)

    def test_of_many_problems_fifty_are_shown(self):
        folder = self.damaged("many")
        for number in range(2):
            path = folder / f"rank_{number:05d}.h5"
            data = bytearray(path.read_bytes())
            for offset, _ in support.pieces(folder, path.name):
                data[offset] ^= 1
            path.write_bytes(data)

        result = self.verify(folder)

        self.assertEqual(result.code, 4)
        lines = result.err.splitlines()
        self.assertEqual(len(lines), 52, result.err)
        self.assertRegex(lines[-2], r"^\.\.\. and \d+ more$")

    def test_a_truncated_file(self):
        folder = self.damaged("truncated")
        support.cut(folder / "rank_00001.h5", 9)

        self.assert_refused(self.verify(folder), 4, "rank_00001.h5", "bytes, expected")

    def test_a_missing_file(self):
        folder = self.damaged("missing")
        (folder / "rank_00000.h5").unlink()

        self.assert_refused(self.verify(folder), 4, "rank_00000.h5", "No such file")

    def test_a_changed_manifest(self):
        folder = self.damaged("changed")
        path = folder / "manifest.json"
        path.write_text(path.read_text().replace('"adam_step": 20', '"adam_step": 21'))

        self.assert_refused(self.verify(folder), 4, "manifest.json", "CRC32C")

    def test_a_truncated_manifest(self):
        folder = self.damaged("torn")
        support.cut(folder / "manifest.json", 100)

        self.assert_refused(self.verify(folder), 4, "manifest.json")

    def test_a_newer_format(self):
        folder = self.damaged("newer")
        content = support.manifest(folder)
        content["format"] = 99
        (folder / "manifest.json").write_text(json.dumps(content))

        self.assert_refused(self.verify(folder), 4, "format 99", "reads up to")

    def test_refusals(self):
        for code, words, arguments in [(2, ["ACTION"], ()), (2, ["DIR"], ("verify",)),
                                       (2, ["mend", "info", "verify"], ("mend", "run/checkpoints")),
                                       (4, ["nowhere"], ("verify", "nowhere")),
                                       (4, ["run/timing"], ("info", "run/timing"))]:
            with self.subTest(arguments=arguments):
                self.assert_refused(self.run_program("checkpoint", *arguments), code, *words)


if __name__ == "__main__":
    support.main()
