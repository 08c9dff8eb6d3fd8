// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>

#include "checkpoint/manifest.hpp"
#include "fixtures.hpp"

namespace hyperslab::test {
namespace {

namespace fs = std::filesystem;
using io::CheckpointReader;

class Damage : public testing::Test {
 protected:
  void SetUp() override {
    std::mt19937 rng(3);
    const auto ranks = scatter(globals_, 2, 3, rng);
    ASSERT_EQ(save_all(folder_.path(), meta(), ranks, {.block_bytes = 64, .writers = 2}),
              std::vector<std::string>(2));
  }
  static io::CheckpointMeta meta() {
    io::CheckpointMeta meta;
    meta.step = 10;
    return meta;
  }
  [[nodiscard]] std::string step(const std::string& file = "") const {
    return folder_.path() + "/step_00000010" + (file.empty() ? "" : "/" + file);
  }
  /// The tensor that owns the byte, "structure", or "" for bytes that no one wrote.
  static std::string owner(const CheckpointReader& reader, const std::string& file,
                           std::uint64_t byte) {
    for (const auto& [name, entry] : reader.tensors()) {
      for (const auto& piece : entry.pieces) {
        const auto bytes = static_cast<std::uint64_t>(piece.part.count.numel()) * 4;
        if (piece.file == file && byte >= piece.file_offset && byte < piece.file_offset + bytes) {
          return name;
        }
      }
    }
    for (const auto& entry : reader.files()) {
      if (entry.name != file) continue;
      for (const auto& part : entry.structure) {
        if (byte >= part.offset && byte < part.offset + part.bytes) return "structure";
      }
    }
    return "";
  }

