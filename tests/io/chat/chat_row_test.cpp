// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "chat/row_json.hpp"
#include "hyperslab/io/chat.hpp"
#include "support/refusal.hpp"

namespace hyperslab::test {
namespace {

void refuse(const std::string& line, std::initializer_list<std::string> parts) {
  expect_error(ExitCode::data, parts, [&] { (void)io::read_chat(line); });
}

std::string row(const std::string& messages) { return R"({"messages": )" + messages + "}"; }

TEST(ChatRows, HoldMessages) {
  const auto chat = io::read_chat(row(R"([{"role": "system", "content": "a\u0000\ud83d\ude00"},
      {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}],
       "name": 1},
      {"role": "assistant", "content": null, "reasoning_content": "d", "tool_calls": [
        {"id": "x", "function": {"name": "f", "arguments": {"z": 1.0, "a": [true, null]}}},
        {"name": "g", "arguments": "{}"}]},
      {"role": "tool", "content": "", "tool_call_id": "x"}])"));

  ASSERT_EQ(chat.size(), 4U);
  EXPECT_EQ(chat[0].text, std::string("a\0😀", 6));
  EXPECT_EQ(chat[1].text, "bc");
  EXPECT_EQ(chat[2].text, "");
  EXPECT_EQ(chat[2].reasoning, "d");
  ASSERT_EQ(chat[2].calls.size(), 2U);
  EXPECT_EQ(chat[2].calls[0].arguments, R"({"z": 1.0, "a": [true, null]})");
  EXPECT_FALSE(chat[2].calls[0].arguments_as_text);
  EXPECT_EQ(chat[2].calls[1].name, "g");
  EXPECT_TRUE(chat[2].calls[1].arguments_as_text);
  EXPECT_EQ(chat[3].role, io::ChatRole::tool);
  EXPECT_EQ(
      io::read_chat(R"({"x": {}, "tools": [], "messages": [{"role": "user", "content": ""}]})")
          .size(),
      1U);
}

TEST(ChatRows, RefuseWhatIsNoConversation) {
  refuse("", {"no JSON in UTF-8", "byte 1"});
  refuse("[]", {"expected an object", "array"});
  refuse("{}", {"'messages' must hold a list", "no such key"});
  refuse(R"({"messages": {}})", {"'messages' must hold a list", "object"});
  refuse(row("[]"), {"has no messages"});
  refuse(row("[3]"), {"message 1 must be an object", "number"});
  refuse(row(R"([{"content": "a"}])"), {"message 1: role", "null"});
  refuse(row(R"([{"role": "user", "content": "a"}, {"role": "owner\u001b", "content": "a"}])"),
         {"message 2: role", "'owner?'", "assistant"});
  refuse(row(R"([{"role": "user"}])"), {"message 1: content must be a text", "null"});
  refuse(row(R"([{"role": "user", "content": 1e3}])"), {"content must be a text", "number"});
  refuse(row(R"([{"role": "assistant", "content": null}])"), {"content must be a text"});
  refuse(row(R"([{"role": "user", "content": [{"type": "image", "url": "x"}]}])"),
         {"message 1: content", "type text"});
  refuse(row(R"([{"role": "user", "content": ["a"]}])"), {"message 1: content", "type text"});
  refuse(row(R"([{"role": "assistant", "content": "", "tool_calls": {}}])"),
         {"tool_calls", "list"});
  refuse(row(R"([{"role": "assistant", "content": "", "tool_calls": [{"name": "f"}]}])"),
         {"arguments must be an object"});
  refuse(row(R"([{"role": "assistant", "content": "", "tool_calls": [{"function": 1}]}])"),
         {"function must be an object"});
  refuse(R"({"tools": [{}], "messages": [{"role": "user", "content": "a"}]})",
         {"has tools", "render_chats.py"});
}

TEST(ChatRows, RefuseHostileJson) {
  refuse("{\"messages\": \"\xFF\"}", {"no JSON in UTF-8 from byte 15"});
  refuse(R"({"messages": "\ud800"})", {"no JSON in UTF-8"});
  refuse(R"({"messages": [1e999]})", {"too large"});
  refuse(R"({"messages": [123456789012345678901234567890]})", {"beyond 64 bits"});
  refuse(R"({"a": 1, "a": 2})", {"the key 'a' stands twice"});
  refuse(row(R"([{"role": "user", "role": "user"}])"), {"'role' stands twice"});
  refuse(std::string(100000, '['), {"nested too deep"});
  refuse(row(R"([{"role": "user", "content": "a"}])") + "}", {"no JSON"});
  refuse(R"({"messages": [{"role": "user", "content": "a"}])", {"no JSON"});
  std::string keys = R"({"k": 1)";
  for (int i = 0; i < 2000; ++i) keys += ", \"" + std::to_string(i) + "\": 1";
  refuse(keys + "}", {"more than 1024 keys"});
}

TEST(PythonJson, IsWhatJsonDumpsWrites) {
  const auto written = [](const std::string& json) {
    return io::python_json(io::read_row(R"({"x": )" + json + "}"));
  };

  EXPECT_EQ(written(R"([1,-2,18446744073709551615,"é\"\\\n\u2028\u007f\u0001",{},[]])"),
            "{\"x\": [1, -2, 18446744073709551615, \"é\\\"\\\\\\n\u2028\x7f\\u0001\", {}, []]}");
  EXPECT_EQ(
      written("[1.0,0.1,1e-4,1e-5,1e15,1e16,123456789.125,-0.0,5e-324,1.50]"),
      R"({"x": [1.0, 0.1, 0.0001, 1e-05, 1000000000000000.0, 1e+16, 123456789.125, -0.0, 5e-324, 1.5]})");
  EXPECT_EQ(written(R"({"b":{"d":null,"c":false}, "a":-0})"),
            R"({"x": {"b": {"d": null, "c": false}, "a": 0}})");
}

}  // namespace
}  // namespace hyperslab::test
