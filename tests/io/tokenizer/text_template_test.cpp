// SPDX-License-Identifier: Apache-2.0
// Special tokens around texts: post_processor of tokenizer.json, and tokenizer_config.json.
#include "io/tokenizer/vocabularies.hpp"

namespace hyperslab::test {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

/// A folder v with a vocabulary whose ids from 259 on are <|endoftext|>, <s> and </e>.
class TextTemplates : public VocabularyTest {
 protected:
  TextTemplates() {
    train("the the cat", 262, "v", {"<|endoftext|>", "<s>", "</e>"});
    file_ = json_of("v/tokenizer.json");
  }
  static json special(const std::string& token) {
    return {{"SpecialToken", {{"id", token}, {"type_id", 0}}}};
  }
  static json processor(const json& single) {
    json tokens;
    for (const auto& [token, id] : {std::pair("<s>", 260), std::pair("</e>", 261)}) {
      tokens[token] = {{"id", token}, {"ids", {id}}, {"tokens", {token}}};
    }
    return {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", tokens}};
  }
  static json before_and_after() { return processor({special("<s>"), text_, special("</e>")}); }
  void set(const json& post_processor) {
    file_["post_processor"] = post_processor;
    write("v/tokenizer.json", file_.dump());
  }
  [[nodiscard]] std::unique_ptr<io::Tokenizer> open() const {
    return io::open_tokenizer(path("v"));
  }
  void expect(const Ids& before, const Ids& after) const {
    EXPECT_EQ(open()->text_template().before, before);
    EXPECT_EQ(open()->text_template().after, after);
  }
  void refuse(std::initializer_list<std::string> parts) const {
    expect_error(ExitCode::data, parts, [this] { (void)open(); });
  }
  void config(const json& content) { write("v/tokenizer_config.json", content.dump()); }
  /// Token ids of a file with this text.
  Ids ids_of(const std::string& text, bool special_tokens = true) {
    io::tokenize_files(*open(), std::vector{write("in.txt", text)}, path("out.bin"), {},
                       special_tokens);
    return read_all(*io::open_tokens({path("out.bin")}, io::RawIds::uint16, 262, 1));
  }

  static inline const json text_ = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  json file_;
};

TEST_F(TextTemplates, AreThoseOfThePostProcessor) {
  const json byte_level = {{"type", "ByteLevel"}, {"trim_offsets", false}};
  set(nullptr);
  expect({}, {});
  set(byte_level);
  expect({}, {});
  set(before_and_after());
  expect({260}, {261});
  set({{"type", "Sequence"}, {"processors", {byte_level, processor({special("<s>"), text_})}}});
  expect({260}, {});
  const auto tokenizer = open();
  EXPECT_EQ(decoded(*tokenizer, tokenizer->encode("the")), "the");
  EXPECT_EQ(tokenizer->encode("the").size(), 1U);
}

TEST_F(TextTemplates, TokensHaveTheNamesOfTheFiles) {
  const auto named = [this] {
    const io::NamedTokens tokens = open()->named_tokens();
    return Ids{tokens.bos, tokens.eos, tokens.pad};
  };
  set(nullptr);
  EXPECT_EQ(named(), Ids({-1, 259, -1}));
  set(before_and_after());
  EXPECT_EQ(named(), Ids({260, 259, -1}));
  write("v/special_tokens_map.json", R"({"eos_token": {"content": "</e>"}, "pad_token": "</e>"})");
  EXPECT_EQ(named(), Ids({260, 261, 261}));
  config(
      {{"bos_token", "<|endoftext|>"}, {"eos_token", {{"content", "<s>"}}}, {"pad_token", "?!"}});
  EXPECT_EQ(named(), Ids({259, 260, -1}));
  const io::NamedTokens bytes = io::open_tokenizer("bytes")->named_tokens();
  EXPECT_EQ(Ids({bytes.bos, bytes.eos, bytes.pad}), Ids({-1, 256, -1}));
}

TEST_F(TextTemplates, SpecialTokensInATextAreTextUnlessTheyAreParsed) {
  const std::string text = "the </e>the<s><|endoftext|>";
  const auto ids = [&](io::SpecialTokens special) {
    return io::open_tokenizer(path("v"), special)->encode(text);
  };
  const Ids the = open()->encode("the ");
  Ids expected = the;
  expected.push_back(261);
  expected.insert(expected.end(), the.begin(), the.end() - 1);
  expected.insert(expected.end(), {260, 259});

  EXPECT_EQ(ids(io::SpecialTokens::parsed), expected);
  EXPECT_EQ(decoded(*open(), ids(io::SpecialTokens::text)), text);
  EXPECT_GT(ids(io::SpecialTokens::text).size(), expected.size() + 10);
  // Without a tokenizer.json those that the files name.
  std::filesystem::remove(path("v/tokenizer.json"));
  config({{"bos_token", "<s>"}});
  const auto named = io::open_tokenizer(path("v"), io::SpecialTokens::parsed);
  EXPECT_EQ(named->encode("<s></e><|endoftext|>").front(), 260);
  EXPECT_EQ(named->encode("<s></e><|endoftext|>").back(), 259);
  EXPECT_EQ(named->encode("</e>").size(), open()->encode("</e>").size());
}

/// As transformers' GPT2Tokenizer finds them beside vocab.json (checked with 5.24).
TEST_F(TextTemplates, ParsedTokensOfAVocabJsonAreThoseOfItsSettings) {
  const auto ids = [&](const std::string& text) {
    return io::open_tokenizer(path("v"), io::SpecialTokens::parsed)->encode(text);
  };
  const auto named = [&](const std::string& key, const json& value) {
    config({{key, value}});
    return ids("<s>") == Ids{260} && ids("</e>").size() > 1 && ids("<|endoftext|>") == Ids{259};
  };
  std::filesystem::remove(path("v/tokenizer.json"));
  const json stripping = {{"content", "<s>"}, {"lstrip", true}, {"special", true}};
  for (const char* key : {"unk_token", "cls_token", "sep_token", "mask_token", "image_token"}) {
    EXPECT_TRUE(named(key, "<s>")) << key;
    EXPECT_TRUE(named(key, stripping)) << key;
    EXPECT_EQ(ids(" \n<s>"), Ids{260}) << key;
  }
  EXPECT_TRUE(named("additional_special_tokens", {"<s>", "<none>"}));
  EXPECT_TRUE(named("extra_special_tokens", {{"image", stripping}}));
  EXPECT_TRUE(named("added_tokens_decoder", {{"260", stripping}}));
  EXPECT_EQ(ids(" <s>"), Ids{260});

  // Its own tokens have ids after those of vocab.json.
  config({{"added_tokens_decoder", {{"262", {{"content", "<new>"}, {"special", true}}}}}});
  EXPECT_EQ(ids("<new>"), Ids{262});
  EXPECT_EQ(decoded(*open(), {262}), "<new>");
  EXPECT_EQ(decoded(*open(), open()->encode("<new>")), "<new>");
  EXPECT_GT(open()->encode("<new>").size(), 1U);
  write("v/special_tokens_map.json", json{{"unk_token", "</e>"}, {"pad_token", "<s>"}}.dump());
  EXPECT_GT(ids("</e>").size(), 1U);
  config({{"unk_token", "<s>"}, {"cls_token", "<s>"}});
  EXPECT_EQ(ids("</e><s>"), Ids({261, 260}));
  config({{"added_tokens_decoder", {{"last", {{"content", "<new>"}, {"special", true}}}}}});
  refuse({"added_tokens_decoder.last", "an id"});
}

/// As the package tokenizers does, whatever else the files name.
TEST_F(TextTemplates, TokensThatATokenizerJsonDoesNotAddStayText) {
  file_["added_tokens"] = json::array();
  set(before_and_after());
  config({{"bos_token", "<s>"}, {"eos_token", "</e>"}});
  const auto parsed = io::open_tokenizer(path("v"), io::SpecialTokens::parsed);

  for (const char* name : {"<|endoftext|>", "<s>", "</e>"}) {
    EXPECT_EQ(parsed->encode(name), open()->encode(name));
    EXPECT_GT(parsed->encode(name).size(), 1U);
  }
}

/// Flags of special tokens matter only where these are looked for.
TEST_F(TextTemplates, SpecialTokensTakeWhiteSpaceOrAreRefused) {
  file_["added_tokens"][1]["lstrip"] = true;
  set(nullptr);
  const auto tokenizer = io::open_tokenizer(path("v"), io::SpecialTokens::parsed);
  Ids expected = tokenizer->encode("the");
  expected.push_back(260);

  EXPECT_EQ(tokenizer->encode("the \n <s>"), expected);

  file_["added_tokens"][1]["single_word"] = true;
  set(nullptr);
  EXPECT_NO_THROW((void)open());
  EXPECT_EQ(io::unparsed_special_token(path("v")), "<s>");
  expect_error(ExitCode::data,
               {path("v/tokenizer.json"), "'<s>'", "single_word", "leave out --parse-special"},
               [this] { (void)io::open_tokenizer(path("v"), io::SpecialTokens::parsed); });
}

/// Parts of a long text have the ids that it has as a whole.
TEST_F(TextTemplates, SpecialTokensAreNotCut) {
  file_["added_tokens"][1]["rstrip"] = true;
  file_["added_tokens"][2]["content"] = "</e of\nx>";
  file_["model"]["vocab"]["</e of\nx>"] = 261;
  file_["model"]["vocab"].erase("</e>");
  set(nullptr);
  const auto tokenizer = io::open_tokenizer(path("v"), io::SpecialTokens::parsed);
  std::string text;
  std::mt19937 random(3);
  for (int i = 0; i < 400; ++i) {
    const char* const parts[] = {"the", " ",          "\n", "cat",
                                 "<s>", "</e of\nx>", "!",  "<|endoftext|>"};
    text += parts[random() % std::size(parts)];
  }
  const Ids whole = tokenizer->encode(text);
  for (std::size_t end = 4; end <= text.size(); ++end) {
    const std::size_t cut = tokenizer->last_cut(std::string_view(text).substr(0, end), 2);
    if (cut == std::string::npos) continue;
    Ids ids = tokenizer->encode(text.substr(0, cut));
    const Ids rest = tokenizer->encode(text.substr(cut));
    ids.insert(ids.end(), rest.begin(), rest.end());
    ASSERT_EQ(ids, whole) << "cut at " << cut;
  }
}

TEST_F(TextTemplates, OfOtherKindsAreRefused) {
  const json roberta = {
      {"type", "RobertaProcessing"}, {"sep", {"</e>", 261}}, {"cls", {"<s>", 260}}};
  set(roberta);
  refuse({path("v/tokenizer.json"), "post_processor: expected ByteLevel", "RobertaProcessing"});
  set({{"type", "Sequence"}, {"processors", {{{"type", "BertProcessing"}}}}});
  refuse({"post_processor", "BertProcessing"});
  set(processor({special("<x>"), text_}));
  refuse({"special_tokens with all tokens", "<x>"});
  set(processor(json::array({special("<s>")})));
  refuse({"the text A once"});
  set(processor({text_, {{"Sequence", {{"id", "B"}}}}}));
  refuse({"the text A in the template"});
  auto large = before_and_after();
  large["special_tokens"]["<s>"]["ids"] = {262};
  set(large);
  refuse({"ids below 262", "'262'"});
}

TEST_F(TextTemplates, StandAroundEveryDocumentOfATokenFile) {
  set(before_and_after());
  const auto tokenizer = open();
  const Ids one = tokenizer->encode("cat");
  const Ids two = tokenizer->encode("the the\n");
  Ids expected = {260};
  expected.insert(expected.end(), two.begin(), two.end());
  expected.insert(expected.end(), {261, 259, 260});
  expected.insert(expected.end(), one.begin(), one.end());
  expected.insert(expected.end(), {261, 259});

  EXPECT_EQ(ids_of("the the\n<|endoftext|>\ncat"), expected);
  io::decode_files(*tokenizer, {path("out.bin")}, path("back.txt"));
  EXPECT_EQ(content("back.txt"), "the the\n<|endoftext|>\ncat");
  std::erase_if(expected, [](std::int32_t id) { return id == 260 || id == 261; });
  EXPECT_EQ(ids_of("the the\n<|endoftext|>\ncat", false), expected);
  EXPECT_EQ(ids_of("<|endoftext|>\n"), (Ids{260, 261, 259}));  // a file without text
}

TEST_F(TextTemplates, DoNotDoubleTheEndOfText) {
  std::filesystem::remove(path("v/tokenizer.json"));
  config({{"add_bos_token", true}, {"add_eos_token", true}});

  expect({259}, {259});
  const Ids ids = ids_of("the\n<|endoftext|>\nthe");
  EXPECT_EQ(std::ranges::count(ids, 259), 2);
  EXPECT_EQ(ids.back(), 259);
}

TEST_F(TextTemplates, AreThoseOfTheConfigBesideVocabJson) {
  std::filesystem::remove(path("v/tokenizer.json"));
  config({{"add_bos_token", true}, {"bos_token", {{"content", "<s>"}}}, {"eos_token", "</e>"}});
  expect({260}, {});
  config({{"add_eos_token", true}, {"bos_token", "<s>"}, {"eos_token", "</e>"}});
  expect({}, {261});
  config({{"add_bos_token", false}, {"add_eos_token", nullptr}, {"bos_token", "<s>"}});
  expect({}, {});
  config({{"add_bos_token", true}});
  expect({259}, {});
  write("v/special_tokens_map.json", R"({"bos_token": "</e>"})");
  expect({261}, {});
  config({{"add_bos_token", true}, {"bos_token", "<x>"}});
  refuse({path("v/tokenizer_config.json"), "bos_token: expected a token of the vocabulary", "<x>"});
  config({{"add_bos_token", 7}});
  refuse({"add_bos_token: expected true or false, found '7'"});
  write("v/tokenizer_config.json", "[]");
  refuse({"tokenizer_config.json", "expected an object, found array"});
}

TEST_F(TextTemplates, OfATokenizerJsonDoNotFollowTheConfig) {
  set(before_and_after());
  config({{"add_bos_token", false}, {"bos_token", "<s>"}});
  expect({260}, {261});
  set(nullptr);
  config({{"add_bos_token", true}, {"bos_token", "<s>"}});
  expect({}, {});
}

TEST_F(TextTemplates, ATokenAfterTextsEndsDocumentsIfNoOtherDoes) {
  set(before_and_after());
  file_["added_tokens"] = json::array();
  file_["model"]["vocab"].erase("<|endoftext|>");
  file_["model"]["vocab"]["<end>"] = 259;
  set(before_and_after());

  EXPECT_EQ(open()->end_of_text(), 261);
  EXPECT_TRUE(open()->is_special(260));
  EXPECT_TRUE(open()->is_special(261));
}

TEST_F(TextTemplates, SettingsThatGiveOtherIdsAreRefused) {
  config({{"add_prefix_space", true}, {"tokenizer_class", "GPT2Tokenizer"}});
  refuse({path("v/tokenizer_config.json"), "add_prefix_space: expected false", "'true'"});
  std::filesystem::remove(path("v/tokenizer.json"));
  refuse({"add_prefix_space: expected false"});
  config({{"tokenizer_class", "CLIPTokenizer"}});
  refuse({"tokenizer_class: expected GPT2Tokenizer", "CLIPTokenizer"});
  config({{"added_tokens_decoder", {{"7", {{"content", "the"}, {"special", false}}}}}});
  refuse({"added_tokens_decoder.7: expected special tokens alone"});
  config({{"tokenizer_class", "GPT2TokenizerFast"}, {"add_prefix_space", false}});
  expect({}, {});
}

TEST_F(TextTemplates, APrefixSpaceBesideAPatternOfItsOwnIsNoSetting) {
  std::filesystem::rename(with_pattern("v", "\\S+|\\s+"), path("v/tokenizer.json"));
  config({{"add_prefix_space", true}, {"tokenizer_class", "PreTrainedTokenizerFast"}});

  EXPECT_EQ(decoded(*open(), open()->encode("the cat")), "the cat");
}

}  // namespace
}  // namespace hyperslab::test