  TempFolder folder_;
  Globals globals_ =
      make_globals({{"model/a", {9, 7}}, {"model/b", {50}}, {"model/c", {3, 4, 5}}}, 1);
};

TEST_F(Damage, AFlippedBitAnywhereNamesItsTensorAndBlock) {
  const CheckpointReader reader(folder_.path());
  std::mt19937 rng(11);
  std::set<std::string> owners;
  for (const char* file : {"rank_00000.h5", "rank_00001.h5"}) {
    const std::string sound = read_file(step(file));
    for (std::size_t byte = rng() % 5; byte < sound.size(); byte += 1 + rng() % 37) {
      const std::string name = owner(reader, file, byte);
      if (name.empty()) continue;
      owners.insert(name);
      std::string damaged = sound;
      damaged[byte] = static_cast<char>(damaged[byte] ^ (1 << (rng() % 8)));
      write_file(step(file), damaged);

      const auto problems = reader.verify();
      ASSERT_EQ(problems.size(), 1U) << file << " byte " << byte;
      const std::string expected =
          name == "structure" ? "structure of " + std::string(file) : "tensor " + name + ", block ";
      EXPECT_EQ(problems[0].find(expected), 0U) << problems[0];
      EXPECT_NE(problems[0].find(file), std::string::npos) << problems[0];
      EXPECT_NE(problems[0].find("CRC32C is "), std::string::npos) << problems[0];
      const auto text = refusal(ExitCode::checkpoint, [&] { (void)read_whole(reader); });
      EXPECT_NE(text.find(problems[0]), std::string::npos) << text;
    }
    write_file(step(file), sound);
  }
  EXPECT_EQ(owners, (std::set<std::string>{"model/a", "model/b", "model/c", "structure"}));
  expect_same(read_whole(reader), globals_);
}

TEST_F(Damage, OnlyTouchedBlocksMatter) {
  const CheckpointReader reader(folder_.path());
  const auto& piece = reader.tensors().at("model/a").pieces.front();
  std::string bytes = read_file(step(piece.file));
  bytes[piece.file_offset] = static_cast<char>(~bytes[piece.file_offset]);
  write_file(step(piece.file), bytes);
  std::vector<float> b(50);
  const io::SlabTarget target{
      "model/b", {50}, {{0}, {50}}, View(b.data(), DType::f32, Device::cpu, {50})};

  reader.read(std::span(&target, 1));

  EXPECT_EQ(b, globals_.at("model/b").values);
}

TEST_F(Damage, AnyFlippedBitOfTheManifestIsFound) {
  const std::string sound = read_file(step("manifest.json"));
  std::mt19937 rng(5);
  for (std::size_t byte = 0; byte < sound.size(); byte += 1 + rng() % 11) {
    std::string damaged = sound;
    damaged[byte] = static_cast<char>(damaged[byte] ^ (1 << (rng() % 8)));
    // White space between values may change, and a letter of JSON's own hexadecimal: no value does.
    try {
      const io::Manifest manifest = io::manifest_of_text(damaged, "manifest.json");
      EXPECT_EQ(io::to_text(manifest), sound) << "byte " << byte;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::checkpoint);
    }
  }
}

TEST_F(Damage, ATornManifestAtAnyLengthThrows) {
  const std::string sound = read_file(step("manifest.json"));
  for (std::size_t length = 0; length + 2 < sound.size(); length += 1 + length / 9) {
    write_file(step("manifest.json"), sound.substr(0, length));
    const auto text = refusal(ExitCode::checkpoint, [&] { const CheckpointReader reader(step()); });
    EXPECT_NE(text.find("manifest.json"), std::string::npos) << text;
  }
}

TEST_F(Damage, TruncatedMissingOrGrownFilesAreNotOpened) {
  const std::string file = step("rank_00001.h5");
  const std::string sound = read_file(file);
  const CheckpointReader before(folder_.path());

  fs::resize_file(file, sound.size() - 1);
  auto text = refusal(ExitCode::checkpoint, [&] { const CheckpointReader reader(step()); });
  EXPECT_NE(text.find("rank_00001.h5: it has"), std::string::npos) << text;
  EXPECT_NE(text.find("expected " + std::to_string(sound.size())), std::string::npos) << text;

  fs::resize_file(file, 100);  // while a reader has it open
  EXPECT_FALSE(before.verify().empty());
  text = refusal(ExitCode::checkpoint, [&] { (void)read_whole(before); });
  EXPECT_NE(text.find("it ends after"), std::string::npos) << text;

  fs::remove(file);
  text = refusal(ExitCode::checkpoint, [&] { const CheckpointReader reader(step()); });
  EXPECT_NE(text.find("rank_00001.h5: No such file"), std::string::npos) << text;
  text = refusal(ExitCode::checkpoint, [&] { (void)read_whole(before); });
  EXPECT_NE(text.find("rank_00001.h5"), std::string::npos) << text;

  write_file(file, sound + "x");
  text = refusal(ExitCode::checkpoint, [&] { const CheckpointReader reader(step()); });
  EXPECT_NE(text.find("rank_00001.h5: it has"), std::string::npos) << text;
}

TEST_F(Damage, NewerFormatsAreNamed) {
  std::string text = read_file(step("manifest.json"));
  const std::string mine = "\"format\": 1";
  text.replace(text.find(mine), mine.size(), "\"format\": 3");
  write_file(step("manifest.json"), text);

  const auto error = refusal(ExitCode::checkpoint, [&] { const CheckpointReader reader(step()); });

  EXPECT_NE(error.find("written by format 3, this program reads up to 2"), std::string::npos)
      << error;
}

TEST_F(Damage, ManifestsThatContradictThemselvesAreRefused) {
  const auto refused = [&](const std::function<void(io::Manifest&)>& change) {
    io::Manifest manifest = io::open_manifest(step());
    change(manifest);
    return refusal(ExitCode::checkpoint,
                   [&] { (void)io::manifest_of_text(io::to_text(manifest), "manifest.json"); });
  };
  const auto piece = [](io::Manifest& m) -> CheckpointReader::Piece& {
    return m.tensors.at("model/b").pieces.front();
  };
  EXPECT_NE(refused([&](auto& m) { piece(m).file_offset = ~0ULL - 3; }).find("beyond the end"),
            std::string::npos);
  EXPECT_NE(refused([&](auto& m) { piece(m).file = "rank_00009.h5"; }).find("list of files"),
            std::string::npos);
  EXPECT_NE(refused([&](auto& m) { piece(m).crc32c.push_back(1); }).find("checksums"),
            std::string::npos);
  EXPECT_NE(refused([&](auto& m) {
              piece(m).part.offset = {49};
              piece(m).part.count = {2};
            }).find("not within"),
            std::string::npos);
  EXPECT_NE(refused([&](auto& m) { m.files.front().name = "../x"; }).find("not possible"),
            std::string::npos);
  EXPECT_NE(refused([&](auto& m) { m.block_bytes = 0; }).find("block_bytes"), std::string::npos);
}

TEST_F(Damage, PiecesThatMeetAndAddUpAreNotRead) {
  io::Manifest manifest = io::open_manifest(step());
  auto& pieces = manifest.tensors.at("model/b").pieces;
  const auto half =
      std::ranges::find_if(pieces, [](const auto& piece) { return piece.part.count.numel() > 0; });
  ASSERT_NE(half, pieces.end());
  const Dim count = half->part.count.numel();
  pieces = {*half};
  while (static_cast<Dim>(pieces.size() + 1) * count <= 50) pieces.push_back(pieces.front());
  if (static_cast<Dim>(pieces.size()) * count < 50) {
    auto rest = pieces.front();
    rest.part.count = {50 - static_cast<Dim>(pieces.size()) * count};
    rest.crc32c.resize((static_cast<std::size_t>(rest.part.count.numel()) * 4 + 63) / 64);
    pieces.push_back(rest);
  }
  write_file(step("manifest.json"), io::to_text(manifest));
  const CheckpointReader reader(step());

  const auto text = refusal(ExitCode::checkpoint, [&] { (void)read_whole(reader); });

  EXPECT_NE(text.find("tensor model/b: "), std::string::npos) << text;
  EXPECT_NE(text.find("more than once"), std::string::npos) << text;
}

TEST_F(Damage, FilesOutsideOfTheFolderAreRefused) {
  io::Manifest manifest = io::open_manifest(step());
  for (const std::string& name :
       {std::string(".."), std::string("."), std::string("/etc/passwd"), std::string("../x"),
        std::string("a/b"), std::string(), std::string("x\0y", 3)}) {
    io::Manifest other = manifest;
    other.files.front().name = name;
    const auto text = refusal(ExitCode::checkpoint, [&] {
      (void)io::manifest_of_text(io::to_text(other), "manifest.json");
    });
    EXPECT_NE(text.find("not possible"), std::string::npos) << text;
  }
  for (const char* name : {"rank_00001.h5", "manifest.json"}) {
    const std::string there = folder_.path() + "/elsewhere";
    fs::rename(step(name), there);
    fs::create_symlink(there, step(name));
    const auto text = refusal(ExitCode::checkpoint, [&] { const CheckpointReader reader(step()); });
    EXPECT_NE(text.find(std::string(name) + ": it is a link out of the checkpoint"),
              std::string::npos)
        << text;
    fs::remove(step(name));
    fs::rename(there, step(name));
  }
  fs::rename(step("rank_00001.h5"), step("other.h5"));
  fs::create_symlink("other.h5", step("rank_00001.h5"));
  EXPECT_TRUE(CheckpointReader(step()).verify().empty());
}

TEST_F(Damage, DeepNestingIsRefused) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  const auto text = refusal(ExitCode::checkpoint, [&] {
    (void)io::manifest_of_text(R"({"format":1,"crc32c":0,"x":)" + deep + "}", "manifest.json");
  });
  EXPECT_NE(text.find("nested too deep"), std::string::npos) << text;
}

