#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Conversations: POST /v1/chat/completions of a server, `serve --follow` and `chat` in a terminal."""

import concurrent.futures
import contextlib
import json
import os
import pty
import shutil
import signal

import serve_test
import support

PATH = "/v1/chat/completions"
PLAIN = ("--chat-template", "plain")
HEADERS = {"Content-Type": "application/json"}


def user(*texts):
    """Messages of user and assistant in turn."""
    return [{"role": role, "content": text} for role, text in zip(("user", "assistant") * 9, texts)]


def plain(*texts):
    """Their prompt in the plain form."""
    words = {"user": "User: TEXT\n\n", "assistant": "Assistant: TEXT<|endoftext|>\n\n"}
    return "".join(words[each["role"]].replace("TEXT", each["content"]) for each in user(*texts)) + "Assistant:"


class Chats(support.Case):
    """A model that has seen a little English, asked as OpenAI's clients do."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("run", "train.steps=20", "model.context=128")
        cls.server = serve_test.Server(cls, *PLAIN)

    @classmethod
    def tearDownClass(cls):
        cls.server.kill()
        super().tearDownClass()

    def ask(self, *texts, server=None, **fields):
        """The answer to a conversation that must be taken."""
        status, found = (server or self.server).post(PATH, messages=user(*texts), **fields)
        self.assertEqual(status, 200, found)
        return found

    def completed(self, *texts, **fields):
        """What the model says to the prompt of a conversation."""
        return self.server.complete(prompt=plain(*texts), **fields)["choices"]

    def stream(self, *texts, **fields):
        """The objects of a streamed answer."""
        return self.server.pieces(PATH, messages=user(*texts), **fields)

    def test_an_answer_is_what_follows_the_prompt_of_the_template(self):
        for texts in (("The red",), ("The", " red", "cow")):
            for fields in ({"temperature": 0}, {"seed": 5, "top_p": 0.9}):
                expected = self.completed(*texts, max_tokens=20, **fields)[0]
                found = self.ask(*texts, max_tokens=20, **fields)

                self.assertEqual(found["choices"][0]["message"], {"role": "assistant", "content": expected["text"].removeprefix(" ")})
                self.assertEqual(found["choices"][0]["finish_reason"], expected["finish_reason"])
                self.assertIsNone(found["choices"][0]["logprobs"])
                self.assertEqual((found["object"], found["model"]), ("chat.completion", "tiny"))
                self.assertTrue(found["id"].startswith("chatcmpl-"))
                prompt = len(plain(*texts).replace("<|endoftext|>", "."))
                self.assertEqual(found["usage"], {"prompt_tokens": prompt, "completion_tokens": 20, "total_tokens": prompt + 20})

    def test_a_stream_begins_with_the_role_and_ends_with_the_reason(self):
        fields = {"max_tokens": 12, "seed": 2, "n": 3}
        whole = self.ask("The", **fields)
        pieces = self.stream("The", **fields, stream_options={"include_usage": True})

        self.assertEqual(pieces[-1]["usage"], whole["usage"])
        self.assertEqual(pieces[-1]["choices"], [])
        self.assertEqual({piece["object"] for piece in pieces}, {"chat.completion.chunk"})
        self.assertEqual(len({piece["id"] for piece in pieces}), 1)
        for choice in whole["choices"]:
            mine = [piece["choices"][0] for piece in pieces[:-1] if piece["choices"][0]["index"] == choice["index"]]
            self.assertEqual(mine[0]["delta"], {"role": "assistant", "content": ""})
            self.assertEqual("".join(each["delta"]["content"] for each in mine[:-1]), choice["message"]["content"])
            self.assertEqual({each["finish_reason"] for each in mine[:-1]}, {None})
            self.assertEqual((mine[-1]["delta"], mine[-1]["finish_reason"]), ({}, choice["finish_reason"]))
        self.assertEqual(sum("role" in piece["choices"][0]["delta"] for piece in pieces[:-1]), 3)

    def test_stop_texts_end_an_answer(self):
        text = self.completed("The", max_tokens=20, temperature=0)[0]["text"].removeprefix(" ")
        stop = text[5:8]
        cut = text[:text.index(stop)]
        for stops in (stop, ["never there", stop]):
            found = self.ask("The", max_tokens=20, temperature=0, stop=stops)["choices"][0]
            self.assertEqual((found["message"]["content"], found["finish_reason"]), (cut, "stop"))
            pieces = self.stream("The", max_tokens=20, temperature=0, stop=stops)
            self.assertEqual("".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces), cut)
            self.assertEqual(pieces[-1]["choices"][0]["finish_reason"], "stop")

    def test_the_end_of_a_turn_ends_an_answer(self):
        (self.folder / "chats.jsonl").write_text(json.dumps({"messages": user("a", "b")}) + "\n", encoding="utf-8")
        result = self.run_program("tokenize", "--chat", "chats.jsonl", "--vocab", "bytes", *PLAIN, "--output", "chats.h5")
        self.assertEqual(result.code, 0, result.err)
        self.train("answers", "train.steps=60", "data.train=[chats.h5]", "data.validation=[]", "train.validate_every=0",
                   "data.loss_mask=true", "data.packing=best_fit", "data.documents=masked", "data.end_token=256",
                   "data.predict_starts=false", "train.global_batch=1")
        server = serve_test.Server(self, *PLAIN, run="answers")
        self.addCleanup(server.kill)

        found = self.ask("a", server=server, temperature=0, logprobs=True)
        self.assertEqual(found["choices"][0]["message"]["content"], "b")
        self.assertEqual(found["choices"][0]["finish_reason"], "stop")
        self.assertEqual([each["token"] for each in found["choices"][0]["logprobs"]["content"]], [" ", "b", "<|endoftext|>"])
        talked = self.run_program("chat", "--checkpoint", "answers", *PLAIN, "--temperature", 0, typed=b"a\na\n")
        self.assertEqual((talked.code, talked.out.splitlines()[0]), (0, "b"), talked.err)

    def test_log_probabilities_are_those_of_completions(self):
        expected = self.completed("The", max_tokens=6, temperature=0, logprobs=2)[0]["logprobs"]
        found = self.ask("The", max_tokens=6, temperature=0, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
        streamed = self.stream("The", max_tokens=6, temperature=0, logprobs=True, top_logprobs=2)

        self.assertEqual([each["token"] for each in found], expected["tokens"])
        self.assertEqual([bytes(each["bytes"]).decode() for each in found], expected["tokens"])
        for one, own, top in zip(found, expected["token_logprobs"], expected["top_logprobs"]):
            self.assertAlmostEqual(one["logprob"], own, places=4)
            self.assertEqual(len(one["top_logprobs"]), 2)
            for each in one["top_logprobs"]:
                self.assertAlmostEqual(each["logprob"], top[each["token"]], places=4)
        content = [each for piece in streamed for each in (piece["choices"][0]["logprobs"] or {}).get("content", [])]
        self.assertEqual([each["token"] for each in content], expected["tokens"])

    def test_an_answer_may_fill_the_context(self):
        prompt = len(plain("The"))
        found = self.ask("The", ignore_eos=True)
        self.assertEqual(found["usage"]["total_tokens"], 129)
        self.assertEqual(found["choices"][0]["finish_reason"], "length")
        for name in ("max_tokens", "max_completion_tokens"):
            self.assertEqual(self.ask("The", ignore_eos=True, **{name: 3})["usage"]["completion_tokens"], 3)
            status, refused = self.server.post(PATH, messages=user("The"), **{name: 128 + 2 - prompt})
            self.assertEqual((status, refused["error"]["param"]), (400, "messages"))

    def test_the_prompt_of_a_chat_is_tokenized(self):
        found = self.server.post("/tokenize", messages=user("The", "red", "cow"))[1]["tokens"]
        self.assertEqual(found, self.server.post("/tokenize", prompt=plain("The", "red", "cow"))[1]["tokens"])
        for fields in ({"messages": []}, {"messages": user("a"), "prompt": "a"}, {"messages": user("a"), "parse_special": False}):
            self.assertEqual(self.server.post("/tokenize", **fields)[0], 400)

    def test_names_of_special_tokens_are_text(self):
        self.assertEqual(self.ask("<|endoftext|>", max_tokens=1)["usage"]["prompt_tokens"], len(plain("<|endoftext|>")))

    def test_what_cannot_be_answered_gets_one_clear_error(self):
        good = json.dumps({"messages": user("a")})
        deep = '{"messages": ' + "[" * 100_000 + "]" * 100_000 + "}"
        for body, status, words in (
                ("{", 400, "no valid JSON"), ("[]", 400, "no object"), (deep, 400, "nested more than 64 deep"),
                (b'{"messages": [{"role": "user", "content": "\xff"}]}', 400, "no valid JSON"),
                ("{}", 400, "messages is missing"), ('{"messages": []}', 400, "no messages"), ('{"messages": {}}', 400, "list"),
                ('{"messages": [1]}', 400, "message 1 must be an object"),
                ('{"messages": [{"role": "boss", "content": "a"}]}', 400, "expected system, user, assistant or tool, found 'boss'"),
                ('{"messages": [{"role": "user"}]}', 400, "message 1: content must be a text"),
                ('{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', 400, "parts of the type text"),
                (json.dumps({"messages": user("a" * 100_000)}), 400, "bytes"),
                (json.dumps({"messages": user("a" * 200)}), 400, "218 tokens"),
                (json.dumps({"messages": user("a" * (5 << 20))}), 413, ""),
                (good[:-1] + ', "messages": []}', 400, "stands twice"), (good[:-1] + ', "prompt": "a"}', 400, "no field 'prompt'"),
                (good[:-1] + ', "tools": [{"type": "function"}]}', 400, "no chat template here writes the descriptions of tools"),
                (good[:-1] + ', "model": "other"}', 404, "this server has 'tiny'"),
                (good[:-1] + ', "top_logprobs": 2}', 400, "logprobs"), (good[:-1] + ', "n": 0}', 400, "n: expected")):
            with self.subTest(body[:60]):
                found = self.server.ask("POST", PATH, body)
                self.assertEqual(found[0], status, found)
                self.assertIn(words, json.loads(found[2])["error"]["message"])
        self.assertEqual(self.server.ask("GET", PATH)[0], 405)
        self.assertEqual(self.server.ask("POST", PATH, good, {"Content-Type": "text/plain"})[0], 415)
        self.assertEqual(len(self.ask("a", max_tokens=1)["choices"]), 1)

    def test_without_a_template_chats_alone_are_refused(self):
        server = serve_test.Server(self)
        self.addCleanup(server.kill)

        self.assertIn("/v1/chat/completions is refused: ", server.log)
        status, found = server.post(PATH, messages=user("a"))
        self.assertEqual(status, 400)
        for words in ("no chat template", "--chat-template", "plain"):
            self.assertIn(words, found["error"]["message"])
        self.assertNotIn("render", found["error"]["message"])
        self.assertEqual(len(server.complete(prompt="a", max_tokens=1)["choices"]), 1)
        for name, words in (("rendered", "another program"), ("chatml", "<|im_start|>"), ("x", "expected one of chatml")):
            result = self.run_program("serve", "--checkpoint", "run", "--chat-template", name)
            self.assertIn(result.code, (2, 3), result.err)
            self.assertIn(words, result.err)

    def test_many_at_once_get_what_each_gets_alone(self):
        texts = [support.text()[i:i + 1 + i % 20] for i in range(64)]
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            together = list(pool.map(lambda i: self.ask(texts[i], max_tokens=10, seed=i)["choices"], range(64)))

        self.assertEqual(together, [self.ask(text, max_tokens=10, seed=i)["choices"] for i, text in enumerate(texts)])


class Follow(support.Case):
    """A server of a run that goes on."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("run", "train.steps=40", "checkpoint.every=10", "checkpoint.keep=all")

    def publish(self, folder, step, whole=True):
        """Puts a step of the run into a directory as the program does."""
        checkpoints = self.folder / folder / "checkpoints"
        checkpoints.mkdir(parents=True, exist_ok=True)
        name = f"step_{step:08d}"
        shutil.rmtree(checkpoints / name, ignore_errors=True)
        shutil.copytree(self.folder / "run/checkpoints" / name, checkpoints / (name + ".tmp"))
        if not whole:
            support.flip_byte(checkpoints / (name + ".tmp"), "model/head.weight")
        (checkpoints / (name + ".tmp")).rename(checkpoints / name)
        (checkpoints / "latest.tmp").write_text(name + "\n", encoding="utf-8")
        (checkpoints / "latest.tmp").rename(checkpoints / "latest")

    def follow(self, folder, *options, ranks=0):
        """A server that follows a run."""
        server = serve_test.Server(self, "--follow", folder, *options, run=None, ranks=ranks)
        self.addCleanup(server.kill)
        return server

    def read_until(self, server, words):
        """The line of the log with these words."""
        for line in iter(server.process.stderr.readline, b""):
            server.log += line.decode()
            if words in line.decode():
                return line.decode()
        raise AssertionError(f"no '{words}': {server.log}")

    def text_of(self, server, **fields):
        """The likeliest text after a prompt."""
        return server.complete(prompt="The red", max_tokens=20, temperature=0, **fields)["choices"][0]["text"]

    def generated(self, step, *options, run="run"):
        """That of a step by `generate`."""
        result = self.run_program("generate", "--checkpoint", f"{run}/checkpoints/step_{step:08d}", "--json", "texts.jsonl", "--prompt", "The red",
                                  "--max-tokens", 20, "--temperature", 0, *options)
        self.assertEqual(result.code, 0, result.err)
        return json.loads((self.folder / "texts.jsonl").read_text(encoding="utf-8"))["text"]

    def test_answers_are_those_of_the_newest_checkpoint(self):
        texts = [self.generated(step) for step in (10, 20, 40)]
        self.assertEqual(len(set(texts)), 3)
        for ranks in (0, 2):
            folder = f"followed_{ranks}"
            self.publish(folder, 10)
            server = self.follow(folder, ranks=ranks)
            self.assertEqual(self.text_of(server), texts[0])
            for step, text in zip((20, 40, 10), (*texts[1:], texts[0])):  # a run may also go back
                self.publish(folder, step)
                self.read_until(server, f"answers that begin now are those of step {step} (")
                self.assertEqual(self.text_of(server), text)
            server.end(signal.SIGUSR1)

    def test_an_answer_in_progress_is_finished_with_the_checkpoint_before(self):
        self.publish("busy", 10)
        server = self.follow("busy")
        fields = {"prompt": "The red", "max_tokens": 25, "temperature": 0, "ignore_eos": True}
        expected = server.complete(**fields)["choices"][0]["text"]
        with contextlib.closing(server.connect()) as connection:
            connection.request("POST", "/v1/completions", json.dumps({**fields, "n": 512, "stream": True}), HEADERS)
            response = connection.getresponse()
            events = response.readline()
            self.publish("busy", 40)
            events += response.read()
        texts = [""] * 512
        for event in events.decode().split("\n\n")[:-2]:
            choice = json.loads(event.removeprefix("data: "))["choices"][0]
            texts[choice["index"]] += choice["text"]
        self.assertEqual(set(texts), {expected})
        self.read_until(server, "those of step 40 (")
        self.assertNotEqual(server.complete(**fields)["choices"][0]["text"], expected)

    def test_a_broken_checkpoint_is_told_and_passed_over(self):
        self.publish("broken", 10)
        server = self.follow("broken")
        before = self.text_of(server)
        self.publish("broken", 20, whole=False)
        line = self.read_until(server, "is not used, and the one before it stays")
        self.assertIn("step_00000020", line)
        self.assertEqual(self.text_of(server), before)
        checkpoints = self.folder / "broken/checkpoints"
        support.cut(checkpoints / "step_00000020/manifest.json", 20)
        (checkpoints / "latest").write_text("step_00000020\n", encoding="utf-8")
        self.read_until(server, "checkpoint step_00000020 is not used: ")
        self.assertEqual(self.text_of(server), before)
        self.publish("broken", 40)
        self.read_until(server, "those of step 40 (")
        self.assertEqual(self.text_of(server), self.generated(40))
        code, log = server.end()
        self.assertEqual(code, 0, log)

    def test_a_checkpoint_of_another_model_is_told_and_passed_over(self):
        self.train("other", "train.steps=10", "model.layers=1")
        self.publish("changed", 10)
        server = self.follow("changed")
        before = self.text_of(server)
        shutil.rmtree(self.folder / "changed/checkpoints")
        shutil.copytree(self.folder / "other/checkpoints", self.folder / "changed/checkpoints")
        self.read_until(server, "is not used, and the one before it stays")
        self.assertEqual(self.text_of(server), before)

    def test_a_run_that_trains_is_followed(self):
        self.train("trained", "train.steps=10", "schedule.name=constant")
        server = self.follow("trained")
        before = self.text_of(server)
        self.train("trained", "train.steps=20", "schedule.name=constant", "checkpoint.keep=2")
        self.read_until(server, "those of step 20 (")
        self.assertNotEqual(self.text_of(server), before)

    def test_averages_are_followed(self):
        averages = ("schedule.name=constant", "optimizer.ema_decay=0.9")
        self.train("averaged", "train.steps=10", *averages)
        server = self.follow("averaged", "--ema")
        self.train("averaged", "train.steps=20", *averages)
        self.read_until(server, "those of step 20 (")
        self.assertEqual(self.text_of(server), self.generated(20, "--ema", run="averaged"))
        self.assertNotEqual(self.text_of(server), self.generated(20, run="averaged"))

    def test_adapters_are_followed(self):
        adapter = ("adapter.rank=2", "checkpoint.initial=run/checkpoints/step_00000040", "schedule.name=constant", "optimizer.lr=0.05")
        self.train("tuned", "train.steps=10", *adapter)
        server = self.follow("tuned")
        before = self.text_of(server)
        self.train("tuned", "train.steps=20", *adapter)
        self.read_until(server, "those of step 20 (")
        self.assertNotEqual(self.text_of(server), before)

    def test_what_cannot_be_followed(self):
        for options, words in ((("--follow", "run", "--checkpoint", "run"), "--follow does not go with --checkpoint"), ((), "--checkpoint or --follow is missing"),
                               (("--follow", "run/checkpoints/step_00000010"), "found the folder of one step")):
            self.assert_refused(self.run_program("serve", *options), 2, words)
        self.assert_refused(self.run_program("serve", "--follow", "none"), 4, "none: there is no such folder")


