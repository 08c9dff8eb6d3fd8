# SPDX-License-Identifier: Apache-2.0
"""Conversations by chance: for chat_golden.json and for the comparison with transformers."""

_WORDS = ["fox", "The", "quick", "Größe", "e\u0301", "ﬁ", "狐狸", "😀", "👩\u200d💻", "\u00a0", "\u2003", "\u1680", "\x85", "\x1c", "\n", "\n\n", "\t",
          " ", "  ", "1234", "it's", "{{ x }}", "{% if %}", "\\n", "\"quoted\"", "<b>", "\u0301", "שלום", "مرحبا", "<think>", "</think>"]
# Names of special tokens, which are text within a message.
_SPECIAL = ["<|im_end|>", "<|im_start|>", "</s>", "<s>", "[INST]", "[/INST]", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|user|>", "<<SYS>>"]
_ARGUMENTS = [{}, {"city": "Zürich", "days": 3}, {"a": [1, 2.5, 1e-7, 1e16, -0.0, None, True], "b": {"c": "\"\\\n\u2028\x7f"}}]


def text(rng, special=True):
    """Words and white space; now and then empty, or with white space alone at its ends."""
    if rng.random() < 0.08:
        return ""
    words = _WORDS + (_SPECIAL if special else [])
    return "".join(rng.choice(words) + rng.choice(["", " ", " "]) for _ in range(rng.randrange(1, 9)))


def _answer(rng, calls, special, texts):
    message = {"role": "assistant", "content": text(rng, special)}
    if calls and rng.random() < 0.4:
        arguments = [rng.choice(_ARGUMENTS) for _ in range(rng.randrange(1, 3))]
        message["tool_calls"] = [
            {"type": "function", "function": {"name": "look_up", "arguments": '{"a":1}' if texts and rng.random() < 0.3 else each}}
            for each in arguments]
    return message


def alternating(rng, system, special=True):
    """The user and the assistant in turn, after a system message if `system` allows it."""
    messages = [{"role": "system", "content": text(rng, special)}] if system and rng.random() < 0.5 else []
    for _ in range(rng.randrange(1, 4)):
        messages += [{"role": "user", "content": text(rng, special)}, {"role": "assistant", "content": text(rng, special)}]
    return messages


def free(rng, tools, special=True, texts=False, reasoning=False):
    """Any order of roles. tools: "refused", "message" (answers of tools) or "calls" (and calls)."""
    messages = []
    for _ in range(rng.randrange(1, 7)):
        role = rng.choice(["user", "user", "assistant", "assistant", "system"] + (["tool", "tool"] if tools != "refused" else []))
        if role == "assistant":
            messages.append(_answer(rng, tools == "calls", special, texts))
            if reasoning and rng.random() < 0.3:
                messages[-1]["reasoning_content"] = text(rng, special)
        else:
            messages.append({"role": role, "content": text(rng, special)})
    if reasoning and rng.random() < 0.3:
        messages.append({"role": "user", "content": "<tool_response>x</tool_response>"})
        messages.append(_answer(rng, True, special, texts))
    return messages


# name of a template -> its conversations
KINDS = {
    **{name: lambda rng, special=True: free(rng, "message", special) for name in ("chatml", "qwen2", "llama3")},
    "qwen2.5": lambda rng, special=True: free(rng, "calls", special),
    "qwen3": lambda rng, special=True: free(rng, "calls", special, True, True),
    "qwen3-2507": lambda rng, special=True: free(rng, "calls", special, True),
    **{name: lambda rng, special=True: free(rng, "refused", special) for name in ("llama3.1", "phi3", "phi3.5")},
    **{name: lambda rng, special=True: alternating(rng, True, special) for name in ("llama2", "mistral-v1", "gemma3")},
    **{name: lambda rng, special=True: alternating(rng, False, special) for name in ("mistral", "mistral-v3", "mistral-nemo", "gemma")},
}
