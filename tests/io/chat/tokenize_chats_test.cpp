// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/packing.hpp"
#include "io/chat/chats.hpp"
#include "io/dataset/files.hpp"
#include "support/refusal.hpp"

namespace hyperslab::test {
namespace {

using Turns = std::vector<std::pair<std::string, std::string>>;
constexpr std::int64_t kBytes = 257;

class TokenizeChats : public FilesTest {
 protected:
  io::ChatFigures tokenize(const std::string& rows, const std::string& output = "chats.h5") {
    files_.inputs = {write("in.jsonl", rows)};
    files_.output = path(output);
    return io::tokenize_chats(encoder_, files_);
  }
  /// The documents of the output, of which trained bytes are in brackets and the end of text is |.
  [[nodiscard]] std::vector<std::string> documents() const {
    const auto tokens = io::open_tokens({path("chats.h5")}, io::RawIds::uint16, kBytes, 1, true);
    const auto ids = read_all(*tokens);
    std::vector<std::uint8_t> mask(ids.size());
    tokens->read_mask(0, mask);
    auto starts = tokens->documents(-1);
    starts.push_back(tokens->size());
    std::vector<std::string> out;
    for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
      bool is_trained = false;
      std::string text;
      for (auto at = static_cast<std::size_t>(starts[i]);
           at < static_cast<std::size_t>(starts[i + 1]); ++at) {
        if (is_trained != (mask[at] != 0)) text += is_trained ? "»" : "«";
        is_trained = mask[at] != 0;
        text += ids[at] == 256 ? '|' : static_cast<char>(ids[at]);
      }
      out.push_back(text + (is_trained ? "»" : ""));
    }
    return out;
  }

  std::unique_ptr<io::Tokenizer> tokenizer_ = io::open_tokenizer("bytes");
  io::ChatEncoder encoder_{*tokenizer_, "bytes", io::find_chat_template("plain")};
  io::ChatFiles files_;
};

TEST_F(TokenizeChats, WritesDocumentsAndTheMask) {
  const auto figures = tokenize(row_of({{"user", "a"}, {"assistant", "b"}}) + " \n" +
                                row_of({{"assistant", "c"}, {"assistant", ""}}) + "\n");

  EXPECT_EQ(documents(), (std::vector<std::string>{"User: a\n\nAssistant:« b|»\n\n",
                                                   "Assistant:« c|»\n\nAssistant:« |»\n\n"}));
  EXPECT_EQ(figures.conversations, 2);
  EXPECT_EQ(figures.messages, 4);
  EXPECT_EQ(figures.tokens, 24 + 29);
  EXPECT_EQ(figures.trained, 3 + 5);
  EXPECT_EQ(number_of_files(), 2U);
}

TEST_F(TokenizeChats, TheOrderOfRowsAndIdsAreTheSameOnAnyThreads) {
  std::string rows;
  for (int i = 0; i < 30000; ++i) {
    rows += row_of({{"user", std::to_string(i)}, {"assistant", std::string(i % 100, 'x')}});
  }
  const auto figures = tokenize(rows);
  const auto all = documents();

  ASSERT_EQ(all.size(), 30000U);
  EXPECT_EQ(figures.conversations, 30000);
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(all[i], "User: " + std::to_string(i) + "\n\nAssistant:« " +
                          std::string(i % 100, 'x') + "|»\n\n");
  }
}

TEST_F(TokenizeChats, ConversationsWithoutAnAnswerAreLeftOut) {
  const auto figures = tokenize(row_of({{"user", "a"}}) + row_of({{"assistant", "b"}}));

  EXPECT_EQ(documents(), (std::vector<std::string>{"Assistant:« b|»\n\n"}));
  EXPECT_EQ(figures.without_answer, 1);
  files_.train_on = io::TrainOn::all;
  EXPECT_EQ(tokenize(row_of({{"user", "a"}})).conversations, 1);
  EXPECT_EQ(documents(), (std::vector<std::string>{"«User: a\n\n»"}));
}

TEST_F(TokenizeChats, PairsAreTwoDocuments) {
  files_.pairs = true;
  files_.longest = 70;
  const std::string prompt = R"({"prompt": [{"role": "user", "content": "a"}], )";
  const auto answer = [](const std::string& text) {
    return R"([{"role": "assistant", "content": ")" + text + R"("}])";
  };
  const std::string rows = prompt + R"("chosen": )" + answer("b") + R"(, "rejected": )" +
                           answer("c") + "}\n" + prompt + R"("chosen": )" + answer("b") +
                           R"(, "rejected": )" + answer(std::string(50, 'x')) + "}\n" +
                           R"({"chosen": )" + answer("d") +
                           R"(, "rejected": [{"role": "user", "content": "e"}]})"
                           "\n";
  const auto figures = tokenize(rows);

  EXPECT_EQ(documents(), (std::vector<std::string>{"User: a\n\nAssistant:« b|»\n\n",
                                                   "User: a\n\nAssistant:« c|»\n\n"}));
  EXPECT_EQ(figures.conversations, 1);
  EXPECT_EQ(figures.too_long, 1);
  EXPECT_EQ(figures.without_answer, 1);
  expect_error(ExitCode::data, {":1: the key 'chosen' must hold a list, found no such key"}, [&] {
    (void)tokenize(row_of({{"assistant", "b"}}));
  });
}