class Terminal(support.Case):
    """`chat` with messages from a pipe, and of a person."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("run", "train.steps=20", "model.context=128")
        cls.train("long", "train.steps=1", "model.context=2048", "schedule.warmup_steps=0", "train.global_batch=1", "data.train=[synthetic]",
                  "train.validate_every=0", "data.validation=[]")

    def talk(self, typed, *options, run="run", ranks=0):
        """Lines of answers, and of what is told."""
        result = self.run_program("chat", "--checkpoint", run, *PLAIN, *options, typed=typed, ranks=ranks)
        self.assertEqual(result.code, 0, result.err)
        return result.out, result.err

    def completed(self, prompt, count):
        """What `generate` adds to a prompt, without the space before an answer."""
        result = self.run_program("generate", "--checkpoint", "run", "--json", "texts.jsonl", "--prompt", prompt, "--max-tokens", count,
                                  "--temperature", 0, "--parse-special")
        self.assertEqual(result.code, 0, result.err)
        return json.loads((self.folder / "texts.jsonl").read_text(encoding="utf-8"))["text"].removeprefix(" ")

    def test_answers_continue_the_conversation(self):
        for ranks in (0, 2):
            out, err = self.talk(b"The red\n\ncow\n/reset\nThe red", "--temperature", 0, "--max-tokens", 9, ranks=ranks)
            first = self.completed(plain("The red"), 9)
            second = self.completed(plain("The red", first, "cow"), 9)
            self.assertEqual(out, f"{first}\n{second}\n{first}\n")
            self.assertEqual(err.count("the answer ends at --max-tokens"), 3)

    def test_a_system_message_stands_first(self):
        out, _ = self.talk(b"The\n/reset\nThe\n", "--system", "Be red.", "--temperature", 0, "--max-tokens", 9)
        expected = self.completed("System: Be red.\n\n" + plain("The"), 9)
        self.assertEqual(out, f"{expected}\n{expected}\n")

    def test_the_oldest_turns_go_when_the_context_is_full(self):
        messages = ["The red cow", "The old hen", "The wet dog", "The new cat"]
        out, err = self.talk("\n".join(messages).encode(), "--temperature", 0, "--max-tokens", 20)
        self.assertEqual(err.count("the context of 128 tokens is full: from now on the oldest turns are left out"), 1)
        lines = out.split("\n")
        self.assertGreaterEqual(len(lines), 4)
        _, err = self.talk(b"a" * 150 + b"\nThe\n", "--temperature", 0)
        self.assertIn("a message of 168 tokens", err)
        self.assertIn("the answer ends as the context of 128 tokens is full", err)

    def test_commands_and_lines_that_are_no_messages(self):
        out, err = self.talk(b"/help\n/nothing\n\xff\xfe\n" + b"a" * (2 << 20) + b"\n//red\n/quit\nThe\n", "--temperature", 0, "--max-tokens", 5)
        self.assertIn("/reset  begins another conversation", err)
        self.assertIn("there is no command '/nothing'", err)
        self.assertIn("a message that is no UTF-8 is left out", err)
        self.assertIn("a message of more than 1048576 bytes is left out", err)
        self.assertEqual(out, self.completed(plain("/red"), 5) + "\n")

    def test_options_that_cannot_be(self):
        for options, words in ((("--temperature", -1), "--temperature"), (("--max-tokens", 0), "--max-tokens"), (("--chat-template", "rendered"), "another program"),
                               (("--chat-template", "chatml"), "<|im_start|>"), ((), "--chat-template")):
            result = self.run_program("chat", "--checkpoint", "run", *(PLAIN if "--chat-template" not in options and options else ()), *options, typed=b"")
            self.assertIn(result.code, (2, 3), result.err)
            self.assertIn(words, result.err)

    def typed_to(self, *options):
        """The program in a terminal: process and the terminal's other end."""
        ours, theirs = pty.openpty()
        process = self.start("chat", "--checkpoint", "long", *PLAIN, "--stop-token", -1, *options, stdin=theirs, stdout=theirs, start_new_session=True)
        os.close(theirs)
        self.addCleanup(os.close, ours)
        self.addCleanup(process.stderr.close)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process, ours

    def read_until(self, ours, words):
        """What the terminal shows up to these words."""
        found = b""
        while words not in found:
            found += os.read(ours, 4096)
        return found

    def test_an_interrupt_stops_an_answer_and_at_the_prompt_ends(self):
        process, ours = self.typed_to()
        self.read_until(ours, b"> ")
        for _ in range(2):
            os.write(ours, b"The\n")
            self.read_until(ours, b"\n")
            self.assertGreater(len(os.read(ours, 4)), 0)
            process.send_signal(signal.SIGINT)
            self.read_until(ours, b"\n> ")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(30), 0)
        err = process.stderr.read().decode()
        self.assertEqual(err.count("stopped\n"), 2, err)

    def test_an_end_of_input_and_control_characters(self):
        process, ours = self.typed_to("--max-tokens", 300)
        self.read_until(ours, b"> ")
        os.write(ours, b"The\n")
        self.read_until(ours, b"\n")
        found = self.read_until(ours, b"\n> ")
        self.assertFalse(set(found) & {*range(0, 9), *range(14, 32)}, found)
        os.write(ours, b"\x04")
        self.assertEqual(process.wait(30), 0)


if __name__ == "__main__":
    support.main()
