// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include "checkpoint/manifest.hpp"
#include "fixtures.hpp"

namespace hyperslab::test {
namespace {

namespace fs = std::filesystem;
using io::CheckpointReader;

class KeptVocabulary : public testing::Test {
 protected:
  void SetUp() override { save({{"vocab.json", "{\"a\": 0}"}, {"merges.txt", ""}}); }
  void save(std::vector<io::VocabularyFile> files) {
    io::CheckpointMeta meta;
    meta.step = 10;
    meta.vocabulary = std::move(files);
    ASSERT_EQ(save_all(folder_.path(), meta, whole(globals_)), std::vector<std::string>{""});
  }
  [[nodiscard]] std::string step(const std::string& file) const {
    return folder_.path() + "/step_00000010/" + file;
  }

  TempFolder folder_;
  Globals globals_ = make_globals({{"model/a", {3, 4}}}, 1);
};

TEST_F(KeptVocabulary, IsAFolderOfTheStep) {
  const CheckpointReader reader(folder_.path());

  EXPECT_EQ(reader.vocabulary_path(), reader.folder() + "/vocabulary");
  EXPECT_EQ(read_file(step("vocabulary/vocab.json")), "{\"a\": 0}");
  EXPECT_EQ(read_file(step("vocabulary/merges.txt")), "");
  ASSERT_EQ(reader.vocabulary().size(), 2U);
  EXPECT_EQ(reader.vocabulary()[0].name, "vocab.json");
  EXPECT_EQ(reader.vocabulary()[0].bytes, 8U);
  EXPECT_EQ(reader.bytes(), fs::file_size(step("rank_00000.h5")) + 8U);
  EXPECT_EQ(reader.verify(), std::vector<std::string>{});
  EXPECT_NE(io::describe(reader).find("vocabulary vocab.json, merges.txt\n"), std::string::npos);
}

TEST_F(KeptVocabulary, DamageIsNamedAndLeavesTheTensors) {
  const CheckpointReader reader(folder_.path());
  const auto expect_problem = [&](const std::string& expected) {
    const auto problems = reader.verify();
    ASSERT_EQ(problems.size(), 1U);
    EXPECT_NE(problems[0].find(expected), std::string::npos) << problems[0];
    const auto text = refusal(ExitCode::checkpoint, [&] { (void)reader.vocabulary_path(); });
    EXPECT_NE(text.find(expected), std::string::npos) << text;
    expect_same(read_whole(CheckpointReader(folder_.path())), globals_);
  };

  write_file(step("vocabulary/vocab.json"), "{\"b\": 0}");
  expect_problem("vocabulary/vocab.json: it was changed: CRC32C is ");
  write_file(step("vocabulary/vocab.json"), "{}");
  expect_problem("vocabulary/vocab.json: it has 2 bytes, expected 8");
  fs::remove(step("vocabulary/vocab.json"));
  expect_problem("vocabulary/vocab.json: opening it failed: No such file");
}

TEST_F(KeptVocabulary, IsReplacedWithItsStep) {
  save({{"tokenizer.json", "{}"}});
  const CheckpointReader reader(folder_.path());
  EXPECT_FALSE(fs::exists(step("vocabulary/vocab.json")));
  EXPECT_EQ(reader.verify(), std::vector<std::string>{});

  save({});
  EXPECT_FALSE(fs::exists(step("vocabulary")));
  EXPECT_EQ(CheckpointReader(folder_.path()).vocabulary_path(), "");
  EXPECT_EQ(read_file(step("manifest.json")).find("vocabulary"), std::string::npos);
}

TEST_F(KeptVocabulary, StaysInsideItsFolder) {
  for (const char* name : {"../rank_00000.h5", "/etc/passwd", "..", ".", ""}) {
    io::Manifest manifest = io::open_manifest(step(""));
    manifest.vocabulary = {{name, 1, 2}};
    const auto text = refusal(ExitCode::checkpoint, [&] {
      (void)io::manifest_of_text(io::to_text(manifest), "manifest.json");
    });
    EXPECT_NE(text.find("a file name that is not possible"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace hyperslab::test
