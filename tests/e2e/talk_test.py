#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Conversations: POST /v1/chat/completions of a server."""

import concurrent.futures
import json

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


if __name__ == "__main__":
    support.main()