TEST_F(TokenizeChats, LongConversationsEndWithTheLastAnswerThatFits) {
  const std::string rows =
      row_of(
          {{"user", "a"}, {"assistant", "b"}, {"user", "c"}, {"assistant", "d"}, {"user", "e"}}) +
      row_of({{"user", std::string(99, 'x')}, {"assistant", "b"}}) + row_of({{"assistant", "y"}});
  files_.longest = 48;
  const auto figures = tokenize(rows);

  EXPECT_EQ(documents(), (std::vector<std::string>{
                             "User: a\n\nAssistant:« b|»\n\nUser: c\n\nAssistant:« d|»\n\n",
                             "Assistant:« y|»\n\n"}));
  EXPECT_EQ(figures.cut, 1);
  EXPECT_EQ(figures.messages_left_out, 1);
  EXPECT_EQ(figures.too_long, 1);
  EXPECT_EQ(figures.messages, 5);

  files_.longest = 47;
  files_.train_on = io::TrainOn::last;
  EXPECT_EQ(tokenize(rows).messages_left_out, 3);
  EXPECT_EQ(documents().front(), "User: a\n\nAssistant:« b|»\n\n");
}

TEST_F(TokenizeChats, RenderingsOfOtherProgramsAreTaken) {
  const io::ChatEncoder encoder(*tokenizer_, "bytes", io::find_chat_template("rendered"));
  const auto part = [](const std::string& text, bool trained) {
    return nlohmann::json{{"text", text}, {"trained", trained}};
  };
  const auto row = [](const std::vector<nlohmann::json>& parts) {
    return nlohmann::json{{"rendered", parts}}.dump() + "\n";
  };
  const std::string rows = row({part("a:", false), part("b<|endoftext|>", true), part("", false),
                                part("c<|end:", false), part("d", true), part("e", true)}) +
                           row({part("a", false)});
  files_.inputs = {write("in.jsonl", rows)};
  files_.output = path("chats.h5");

  EXPECT_EQ(io::tokenize_chats(encoder, files_).without_answer, 1);
  EXPECT_EQ(documents(), (std::vector<std::string>{"a:«b|»c<|end:«de»"}));
  files_.train_on = io::TrainOn::last;
  (void)io::tokenize_chats(encoder, files_);
  EXPECT_EQ(documents(), (std::vector<std::string>{"a:b|c<|end:«de»"}));
  files_.longest = 5;
  expect_error(ExitCode::data, {"1 without one within"},
               [&] { io::tokenize_chats(encoder, files_); });
  write("in.jsonl", row_of({{"assistant", "b"}}));
  expect_error(ExitCode::data, {":1: the key 'rendered' must hold a list, found no such key"},
               [&] { io::tokenize_chats(encoder, files_); });
  write("in.jsonl", row({nlohmann::json{{"text", "a"}}}));
  expect_error(ExitCode::data, {":1: part 1 must be an object with text and trained"},
               [&] { io::tokenize_chats(encoder, files_); });
}

TEST_F(TokenizeChats, SamplesPackWholeConversations) {
  std::string rows;
  for (int i = 0; i < 40; ++i) rows += row_of({{"assistant", std::string(i, 'x')}});
  (void)tokenize(rows);
  const auto tokens = io::open_tokens({path("chats.h5")}, io::RawIds::uint16, kBytes, 1, true);
  const io::PackedSamples samples(*tokens, tokens->documents(-1), io::Packing::best_fit, 64, 1, {});

  EXPECT_EQ(samples.figures().documents, 40);
  EXPECT_EQ(samples.figures().cut, 0);
  EXPECT_LT(samples.size(), 30);
  std::int64_t counted = 0;
  for (std::int64_t i = 0; i < samples.size(); ++i) counted += samples.counted(i);
  EXPECT_EQ(counted, 39 * 40 / 2 + 2 * 40);
}

TEST_F(TokenizeChats, BrokenLinesAreNamedOrLeftOut) {
  const std::string good = row_of({{"assistant", "b"}});
  const std::string broken = good + "\n{\"messages\": [{\"role\": \"user\"}]}\n" + good + "{";
  expect_error(ExitCode::data, {path("in.jsonl") + ":3: message 1: content must be a text"},
               [&] { tokenize(broken); });
  EXPECT_EQ(number_of_files(), 1U);
  files_.skip_broken = true;

  EXPECT_EQ(tokenize(broken).conversations, 2);
  expect_error(ExitCode::data, {"lines with a conversation, found none", "1 of 1 lines"},
               [&] { tokenize("3\n"); });
}

TEST_F(TokenizeChats, HostileRowsAreRefusedByTheirLine) {
  const std::string user = R"({"messages": [{"role": "user", "content": )";
  for (const std::string& row :
       {std::string(1 << 20, '['), std::string(1 << 20, '{'),
        user + std::string(5000, '[') + "]}]}", user + R"("\ud800"}]})", user + "\"\xC3\"}]}",
        user + std::string(400, '9') + "}]}", user + R"("a"}])", std::string(3, '\0'),
        std::string("\xEF\xBB\xBF{}")}) {
    expect_error(ExitCode::data, {path("in.jsonl") + ":2: "}, [&] {
      tokenize(row_of({{"assistant", ""}}) + row + "\n");
    });
  }
}

TEST_F(TokenizeChats, NamesOutputsAndInputsThatCannotBe) {
  const std::string good = row_of({{"assistant", "b"}});
  expect_error(ExitCode::usage, {path("chats.bin"), ".h5"}, [&] { tokenize(good, "chats.bin"); });
  expect_error(ExitCode::data, {path("in.jsonl"), "1 without an answer"}, [&] {
    tokenize(row_of({{"user", "a"}}));
  });
  files_.longest = 3;
  expect_error(ExitCode::data, {"1 without one within --context 3"}, [&] { tokenize(good); });
  files_.inputs = {path("missing.jsonl")};
  expect_error(ExitCode::data, {path("missing.jsonl")},
               [&] { io::tokenize_chats(encoder_, files_); });
  EXPECT_EQ(number_of_files(), 1U);
}

}  // namespace
}  // namespace hyperslab::test
