// SPDX-License-Identifier: Apache-2.0
#include <omp.h>

#include "hyperslab/io/dataset.hpp"
#include "io/tokenizer/character_vocabularies.hpp"
#include "tokenizer/cuts.hpp"

namespace hyperslab::test {
namespace {

using Ids = std::vector<std::int32_t>;

class CharacterTokenizer : public CharacterTest {
 protected:
  /// Words of the golden text and random bytes, some of them no UTF-8, and added tokens.
  static std::string mixed_text(std::mt19937& random, std::size_t size) {
    static const std::vector<std::string> kParts = {
        " the dog", " jumps", " over", "<|user|>", "<|end|>",      "\n\n", "x y",    "<|x|>",
        "\n\n\n",   "<b>",    "<s>",   "a b",      "\xE2\x96\x81", "r|>",  "tokens", " "};
    std::string text;
    while (text.size() < size) {
      text += random() % 3 == 0 ? random_bytes(random, 1 + random() % 6)
                                : kParts[random() % kParts.size()];
    }
    return text;
  }
  [[nodiscard]] std::vector<std::string> kinds() const {
    std::vector<std::string> names;
    for (const auto& [name, kind] : golden_["kinds"].items()) names.push_back(name);
    return names;
  }
  [[nodiscard]] Ids tokens_of(const std::string& name) const {
    const auto tokens = io::open_tokens({path(name)}, io::RawIds::uint16, 70000, 0);
    Ids ids(static_cast<std::size_t>(tokens->size()));
    tokens->read(0, ids);
    return ids;
  }
  void expect_refused(const std::string& name, const nlohmann::json& patch,
                      const std::string& message) {
    auto file = file_of(name);
    file.merge_patch(patch);
    write("t.json", file.dump());
    expect_error(ExitCode::data, {fmt::format("vocabulary file '{}': ", path("t.json")), message},
                 [&] { (void)io::open_tokenizer(path("t.json")); });
  }
};

TEST_F(CharacterTokenizer, BytesComeBack) {
  std::mt19937 random(5);
  for (const char* name :
       {"llama2", "mistral3", "llama2_all_splits", "metaspace_never", "gemma3"}) {
    const auto tokenizer = open(name);

    for (int i = 0; i < 200; ++i) {
      const std::string text = random_bytes(random, 1 + random() % 60);
      const bool takes_space = std::string_view(name) == "mistral3" && text.starts_with(' ');
      EXPECT_EQ(text_of(*tokenizer, tokenizer->encode(text)), text.substr(takes_space ? 1 : 0))
          << name;
    }
  }
}

TEST_F(CharacterTokenizer, PartsHaveTheIdsOfTheWhole) {
  std::mt19937 random(6);
  std::size_t cuts = 0;
  for (const std::string& name : kinds()) {
    const auto tokenizer = open(name);
    const auto cut_of = [&](std::string_view text, std::size_t from) {
      return tokenizer->last_cut(text, from);
    };

    for (int i = 0; i < 40; ++i) {
      const std::string text = mixed_text(random, 400);
      const auto parts = io::cut_into_parts(text, 10 + random() % 40, cut_of);
      Ids ids;
      for (const std::string_view part : parts) {
        const auto place =
            part.data() == text.data() ? io::TextPlace::start : io::TextPlace::inside;
        const Ids more = tokenizer->encode_part(part, place);
        ids.insert(ids.end(), more.begin(), more.end());
      }
      EXPECT_EQ(ids, tokenizer->encode(text)) << name << " " << text;
      cuts += parts.size() - 1;
    }
  }
  EXPECT_GT(cuts, 5000U);
}

TEST_F(CharacterTokenizer, KnownPlacesOfCuts) {
  const auto none = std::string_view::npos;
  const auto llama = open("llama2");
  EXPECT_EQ(llama->last_cut("The dog", 2), 3U);
  EXPECT_EQ(llama->last_cut("dog\xE7\x8B", 2), none);  // what the bytes become is not known
  const auto whole = open("llama2_ignore_merges");
  EXPECT_EQ(whole->last_cut("The dog\n dog", 2), none);  // a part could be a token
  EXPECT_EQ(whole->last_cut(std::string(300, ' ') + "The dog" + std::string(300, ' '), 2), 307U);
  const auto phi = open("phi3");  // tokens take the white space after them
  EXPECT_EQ(phi->last_cut("e\nT", 2), none);
  EXPECT_EQ(phi->last_cut("og,T", 2), 3U);
}

TEST_F(CharacterTokenizer, LongTextsTakeNoQuadraticTime) {
  for (const char* name : {"llama2", "llama2_ignore_merges", "gemma3", "phi3"}) {
    const auto tokenizer = open(name);
    for (const char* unit : {"a", " ", "\n", "the ", "\xE7\x8B\x90", "\xFF", "<|user|> "}) {
      std::string text;
      while (text.size() < (1 << 19)) text += unit;
      const auto ids = tokenizer->encode(text);
      EXPECT_GT(ids.size(), text.size() / 64) << name << unit;
    }
  }
}

TEST_F(CharacterTokenizer, ThePlaceOfAPartDecidesAboutTheSpaceBeforeIt) {
  const auto text = [](const io::Tokenizer& tokenizer, io::TextPlace place) {
    return decoded(tokenizer, tokenizer.encode_part("dog", place));
  };
  const auto llama = open("llama2");
  EXPECT_EQ(text(*llama, io::TextPlace::start), " dog");
  EXPECT_EQ(text(*llama, io::TextPlace::after_token), " dog");
  EXPECT_EQ(text(*llama, io::TextPlace::inside), "dog");
  const auto mistral = open("mistral3");
  EXPECT_EQ(text(*mistral, io::TextPlace::start), " dog");
  EXPECT_EQ(text(*mistral, io::TextPlace::after_token), "dog");
  EXPECT_EQ(text(*mistral, io::TextPlace::inside), "dog");
}

TEST_F(CharacterTokenizer, DecodesAsTokensCome) {
  const auto tokenizer = open("llama2");
  io::TextDecoder decoder(*tokenizer);
  io::Utf8Stream stream;
  std::vector<std::string> shown;
  const auto push = [&](std::int32_t id) { shown.push_back(stream.push(decoder.next(id))); };
  const Ids emoji = tokenizer->encode_part("\xF0\x9F\xA6\x9E", io::TextPlace::inside);
  ASSERT_EQ(emoji.size(), 4U);

  push(1);
  for (const std::int32_t id : tokenizer->encode("  a")) push(id);
  for (const std::int32_t id : emoji) push(id);

  std::string all;
  for (const std::string& part : shown) all += part;
  EXPECT_EQ(all, "<s>  a\xF0\x9F\xA6\x9E");
  EXPECT_EQ(shown.back(), "\xF0\x9F\xA6\x9E");
  EXPECT_EQ(shown[shown.size() - 2], "");
  io::TextDecoder inside(*tokenizer, io::TextPlace::inside);
  EXPECT_EQ(inside.next(tokenizer->encode("a").front()), " ");
}

TEST_F(CharacterTokenizer, FilesHaveTheIdsOfTheirDocuments) {
  std::mt19937 random(7);
  std::string text;
  while (text.size() < (9 << 20)) text += text.empty() ? "The dog" : " the dog jumps over tokens";
  const std::string mixed = mixed_text(random, 700'000);
  const std::string second = "fox\n";
  const std::vector<std::string> inputs = {write("in.txt", text + "\n<|endoftext|>\n" + second),
                                           write("mixed.txt", mixed)};
  for (const char* name : {"llama2", "gemma3", "phi3"}) {
    const auto tokenizer = open(name);
    omp_set_num_threads(2);
    io::tokenize_files(*tokenizer, inputs, path("out.bin"));

    Ids expected;
    for (const std::string& document : {text + "\n", second, mixed}) {
      expected.push_back(1);
      const Ids ids = tokenizer->encode(document);
      expected.insert(expected.end(), ids.begin(), ids.end());
      expected.push_back(2);
    }
    EXPECT_TRUE(tokens_of("out.bin") == expected) << name;
  }
}

TEST_F(CharacterTokenizer, FilesComeBack) {
  const std::string text = "The fox\n the  dog \xE7\x8B\x90\n<|endoftext|>\n  and so on\n";
  const std::vector<std::string> inputs = {write("in.txt", text)};
  for (const char* name : {"llama2", "gemma3"}) {
    const auto tokenizer = open(name);
    io::tokenize_files(*tokenizer, inputs, path("out.bin"));
    io::decode_files(*tokenizer, {path("out.bin")}, path("back.txt"));

    EXPECT_EQ(content("back.txt"), text) << name;
  }
}

TEST_F(CharacterTokenizer, MergesOfBytesAreDoneToo) {
  auto file = file_of("llama2");
  const auto merged = static_cast<std::int32_t>(file["model"]["vocab"].size());
  file["model"]["vocab"]["<0xF0><0x9F>"] = merged;
  file["model"]["merges"].push_back("<0xF0> <0x9F>");
  const auto tokenizer = io::open_tokenizer(write("t.json", file.dump()));

  const auto ids = tokenizer->encode_part("a\xF0\x9F\xA6\x9E", io::TextPlace::inside);

  ASSERT_EQ(ids.size(), 4U);
  EXPECT_EQ(ids[1], merged);
  EXPECT_EQ(tokenizer->last_cut("The dog", 2), std::string_view::npos);  // nothing is known
}

TEST_F(CharacterTokenizer, OldFormsOfMetaspace) {
  auto file = file_of("mistral3");
  const auto opens = [&](const nlohmann::json& metaspace) {
    file["pre_tokenizer"] = metaspace;
    return io::open_tokenizer(write("t.json", file.dump()));
  };
  const auto text = [](const io::Tokenizer& tokenizer) {
    return decoded(tokenizer, tokenizer.encode("dog"));
  };
  const std::string mark = "\xE2\x96\x81";
  EXPECT_EQ(text(*opens({{"type", "Metaspace"}, {"replacement", mark}})), " dog");
  EXPECT_EQ(
      text(*opens({{"type", "Metaspace"}, {"replacement", mark}, {"add_prefix_space", true}})),
      " dog");
  EXPECT_EQ(
      text(*opens({{"type", "Metaspace"}, {"replacement", mark}, {"add_prefix_space", false}})),
      "dog");
}

TEST_F(CharacterTokenizer, SettingsThatAreNotDoneAreNamed) {
  using nlohmann::json;
  const json precompiled = {{"type", "Precompiled"}, {"precompiled_charsmap", "AAAA"}};
  expect_refused("llama2", {{"model", {{"type", "Unigram"}}}},
                 "model.type: expected BPE, found 'Unigram'");
  expect_refused("llama2", {{"model", {{"dropout", 0.1}}}},
                 "model.dropout: expected null, as equal texts have equal ids, found '0.1'");
  expect_refused("llama2", {{"model", {{"unk_token", "<none>"}}}},
                 "model.unk_token: expected a token of model.vocab, found");
  expect_refused("llama2", {{"model", {{"fuse_unk", 1}}}}, "fuse_unk: expected true or false");
  expect_refused("llama2", {{"normalizer", precompiled}}, "found '\"Precompiled\"'");
  expect_refused("llama2", {{"normalizer", {{"type", "NFKC"}}}}, "found '\"NFKC\"'");
  expect_refused("llama2", {{"normalizer", {{"type", "Sequence"}, {"normalizers", 7}}}},
                 "normalizer: expected a Sequence of at most 16 parts");
  expect_refused(
      "gemma3",
      {{"normalizer", {{"type", "Replace"}, {"pattern", {{"Regex", " +"}, {"String", nullptr}}}}}},
      "normalizer: expected a Replace of one character by another");
  expect_refused("llama2", {{"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "_"}}}},
                 "pre_tokenizer: expected null beside a normalizer with a Prepend");
  expect_refused("mistral3", {{"pre_tokenizer", {{"prepend_scheme", "last"}}}},
                 "pre_tokenizer.prepend_scheme: expected never, first or always");
  expect_refused("mistral3", {{"pre_tokenizer", {{"replacement", "__"}}}},
                 "pre_tokenizer.replacement: expected a character");
  expect_refused("gemma3", {{"pre_tokenizer", {{"behavior", "Removed"}}}},
                 "pre_tokenizer: expected null, Metaspace or a Split by one character");
  expect_refused("llama2", {{"decoder", nullptr}}, "decoder: expected Metaspace, or a Sequence");
  expect_refused("llama2", {{"decoder", {{"type", "WordPiece"}}}}, "found '\"WordPiece\"'");
  auto strip = file_of("llama2")["decoder"];
  strip["decoders"][3]["start"] = 2;
  expect_refused("llama2", {{"decoder", strip}}, "a Strip of one space at the start, found");
  auto added = file_of("phi3")["added_tokens"];
  added[3]["single_word"] = true;
  expect_refused("phi3", {{"added_tokens", added}},
                 "added_tokens[3].single_word: expected false, found");
  added[3]["single_word"] = false;
  added[3]["content"] = std::string(1025, 'x');
  expect_refused("phi3", {{"added_tokens", added}},
                 "added_tokens[3]: expected a token of at most 1024 bytes");
  added = file_of("llama2")["added_tokens"];
  const std::size_t tokens = file_of("llama2")["model"]["vocab"].size();
  for (std::size_t i = 0; i < 4200; ++i) {
    added.push_back({{"id", tokens + i}, {"content", fmt::format("{:01000}", i)}});
  }
  expect_refused("llama2", {{"added_tokens", added}},
                 "added_tokens[4197]: expected added tokens of at most 4194304 bytes in all");
  expect_refused("llama2", {{"model", {{"merges", json::array({json::array({"", "a"})})}}}},
                 "model.merges[0]: expected two tokens");
}

TEST_F(CharacterTokenizer, AFolderMayHaveSettingsThatAgree) {
  std::filesystem::create_directory(folder_ / "v");
  write("v/tokenizer.json", file_of("llama2").dump());
  write("v/tokenizer_config.json", R"({"add_prefix_space": true, "add_bos_token": true})");
  EXPECT_EQ(io::open_tokenizer(path("v"))->text_template().before, Ids{1});
  write("v/tokenizer_config.json", R"({"add_prefix_space": false})");
  expect_error(ExitCode::data,
               {path("v/tokenizer_config.json"), "add_prefix_space: expected true or null"},
               [&] { (void)io::open_tokenizer(path("v")); });
}

TEST_F(CharacterTokenizer, SentencePiecesOwnFileIsNamed) {
  std::filesystem::create_directory(folder_ / "v");
  write("v/tokenizer.model", "model");
  expect_error(ExitCode::data, {"tokenizer.model (SentencePiece", "save_pretrained"},
               [&] { (void)io::open_tokenizer(path("v")); });
  expect_error(ExitCode::data, {"tokenizer.model (SentencePiece", "save_pretrained"},
               [&] { (void)io::open_tokenizer(path("v/tokenizer.model")); });
}

/// As `tokenizers`: a token of spaces that an earlier one took is not there.
TEST_F(CharacterTokenizer, AnAddedTokenThatTakesSpacesTakesWholeTokensToo) {
  nlohmann::json file = file_of("gemma");
  nlohmann::json* longest = nullptr;  // of line breaks alone
  for (auto& token : file["added_tokens"]) {
    const std::string content = token["content"];
    if (content.find_first_not_of('\n') != std::string::npos) continue;
    if (longest == nullptr || content > (*longest)["content"]) longest = &token;
  }
  ASSERT_NE(longest, nullptr);
  (*longest)["lstrip"] = (*longest)["rstrip"] = true;
  const std::string lines = (*longest)["content"];
  const std::int32_t id = (*longest)["id"];
  const auto tokenizer = io::open_tokenizer(write("lines.json", file.dump()));

  const auto once = tokenizer->encode("a" + lines + "b");
  EXPECT_EQ(std::ranges::count(once, id), 1);
  EXPECT_EQ(tokenizer->encode("a" + lines + lines + "b"), once);
}

}  // namespace
}  // namespace hyperslab::test