TEST_F(Damage, JsonOfAnotherTypeIsRefusedInOurWords) {
  for (const char* manifest :
       {"[]", "[1]", "\"x\"", "3", "null", R"({"format":[],"crc32c":0})", R"({"crc32c":0})",
        R"({"format":1,"crc32c":"a"})", R"({"format":{},"crc32c":{}})"}) {
    const auto text = refusal(ExitCode::checkpoint,
                              [&] { (void)io::manifest_of_text(manifest, "manifest.json"); });
    EXPECT_EQ(text.find("json.exception"), std::string::npos) << text;
    EXPECT_EQ(text.find("cannot use"), std::string::npos) << text;
  }
}

TEST_F(Damage, NumbersThatAreNotWholeAreRefused) {
  for (const char* number : {"92233720236854775808", "-1.5", "1e30", "-9223372036854775809"}) {
    const auto text = refusal(ExitCode::checkpoint, [&] {
      (void)io::manifest_of_text(
          std::string(R"({"format":1,"crc32c":0,"loss_scale":0.5,"tensors":{"a":[)") + number +
              "]}}",
          "manifest.json");
    });
    EXPECT_NE(text.find("a number in 'tensors' is not whole or is too large"), std::string::npos)
        << text;
  }
}

TEST_F(Damage, VerifyFindsGapsAndOverlapsOfThePieces) {
  io::Manifest manifest = io::open_manifest(step());
  auto& pieces = manifest.tensors.at("model/b").pieces;
  pieces.push_back(pieces.front());
  write_file(step("manifest.json"), io::to_text(manifest));
  auto problems = CheckpointReader(step()).verify();
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_NE(problems[0].find("tensor model/b: "), std::string::npos) << problems[0];
  EXPECT_NE(problems[0].find("more than once"), std::string::npos) << problems[0];

  pieces.pop_back();
  pieces.pop_back();
  write_file(step("manifest.json"), io::to_text(manifest));
  const CheckpointReader gap(step());
  problems = gap.verify();
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_NE(problems[0].find("of 50 elements are stored"), std::string::npos) << problems[0];
  const auto text = refusal(ExitCode::checkpoint, [&] { (void)read_whole(gap); });
  EXPECT_NE(text.find("tensor model/b has"), std::string::npos) << text;
}

}  // namespace
}  // namespace hyperslab::test
