#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""serve: the answers are those of generate, and no client can stop it."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import time

import support

PROMPT = "The red "
HEAD = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
SECOND = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
# Statuses, and requests that get one of them and no other answer: what follows them is no request.
REFUSED = {
    "a long field behind the last chunk": ((431,), CHUNKED + b"0\r\nX: " + b"y" * 70000 + b"\r\n\r\n"),
    "a long name behind the last chunk": ((431,), CHUNKED + b"0\r\n" + b"y" * 70000 + b": x\r\n\r\n"),
    "a long extension of a chunk": ((431,), CHUNKED + b"1;a=" + b"y" * 70000 + b"\r\nx\r\n0\r\n\r\n"),
    "many extensions of chunks": ((431,), CHUNKED + (b"1;a=" + b"y" * 1000 + b"\r\nx\r\n") * 20 + b"0\r\n\r\n"),
    "many fields": ((431,), b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 100_000 + b"\r\n"),
    "a coding that is not known": ((400,), HEAD + b"Transfer-Encoding: xchunked\r\n\r\n"),
    "identity, chunked": ((400,), HEAD + b"Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n"),
    "gzip, chunked": ((400,), HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "gzip": ((400,), HEAD + b"Transfer-Encoding: gzip\r\n\r\n"),
    "two codings": ((400,), HEAD + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "a coding in a folded line": ((400,), HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"),
    "chunks in HTTP/1.0": ((400,), CHUNKED.replace(b"/1.1", b"/1.0") + b"0\r\n\r\n"),
    "a length and chunks": ((400,), HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "two lengths": ((400,), HEAD + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\nx"),
    "a list of lengths": ((400,), HEAD + b"Content-Length: 1, 1\r\n\r\nx"),
    "a length with a sign": ((400,), HEAD + b"Content-Length: +1\r\n\r\nx"),
    "a length beyond 64 bits": ((400,), HEAD + b"Content-Length: 18446744073709551617\r\n\r\nx"),
    "two hosts": ((400,), HEAD + b"Host: localhost\r\n\r\n"),
    "no host": ((400,), b"GET /health HTTP/1.1\r\n\r\n"),
    "a space before a colon": ((400,), HEAD + b"Content-Length : 1\r\n\r\nx"),
    "a chunk of no size": ((400,), CHUNKED + b"x\r\n\r\n"),
    "a size beyond 64 bits": ((400, 413), CHUNKED + b"11111111111111111\r\n"),
    "TLS": ((400,), bytes.fromhex("16030100c8010000c40303") + b"\x1b[31m" * 50),
}
# Choices of one request, which keep the model busy for a while.
BUSY = {"prompt": "a", "n": 1024, "max_tokens": 31, "ignore_eos": True}


class Server:
    """A server of a checkpoint, as a client sees it."""

    def __init__(self, case, *options, run="run", ranks=0):
        source = ("--checkpoint", run) if run else ()
        self.process = case.start("serve", *source, "--port", 0, *options, ranks=ranks)
        self.log = ""
        while "serving" not in self.log:
            line = self.process.stderr.readline().decode()
            if not line:
                raise AssertionError(f"no server: {self.log}")
            self.log += line
        self.port = int(re.search(r"http://\S+:(\d+)", self.log)[1])

    def connect(self):
        """A connection of HTTP."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(self, method, path, body=None, headers=None):
        """Status, headers and text of an answer."""
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read().decode()

    def post(self, path, **fields):
        """Status and object of an answer."""
        status, _, text = self.ask("POST", path, json.dumps(fields))
        return status, json.loads(text)

    def complete(self, **fields):
        """The object of a completion that must work."""
        status, found = self.post("/v1/completions", **fields)
        if status != 200:
            raise AssertionError(f"{status}: {found}")
        return found

    def pieces(self, path="/v1/completions", **fields):
        """The objects of a streamed answer."""
        status, headers, text = self.ask("POST", path, json.dumps({**fields, "stream": True}))
        if status != 200 or headers["Content-Type"] != "text/event-stream":
            raise AssertionError(f"{status}: {text}")
        events = text.split("\n\n")
        if events[-2:] != ["data: [DONE]", ""]:
            raise AssertionError(f"no end: {events[-2:]}")
        return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]

    def raw(self, data, wait=True):
        """What comes back for bytes until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as link:
            with contextlib.suppress(ConnectionError):
                link.sendall(data)
            found = b""
            with contextlib.suppress(ConnectionError):
                while wait and (more := link.recv(65536)):
                    found += more
            return found

    def resident_mib(self):
        """Memory of the process."""
        with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def end(self, number=signal.SIGTERM):
        """Asks it to stop; exit code and log."""
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, self.log + err.decode()

    def kill(self):
        """Whatever a test has met."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class Serve(support.Case):
    """A model that has seen a little English, served."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("run", "train.steps=30")
        cls.server = Server(cls)

    @classmethod
    def tearDownClass(cls):
        cls.server.kill()
        super().tearDownClass()

    def another(self, *options, run="run", ranks=0):
        """A server of this test's own."""
        server = Server(self, *options, run=run, ranks=ranks)
        self.addCleanup(server.kill)
        return server

    def generated(self, *options, prompts=(PROMPT,)):
        """What `generate` says."""
        words = [word for prompt in prompts for word in ("--prompt", prompt)]
        result = self.run_program("generate", "--checkpoint", "run/checkpoints", "--json", "report.json",
                                  *words, *options)
        self.assertEqual(result.code, 0, result.err)
        return json.loads((self.folder / "report.json").read_text(encoding="utf-8"))["completions"]

    def test_says_what_it_is(self):
        self.assertEqual(self.server.ask("GET", "/health")[::2], (200, '{"status":"ok"}\n'))
        model = json.loads(self.server.ask("GET", "/v1/models")[2])["data"][0]
        self.assertEqual((model["id"], model["max_model_len"]), ("tiny", 32))
        info = json.loads(self.server.ask("GET", "/tokenizer_info?x=1")[2])
        self.assertEqual((info["bos_token"], info["eos_token"], info["pad_token"]), (None, "<|endoftext|>", None))

    def test_tokens_are_named_as_the_vocabulary_does(self):
        (self.folder / "named").mkdir()
        (self.folder / "named/tokenizer.json").write_text(json.dumps(support.character_tokenizer()), encoding="utf-8")
        (self.folder / "named/tokenizer_config.json").write_text(json.dumps({"pad_token": "<unk>"}), encoding="utf-8")
        self.train("named_run", "train.steps=1", "data.vocabulary=named", "schedule.warmup_steps=0", "train.validate_every=0",
                   "data.train=[synthetic]", "data.validation=[]")
        server = self.another(run="named_run")

        info = json.loads(server.ask("GET", "/tokenizer_info")[2])

        self.assertEqual((info["bos_token"], info["eos_token"], info["pad_token"]), ("<s>", "</s>", "<unk>"))
        # As lm-evaluation-harness asks for their ids.
        for id_, name in enumerate(("<unk>", "<s>", "</s>")):
            self.assertEqual(server.post("/tokenize", prompt=name, add_special_tokens=False)[1]["tokens"], [id_])
        plain = server.post("/tokenize", prompt="<s>", add_special_tokens=False, parse_special=False)[1]["tokens"]
        self.assertEqual(server.post("/detokenize", tokens=plain)[1]["prompt"], "<s>")
        self.assertGreater(len(plain), 1)

    def test_a_single_word_token_leaves_special_tokens_text(self):
        tokenizer = support.character_tokenizer()
        tokenizer["added_tokens"][0]["single_word"] = True
        (self.folder / "words").mkdir()
        (self.folder / "words/tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
        self.train("words_run", "train.steps=1", "data.vocabulary=words", "schedule.warmup_steps=0", "train.validate_every=0",
                   "data.train=[synthetic]", "data.validation=[]")
        server = self.another(run="words_run")

        lines = [line for line in server.log.splitlines() if "parse_special is refused" in line]
        self.assertEqual(len(lines), 1, server.log)
        self.assertIn("'<unk>'", lines[0])
        tokens = server.post("/tokenize", prompt="<s>")[1]["tokens"]
        self.assertEqual(server.post("/tokenize", prompt="<s>", parse_special=False)[1]["tokens"], tokens)
        self.assertGreater(len(tokens), 2)
        for path in ("/tokenize", "/v1/completions"):
            status, answer = server.post(path, prompt="<s>", parse_special=True)
            self.assertEqual((status, answer["error"]["param"]), (400, "parse_special"))
        self.assertEqual(len(server.complete(prompt="<s>", max_tokens=2)["choices"]), 1)

    def test_tokens_there_and_back(self):
        text = "Caf\u00e9<|endoftext|>\n"
        ids = [*"Caf\u00e9".encode(), 256, 10]

        self.assertEqual(self.server.post("/tokenize", prompt=text)[1]["tokens"], ids)
        self.assertEqual(self.server.post("/detokenize", tokens=ids)[1]["prompt"], text)
        for path, fields in (("/tokenize", {"prompt": text}), ("/detokenize", {"tokens": ids})):
            self.assertEqual(self.server.post(path, model="another", **fields)[0], 404)

    def test_a_text_is_that_of_generate(self):
        for options, fields in ((("--temperature", 0), {"temperature": 0}),
                                (("--seed", 5), {"seed": 5}),
                                (("--seed", 5, "--top-k", 4, "--min-p", 0.1, "--repetition-penalty", 1.5),
                                 {"seed": 5, "top_k": 4, "min_p": 0.1, "repetition_penalty": 1.5})):
            with self.subTest(fields):
                expected = self.generated("--max-tokens", 20, *options)[0]
                found = self.server.complete(prompt=PROMPT, max_tokens=20, **fields)["choices"][0]
                self.assertEqual(found["text"], expected["text"])

    def test_choices_are_those_of_repeated_prompts(self):
        expected = self.generated("--max-tokens", 9, "--seed", 3, prompts=[PROMPT] * 3)
        found = self.server.complete(prompt=PROMPT, max_tokens=9, seed=3, n=3)

        self.assertEqual([choice["text"] for choice in found["choices"]], [each["text"] for each in expected])
        self.assertEqual([choice["index"] for choice in found["choices"]], [0, 1, 2])
        self.assertEqual(found["usage"], {"prompt_tokens": 8, "completion_tokens": 27, "total_tokens": 35})

    def test_log_probabilities_are_those_of_generate(self):
        expected = self.generated("--max-tokens", 6, "--temperature", 0, "--logprobs", 2)[0]
        found = self.server.complete(prompt=PROMPT, max_tokens=6, temperature=0, logprobs=2)["choices"][0]["logprobs"]

        for own, other in zip(found["token_logprobs"], expected["logprobs"], strict=True):
            self.assertAlmostEqual(own, other, places=4)
        for own, other, top in zip(found["token_logprobs"], expected["top_logprobs"], found["top_logprobs"], strict=True):
            self.assertEqual(own, max(top.values()))
            for one, likeliest in zip(sorted(top.values(), reverse=True), other, strict=True):
                self.assertAlmostEqual(one, likeliest["logprob"], places=4)
        self.assertEqual("".join(found["tokens"]), expected["text"])

    def test_a_prompt_is_scored_as_it_is_generated(self):
        text = self.server.complete(prompt=PROMPT, max_tokens=8, temperature=0, logprobs=1)["choices"][0]
        whole = self.server.complete(prompt=PROMPT + text["text"], max_tokens=0, echo=True, logprobs=1)["choices"][0]

        self.assertEqual(whole["text"], PROMPT + text["text"])
        self.assertIsNone(whole["logprobs"]["token_logprobs"][0])
        self.assertEqual(whole["logprobs"]["text_offset"], list(range(len(whole["text"]))))
        for one, other in zip(whole["logprobs"]["token_logprobs"][len(PROMPT):], text["logprobs"]["token_logprobs"]):
            self.assertAlmostEqual(one, other, places=4)

    def test_prompts_of_all_lengths_are_scored_together_as_alone(self):
        prompts = [list(support.text().encode()[first:first + length])
                   for first, length in zip(range(0, 600, 30), (1, 31, 7, 32, 2, 2, 19, 11, 5, 30, 1, 3))]
        fields = {"max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
        together = self.server.complete(prompt=prompts, **fields)["choices"]

        for prompt, found in zip(prompts, together):
            alone = self.server.complete(prompt=prompt, **fields)["choices"][0]
            self.assertEqual(found["text"], alone["text"])
            scores = [choice["logprobs"]["token_logprobs"] for choice in (found, alone)]
            self.assertEqual([len(score) for score in scores], [len(prompt) + 1] * 2)
            for one, other in zip(scores[0][1:], scores[1][1:]):
                self.assertAlmostEqual(one, other, places=4)
            greedy = self.server.complete(prompt=prompt, max_tokens=1, temperature=0)["choices"][0]
            self.assertTrue(found["text"].endswith(greedy["text"]))

    def test_a_stream_is_the_same_text(self):
        fields = {"prompt": [PROMPT, "The old cow"], "max_tokens": 15, "seed": 2, "n": 2, "logprobs": 1, "echo": True}
        whole = self.server.complete(**fields)
        pieces = self.server.pieces(**fields, stream_options={"include_usage": True})

        self.assertEqual(pieces[-1]["usage"], whole["usage"])
        for choice in whole["choices"]:
            mine = [piece["choices"][0] for piece in pieces[:-1] if piece["choices"][0]["index"] == choice["index"]]
            self.assertEqual("".join(piece["text"] for piece in mine), choice["text"])
            for key in ("tokens", "token_logprobs", "text_offset"):
                self.assertEqual([value for piece in mine for value in piece["logprobs"][key]],
                                 choice["logprobs"][key])
            self.assertEqual([piece["finish_reason"] for piece in mine], [None] * (len(mine) - 1) + ["length"])

    def test_what_ends_a_text(self):
        text = self.server.complete(prompt=PROMPT, max_tokens=20, temperature=0)["choices"][0]
        self.assertEqual(text["finish_reason"], "length")
        stop = text["text"][5:8]
        cut = text["text"][:text["text"].index(stop)]

        for stops in (stop, ["nowhere", stop]):
            found = self.server.complete(prompt=PROMPT, max_tokens=20, temperature=0, stop=stops)["choices"][0]
            self.assertEqual((found["text"], found["finish_reason"]), (cut, "stop"))
        streamed = self.server.pieces(prompt=PROMPT, max_tokens=20, temperature=0, stop=stop)
        self.assertEqual("".join(piece["choices"][0]["text"] for piece in streamed), cut)

    def test_the_end_of_text_ends_a_text_and_has_a_log_probability(self):
        support.write_tokens(self.folder / "ends.bin", [97, 256] * 400)
        self.train("ends", "train.steps=30", "data.train=[ends.bin]", "data.validation=[]", "train.validate_every=0")
        server = self.another(run="ends")
        found = [server.complete(prompt="a", max_tokens=5, temperature=0, logprobs=0, ignore_eos=ignored)["choices"][0]
                 for ignored in (False, True)]

        self.assertEqual((found[0]["text"], found[0]["finish_reason"]), ("", "stop"))
        self.assertEqual(found[0]["logprobs"]["tokens"], ["<|endoftext|>"])
        self.assertEqual((found[1]["text"], found[1]["finish_reason"]), ("aa", "length"))

    def test_refusals_name_the_field(self):
        cases = [
            (400, "prompt", {}),
            (400, "prompt", {"prompt": []}),
            (400, "prompt", {"prompt": 5}),
            (400, "prompt", {"prompt": [1, "a"]}),
            (400, "prompt", {"prompt": [257]}),
            (400, "prompt", {"prompt": [-1]}),
            (400, "prompt", {"prompt": [1.0]}),
            (400, "prompt", {"prompt": [[1], [2, "x"]]}),
            (400, "prompt", {"prompt": "a" * 33, "max_tokens": 0}),
            (400, "prompt", {"prompt": "a" * 30, "max_tokens": 4}),
            (400, "prompt", {"prompt": ["a"] * 1025}),
            (400, "n", {"prompt": ["a"] * 513, "n": 2}),
            (400, "n", {"prompt": "a", "n": 0}),
            (400, "best_of", {"prompt": "a", "best_of": 2}),
            (400, "max_tokens", {"prompt": "a", "max_tokens": -1}),
            (400, "max_tokens", {"prompt": "a", "max_tokens": 2**70}),
            (400, "max_tokens", {"prompt": "a", "max_tokens": "7"}),
            (400, "temperature", {"prompt": "a", "temperature": -0.1}),
            (400, "temperature", {"prompt": "a", "temperature": True}),
            (400, "top_p", {"prompt": "a", "top_p": 0}),
            (400, "logprobs", {"prompt": "a", "logprobs": 21}),
            (400, "echo", {"prompt": "a", "echo": 1}),
            (400, "stop", {"prompt": "a", "stop": ""}),
            (400, "stop", {"prompt": "a", "stop": ["x"] * 17}),
            (400, "stop", {"prompt": "a", "stop": "x" * 1025}),
            (400, "suffix", {"prompt": "a", "suffix": "b"}),
            (400, "logit_bias", {"prompt": "a", "logit_bias": {"5": 1}}),
            (400, "presence_penalty", {"prompt": "a", "presence_penalty": 0.5}),
            (400, "stream_options", {"prompt": "a", "stream_options": 1}),
            (400, "heat", {"prompt": "a", "heat": 1}),
            (404, "model", {"prompt": "a", "model": "gpt-4"}),
        ]
        for status, field, fields in cases:
            with self.subTest(str(fields)[:60]):
                found, body = self.server.post("/v1/completions", **fields)
                self.assertEqual((found, body["error"]["param"]), (status, field), body)
                self.assertIn(field, body["error"]["message"])
        self.assertEqual(self.server.complete(prompt="a", model="tiny", suffix=None, user="me",
                                              best_of=1)["choices"][0]["index"], 0)

    def test_what_is_no_request_is_refused(self):
        self.assertEqual(self.server.ask("GET", "/nothing")[0], 404)
        self.assertEqual(self.server.ask("GET", "/v1/completions")[0], 405)
        self.assertEqual(self.server.ask("POST", "/v1/completions", "{}", {"Content-Type": "text/plain"})[0], 415)
        for body in ("", "{", "[]", "\xff", '{"prompt": "\\ud800"}', "[" * 5000, "{" * 5000, "nul"):
            self.assertEqual(self.server.ask("POST", "/v1/completions", body.encode("latin-1"))[0], 400, body[:20])

    def test_garbage_and_floods_are_cut_off(self):
        before = self.server.resident_mib()
        self.assertIn(b" 400 ", self.server.raw(b"\x16\x03\x01 hello\r\n\r\n"))
        self.assertIn(b" 431 ", self.server.raw(b"GET / HTTP/1.1\r\n" + b"X: " + b"y" * (1 << 22)))
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        self.assertIn(b" 413 ", self.server.raw(head + b"Content-Length: 99999999999\r\n\r\n" + b"x" * (1 << 22)))
        chunks = b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"
        self.assertIn(b" 413 ", self.server.raw(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks * 8))
        for _ in range(20):
            self.server.raw(head + b"Content-Length: 3000000\r\n\r\n" + b"x" * 2_000_000, wait=False)
        self.assertEqual(self.server.ask("GET", "/health")[0], 200)
        self.assertLess(self.server.resident_mib() - before, 100)

    def test_no_request_ends_the_server_or_what_runs_beside(self):
        server = self.another("--batch", 4, ranks=2)
        ranks = support.children(server.process.pid)
        fields = {"prompt": PROMPT, "n": 64, "max_tokens": 25, "seed": 4, "ignore_eos": True}
        expected = self.server.complete(**fields)["choices"]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            beside = pool.submit(server.pieces, **fields)
            for name, (statuses, data) in REFUSED.items():
                with self.subTest(name):
                    found = server.raw(data + SECOND)
                    self.assertIn(int(found[9:12]), statuses, found)
                    self.assertEqual(len(re.findall(rb"HTTP/1\.1 \d{3} ", found)), 1, found)
                    self.assertIn(b"Connection: close\r\n", found)
            self.assertEqual(server.ask("GET", "/health")[0], 200)
            pieces = [piece["choices"][0] for piece in beside.result()]
        for choice in expected:
            mine = "".join(piece["text"] for piece in pieces if piece["index"] == choice["index"])
            self.assertEqual(mine, choice["text"])
        self.assertEqual(len(server.complete(prompt=PROMPT, max_tokens=4)["choices"]), 1)
        self.assertTrue(all(map(support.alive, ranks)))
        code, log = server.end(signal.SIGUSR1)
        self.assertEqual(code, 0, log)
        self.assertFalse([c for c in log if c != "\n" and not c.isprintable()], log)

    def test_what_may_follow_chunks_is_dropped(self):
        body = b'{"prompt": "a"}'
        found = self.server.raw(CHUNKED + b"%x;a=b\r\n%s\r\n0;c\r\n" % (len(body), body) +
                                b"Host: evil.example\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n")
        self.assertIn(b'"tokens":[97]', found)

    def test_an_answer_to_head_has_no_body(self):
        found = self.server.raw(b"HEAD /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        self.assertIn(b" 405 ", found)
        self.assertTrue(found.endswith(b"\r\n\r\n"), found)

    def test_a_web_page_of_another_name_is_refused(self):
        port = self.server.port
        for status, headers in ((403, {"Host": f"evil.example:{port}"}), (403, {"Host": "localhost.evil.example"}),
                                (403, {"Host": "127.0.0.2"}), (403, {"Host": "::1"}), (403, {"Origin": "null"}),
                                (403, {"Origin": "http://evil.example"}), (403, {"Origin": "http://localhost.evil.example"}),
                                (200, {"Host": f"localhost:{port}"}), (200, {"Host": "[::1]:9"}), (200, {"Host": "LOCALHOST"}),
                                (200, {"Origin": "http://localhost:3000"}), (200, {"Origin": "https://127.0.0.1"})):
            for method, path, body in (("POST", "/tokenize", '{"prompt": "a"}'), ("GET", "/health", None)):
                self.assertEqual(self.server.ask(method, path, body, headers)[0], status, headers)

    def test_a_long_text_holds_up_no_one(self):
        long = json.dumps({"prompt": "a " * 1_900_000})
        status, body = self.server.post("/v1/completions", prompt="a " * 1_900_000)
        self.assertEqual((status, body["error"]["param"]), (400, "prompt"))
        self.assertIn("bytes", body["error"]["message"])
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            texts = [pool.submit(self.server.ask, "POST", "/tokenize", long) for _ in range(4)]
            slowest = 0
            while not all(text.done() for text in texts):
                start = time.monotonic()
                self.assertEqual(self.server.ask("GET", "/health")[0], 200)
                slowest = max(slowest, time.monotonic() - start)
        self.assertEqual([json.loads(text.result()[2])["count"] for text in texts], [3_800_000] * 4)
        self.assertLess(slowest, 1)

    def test_slow_and_silent_clients_are_cut_off_and_stop_no_one(self):
        server = self.another("--client-seconds", 2, "--connections", 40)
        links = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(30)]
        for number, link in enumerate(links):
            self.addCleanup(link.close)
            link.sendall(b"POST /v1/completions HTTP/1.1\r\n" if number % 2 else b"")

        self.assertEqual(len(server.complete(prompt=PROMPT, max_tokens=4)["choices"]), 1)
        for link in links:
            self.assertEqual(link.recv(100), b"")

    def test_a_client_that_leaves_stops_its_stream(self):
        server = self.another()
        fields = {**BUSY, "stream": True}
        with contextlib.closing(server.connect()) as connection:
            connection.request("POST", "/v1/completions", json.dumps(fields), {"Content-Type": "application/json"})
            connection.getresponse().read(100)
            connection.sock.close()
        self.assertEqual(len(server.complete(prompt=PROMPT, max_tokens=4)["choices"]), 1)

    def test_a_client_that_leaves_ends_what_is_no_stream(self):
        self.train("long_run", "train.steps=1", "train.global_batch=2", "model.context=512", "schedule.warmup_steps=0",
                   "train.validate_every=0", "data.validation=[]")
        scored = {"prompt": ["a" * 500] * 340, "max_tokens": 1, "echo": True, "logprobs": 5}
        for fields in ({**BUSY, "max_tokens": 500}, scored):
            server = self.another("--batch", 1, run="long_run")
            with contextlib.closing(server.connect()) as connection:
                connection.request("POST", "/v1/completions", json.dumps(fields), {"Content-Type": "application/json"})
                time.sleep(0.5)
            start = time.monotonic()
            code, log = server.end()
            self.assertEqual(code, 0, log)
            self.assertLess(time.monotonic() - start, 5)

    def test_the_log_says_what_the_cache_takes(self):
        self.assertIn("cache: 8 pages of 32 tokens, ", self.server.log)
        server = self.another("--batch", 5, "--cache-tokens", 64)
        self.assertIn("cache: 2 pages of 32 tokens, ", server.log)
        fields = {"prompt": ["a", "The red ", "b"], "n": 4, "max_tokens": 20, "seed": 3}
        self.assertEqual(server.complete(**fields)["choices"], self.server.complete(**fields)["choices"])

    def test_many_at_once_get_what_each_gets_alone(self):
        fields = [{"prompt": support.text()[i:i + 1 + i % 20], "max_tokens": 10, "seed": i} for i in range(64)]
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            together = list(pool.map(lambda each: self.server.complete(**each)["choices"][0]["text"], fields))

        self.assertEqual(together, [self.server.complete(**each)["choices"][0]["text"] for each in fields])

    def test_a_full_queue_and_too_many_connections_say_so(self):
        server = self.another("--queue", 1, "--connections", 8)
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            found = [each[0] for each in pool.map(
                lambda _: server.ask("POST", "/v1/completions", json.dumps(BUSY)), range(12))]

        self.assertEqual(set(found) - {200, 429, 503}, set())
        self.assertIn(200, found)
        self.assertGreaterEqual(found.count(429) + found.count(503), 6)
        self.assertEqual(server.ask("GET", "/health")[0], 200)

    def test_a_token_is_asked_for(self):
        (self.folder / "token").write_text("s3cret\nnot this\n", encoding="utf-8")
        for mode in (0o644, 0o640, 0o602):
            (self.folder / "token").chmod(mode)
            refused = self.run_program("serve", "--checkpoint", "run", "--token-file", "token")
            self.assert_refused(refused, 2, f"mode {mode:04o}", "chmod 600")
        (self.folder / "token").chmod(0o600)
        server = self.another("--token-file", "token")
        for sent, status in (({}, 401), ({"Authorization": "Bearer s3cre"}, 401), ({"Authorization": "s3cret"}, 401),
                             ({"Authorization": "Bearer s3cret"}, 200)):
            self.assertEqual(server.ask("GET", "/v1/models", headers=sent)[0], status, sent)
        self.assertEqual(server.ask("GET", "/health")[0], 200)
        self.assertEqual(server.ask("GET", "/v1/models", headers={"Authorization": "Bearer s3cret", "Host": "a.proxy"})[0], 200)
        self.assertNotIn("s3cret", server.log)

    def test_a_stop_finishes_what_runs_and_refuses_what_waits(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number.name):
                server = self.another()
                with concurrent.futures.ThreadPoolExecutor(20) as pool:
                    asked = [pool.submit(server.ask, "POST", "/v1/completions", json.dumps(BUSY)) for _ in range(20)]
                    concurrent.futures.wait(asked, return_when=concurrent.futures.FIRST_COMPLETED)
                    code, log = server.end(number)
                    found = [each.result()[0] for each in asked]
                self.assertEqual((code, set(found)), (0, {200, 503}), log)

    def test_options_that_cannot_be(self):
        for words, options in ((("--port",), ("--port", 65536)),
                               (("--queue",), ("--queue", 0)), (("--client-seconds",), ("--client-seconds", "nan")),
                               (("--body-mib",), ("--body-mib", 0)), (("--batch",), ("--batch", 0)),
                               (("port", str(self.server.port)), ("--port", self.server.port))):
            result = self.run_program("serve", "--checkpoint", "run/checkpoints", *options)
            self.assert_refused(result, 2, *words)
        named = self.run_program("serve", "--checkpoint", "none", "--host", "localhost")
        self.assert_refused(named, 2, "--host: expected an address such as 127.0.0.1")
        self.assertNotIn("lets other machines in", named.err)
        (self.folder / "empty").write_text("\n", encoding="utf-8")
        (self.folder / "empty").chmod(0o600)
        self.assert_refused(self.run_program("serve", "--checkpoint", "run", "--token-file", "empty"), 2, "empty")
        self.assert_refused(self.run_program("serve", "--checkpoint", "run", "--token-file", "none"), 5, "none")
        self.assert_refused(self.run_program("serve", "--checkpoint", "run", ranks=3), 2,
                            "3 ranks cannot share 2 heads")

    def test_two_ranks_answer_as_one_does(self):
        server = self.another("--batch", 4, ranks=2)
        prompts = [support.text()[i:i + 1 + i * 7 % 25] for i in range(9)]
        greedy = {"prompt": prompts, "max_tokens": 6, "temperature": 0, "ignore_eos": True}
        for fields in (greedy, {**greedy, "max_tokens": 1, "echo": True, "logprobs": 2},
                       {**greedy, "prompt": prompts[:3], "logprobs": 1}):
            found, expected = server.complete(**fields)["choices"], self.server.complete(**fields)["choices"]
            for one, two in zip(expected, found):
                self.assertEqual(two["text"], one["text"])
                for a, b in zip((one["logprobs"] or {}).get("token_logprobs", []),
                                (two["logprobs"] or {}).get("token_logprobs", [])):
                    self.assertTrue((a is None and b is None) or abs(a - b) < 1e-4, f"{a}, {b}")
            time.sleep(0.2)  # with nothing to do
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            together = [pool.submit(server.complete, **{**greedy, "prompt": prompt}) for prompt in prompts * 2]
        texts = [choice["text"] for choice in self.server.complete(**greedy)["choices"]]
        self.assertEqual([each.result()["choices"][0]["text"] for each in together], texts * 2)

        code, log = server.end(signal.SIGUSR1)  # which mpirun hands on to its ranks
        self.assertEqual(code, 0, log)

    def test_a_rank_that_dies_takes_the_server_with_it(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                server = self.another(ranks=2)
                self.assertEqual(server.ask("GET", "/health")[0], 200)
                ranks = support.children(server.process.pid)
                os.kill(ranks[rank], signal.SIGKILL)
                server.process.communicate(timeout=30)
                self.assertNotEqual(server.process.returncode, 0)
                self.assertTrue(support.wait_until(lambda: not any(map(support.alive, ranks)), 10))


if __name__ == "__main__":
    support.main()
