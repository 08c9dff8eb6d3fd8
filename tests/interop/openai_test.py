#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server against OpenAI's own client: completions and chats, whole and streamed. Needs the package openai.

openai_test.py --binary FILE
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

import serve_test
import support

try:
    import openai
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

MESSAGES = [{"role": "system", "content": "Be red."}, {"role": "user", "content": [{"type": "text", "text": "The cow"}]}]


class Client(support.Case):
    """The same answers by the client and by plain HTTP."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.train("run", "train.steps=20", "model.context=128")
        cls.server = serve_test.Server(cls, "--chat-template", "plain")
        cls.client = openai.OpenAI(base_url=f"http://127.0.0.1:{cls.server.port}/v1", api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.kill()
        super().tearDownClass()

    def create(self, **fields):
        """A chat by the client."""
        return self.client.chat.completions.create(model="tiny", messages=MESSAGES, seed=3, **fields)

    def test_a_chat(self):
        found = self.create(max_tokens=12, n=2, logprobs=True, top_logprobs=3, stop=["\n\n\n"])
        expected = self.server.post("/v1/chat/completions", messages=MESSAGES, seed=3, max_tokens=12, n=2)[1]

        self.assertEqual([choice.message.content for choice in found.choices], [each["message"]["content"] for each in expected["choices"]])
        self.assertEqual([choice.message.role for choice in found.choices], ["assistant"] * 2)
        self.assertEqual(found.usage.total_tokens, expected["usage"]["total_tokens"])
        for choice in found.choices:
            self.assertEqual(len(choice.logprobs.content), 12)
            self.assertEqual({len(each.top_logprobs) for each in choice.logprobs.content}, {3})
            for each in choice.logprobs.content:
                self.assertEqual(bytes(each.bytes).decode("utf-8", "replace"), each.token)

    def test_a_stream(self):
        whole = self.create(max_completion_tokens=20).choices[0]
        chunks = list(self.create(max_completion_tokens=20, stream=True, stream_options={"include_usage": True}))

        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]), whole.message.content)
        self.assertEqual(chunks[-2].choices[0].finish_reason, whole.finish_reason)
        self.assertEqual(chunks[-1].usage.completion_tokens, 20)

    def test_the_streaming_helper_puts_an_answer_together(self):
        stop = self.create(max_tokens=15).choices[0].message.content[6:9]  # the helper takes an answer that length ends as an error
        whole = self.create(max_tokens=15, stop=stop).choices[0].message.content
        with self.client.chat.completions.stream(model="tiny", messages=MESSAGES, seed=3, max_tokens=15, stop=stop) as stream:
            text = "".join(event.delta for event in stream if event.type == "content.delta")
            self.assertEqual(stream.get_final_completion().choices[0].message.content, whole)
        self.assertEqual(text, whole)

    def test_completions_and_models(self):
        found = self.client.completions.create(model="tiny", prompt="The red", max_tokens=9, temperature=0)
        expected = self.server.complete(prompt="The red", max_tokens=9, temperature=0)

        self.assertEqual(found.choices[0].text, expected["choices"][0]["text"])
        self.assertEqual([model.id for model in self.client.models.list()], ["tiny"])

    def test_errors(self):
        for fields in ({"tools": [{"type": "function", "function": {"name": "f"}}]}, {"response_format": {"type": "json_object"}}, {"max_tokens": 1000}):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.create(**fields)
            self.assertIn(caught.exception.param, (*fields, "messages"))
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="other", messages=MESSAGES)


if __name__ == "__main__":
    support.main()
