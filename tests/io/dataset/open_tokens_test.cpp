// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>

#include "dataset/token_writer.hpp"
#include "io/dataset/files.hpp"

namespace hyperslab::test {
namespace {

using Ids = std::vector<std::int32_t>;

class OpenTokens : public FilesTest {
 protected:
  std::unique_ptr<io::TokenSource> open(const std::vector<std::string>& paths,
                                        std::int64_t V = 257) {
    return io::open_tokens(paths, io::RawIds::uint16, V, 1);
  }
  void refuse(const std::vector<std::string>& paths, std::initializer_list<std::string> parts,
              std::int64_t V = 257) {
    expect_error(ExitCode::data, parts, [&] { open(paths, V); });
  }
  static Ids counted(std::int32_t first, std::size_t count) {
    Ids ids(count);
    std::iota(ids.begin(), ids.end(), first);
    return ids;
  }
};

TEST_F(OpenTokens, RefusesWhatIsNoFile) {
  std::filesystem::create_directory(folder_ / "folder.bin");

  refuse({path("missing.bin")}, {path("missing.bin"), "No such file"});
  refuse({path("folder.bin")}, {path("folder.bin"), "a directory"});
  refuse({write("empty.bin", "")}, {path("empty.bin"), "0 bytes"});
  refuse({write("story.txt", "once")}, {path("story.txt"), "hyperslab tokenize"});
  refuse({path("*.tokens")}, {path("*.tokens"), "match", "none"});
  refuse({}, {"empty list"});
  refuse({"synthetic", path("a.bin")}, {"'synthetic' alone"});
  refuse({"/dev/null"}, {"/dev/null", "regular file"});
}

TEST_F(OpenTokens, NamesFileOffsetAndIdBeyondTheVocabulary) {
  Ids ids(1000000, 3);
  ids[777777] = 300;
  io::write_token_file(path("a.bin"), Ids(10, 1), 257);
  io::write_token_file(path("b.bin"), ids, 301);

  EXPECT_EQ(open({path("?.bin")}, 301)->size(), 1000010);
  refuse({path("?.bin")}, {path("b.bin"), "vocabulary of 257", "id 300", "token 777777",
                           "byte " + std::to_string(1024 + 2 * 777777)});
  refuse({write("minus.npy", npy(1, "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }",
                                 bytes_of<std::int64_t>({5, -4})))},
         {"id -4", "token 1,"});
  refuse({write("raw.bin", bytes_of<std::uint16_t>({1, 400}))}, {"id 400", "data.dtype"});
}

TEST_F(OpenTokens, ReadsAcrossShardsOfDifferentFormatsInOrder) {
  io::write_token_file(path("s2.bin"), counted(5, 2), 257);
  io::write_token_file(path("s1.npy"), counted(0, 5), 257);
  io::write_token_file(path("s3.h5"), counted(7, 1), 257);
  io::write_token_file(path("last.bin"), counted(8, 4), 100000);

  const auto source = open({path("s*"), path("last.bin")});

  EXPECT_EQ(read_all(*source), counted(0, 12));
  for (std::int64_t first = 0; first < 12; ++first) {
    for (std::size_t count = 0; count <= static_cast<std::size_t>(12 - first); ++count) {
      Ids out(count);
      source->read(first, out);
      EXPECT_EQ(out, counted(static_cast<std::int32_t>(first), count));
    }
  }
  Ids too_many(3);
  EXPECT_THROW(source->read(10, too_many), Error);
  EXPECT_THROW(source->read(-1, too_many), Error);
  EXPECT_NE(source->description().find("12 tokens"), std::string::npos);
  EXPECT_EQ(read_all(*open({path("last.bin"), path("s2.bin")})), (Ids{8, 9, 10, 11, 5, 6}));
}

TEST_F(OpenTokens, TakesAPathWithBracketsAsItIs) {
  io::write_token_file(path("a[1].bin"), counted(0, 3), 257);

  EXPECT_EQ(open({path("a[1].bin")})->size(), 3);
}

TEST_F(OpenTokens, FingerprintFollowsContentFormatAndOrder) {
  io::write_token_file(path("a.bin"), counted(0, 100), 257);
  io::write_token_file(path("b.bin"), counted(1, 100), 257);
  io::write_token_file(path("a.npy"), counted(0, 100), 257);
  Ids large(2000000, 1);
  io::write_token_file(path("large.bin"), large, 257);
  large.back() = 2;
  io::write_token_file(path("changed.bin"), large, 257);
  const auto print = [&](const std::vector<std::string>& names) {
    std::vector<std::string> paths;
    paths.reserve(names.size());
    for (const std::string& name : names) paths.push_back(path(name));
    return open(paths)->fingerprint();
  };

  EXPECT_EQ(print({"a.bin", "b.bin"}), print({"a.bin", "b.bin"}));
  EXPECT_NE(print({"a.bin", "b.bin"}), print({"b.bin", "a.bin"}));
  EXPECT_NE(print({"a.bin"}), print({"b.bin"}));
  EXPECT_NE(print({"a.bin"}), print({"a.npy"}));
  EXPECT_NE(print({"large.bin"}), print({"changed.bin"}));
}

TEST_F(OpenTokens, FilesAreReportedOneByOne) {
  io::write_token_file(path("a.bin"), counted(0, 100), 257);
  io::write_token_file(path("b.npy"), counted(1, 50), 257);
  std::filesystem::copy(path("a.bin"), path("c.bin"));

  const auto files = open({path("a.bin"), path("b.npy"), path("c.bin")})->files();

  ASSERT_EQ(files.size(), 3U);
  EXPECT_EQ(files[0].path, path("a.bin"));
  EXPECT_EQ(files[0].format, "llm.c uint16");
  EXPECT_EQ(files[0].tokens, 100);
  EXPECT_EQ(files[0].file_bytes, 1024 + 200);
  EXPECT_EQ(files[1].tokens, 50);
  EXPECT_NE(files[0].fingerprint, files[1].fingerprint);
  EXPECT_EQ(files[0].fingerprint, files[2].fingerprint);
  EXPECT_TRUE(open({"synthetic"})->files().empty());
}

TEST_F(OpenTokens, FingerprintSeesAnyChangedByteOfUpToAGibibyte) {
  io::write_token_file(path("a.bin"), Ids(3 << 20, 1), 257);
  const std::uint64_t before = open({path("a.bin")})->fingerprint();
  std::fstream file(path("a.bin"), std::ios::in | std::ios::out | std::ios::binary);
  for (const int token : {0, 12345, 1 << 20, 2000003, (3 << 20) - 1}) {
    const auto write = [&](char id) {
      file.seekp(1024 + 2 * token);
      file.write(&id, 1);
      file.flush();
    };
    write(2);
    EXPECT_NE(open({path("a.bin")})->fingerprint(), before) << token;
    write(1);
    EXPECT_EQ(open({path("a.bin")})->fingerprint(), before) << token;
  }
}

TEST_F(OpenTokens, FingerprintOfMoreThanAGibibyteSeesSizesEndsAndOtherText) {
  const auto make = [&](const std::string& name, std::int64_t bytes) {
    std::ofstream(path(name)) << "";
    std::filesystem::resize_file(path(name), static_cast<std::uintmax_t>(bytes));  // a hole
    return path(name);
  };
  constexpr std::int64_t kBytes = (1LL << 30) + (64 << 20);
  const std::uint64_t before = open({make("a.bin", kBytes)})->fingerprint();
  const auto changed = [&](std::int64_t first, std::int64_t bytes) {
    make("b.bin", kBytes);
    std::fstream file(path("b.bin"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(first);
    file << std::string(static_cast<std::size_t>(bytes), '\1');
    file.close();
    return open({path("b.bin")}, 258)->fingerprint();
  };

  EXPECT_EQ(changed(0, 0), before);
  EXPECT_NE(changed(0, 2), before);
  EXPECT_NE(changed(kBytes - 2, 2), before);
  EXPECT_NE(changed(kBytes / 2, 8 << 20), before);
  EXPECT_NE(open({make("c.bin", kBytes + 2)})->fingerprint(), before);
}

TEST_F(OpenTokens, ChecksIdsOfReadEvenAfterTheFileChanged) {
  io::write_token_file(path("a.bin"), Ids(100, 1), 257);
  const auto source = open({path("a.bin")});
  std::fstream file(path("a.bin"), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(1024 + 2 * 40);
  file.write("\xFF\x01", 2);
  file.close();

  Ids out(50);
  expect_error(ExitCode::data, {path("a.bin"), "id 511", "token 40,"},
               [&] { source->read(20, out); });
}

TEST_F(OpenTokens, NamesAFileThatIsNotWhatWasOpened) {
  io::write_token_file(path("a.bin"), Ids(100, 1), 257);
  for (const char* name : {"b.bin", "b.h5"}) {
    io::write_token_file(path(name), Ids(100, 1), 257);
    const auto source = open({path("a.bin"), path(name)});
    const auto modified = std::filesystem::last_write_time(path(name));
    const auto size = std::filesystem::file_size(path(name));
    const auto refused = [&](const std::string& found) {
      expect_error(ExitCode::data, {path(name), found, "do not change"},
                   [&] { source->require_unchanged(); });
    };

    EXPECT_NO_THROW(source->require_unchanged());
    std::filesystem::last_write_time(path(name), modified + std::chrono::nanoseconds(1));
    refused("another time of modification");
    std::filesystem::resize_file(path(name), size + 2);
    refused(std::to_string(size + 2) + " bytes");
    std::filesystem::resize_file(path(name), size);
    std::filesystem::last_write_time(path(name), modified);
    EXPECT_NO_THROW(source->require_unchanged());
    std::filesystem::remove(path(name));
    EXPECT_NO_THROW(source->require_unchanged());
    EXPECT_EQ(read_all(*source), Ids(200, 1));
  }
}

TEST(Synthetic, IsAFunctionOfSeedAndIndexAlone) {
  const auto source = io::open_tokens({"synthetic"}, io::RawIds::uint16, 1000, 7);
  Ids all(3000);
  source->read(123456789, all);

  for (std::size_t first : {0U, 1U, 17U, 2000U}) {
    Ids part(500);
    source->read(123456789 + static_cast<std::int64_t>(first), part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + static_cast<long>(first)));
  }
  Ids other(3000);
  io::open_tokens({"synthetic"}, io::RawIds::uint16, 1000, 8)->read(123456789, other);
  EXPECT_NE(all, other);
  EXPECT_EQ(source->size(), 1LL << 31);
  source->read(source->size() - 500, other = Ids(500));
}

TEST(Synthetic, FollowsItsMapThreeTimesInFourAndIsUniformOverall) {
  constexpr int V = 100;
  const auto source = io::open_tokens({"synthetic"}, io::RawIds::uint16, V, 7);
  Ids ids(200000);
  source->read(0, ids);

  std::vector<std::map<int, int>> followers(V);
  std::vector<int> counts(V);
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
    ASSERT_TRUE(ids[i] >= 0 && ids[i] < V);
    ++followers[static_cast<std::size_t>(ids[i])][ids[i + 1]];
    ++counts[static_cast<std::size_t>(ids[i])];
  }
  int predicted = 0;
  for (const auto& row : followers) {
    int most = 0;
    for (const auto& [id, count] : row) most = std::max(most, count);
    predicted += most;
  }
  // 3/4, and 1/V of the quarter drawn by itself; the deviation of the mean is 0.001.
  EXPECT_NEAR(predicted / 199999.0, 0.75 + 0.25 / V, 0.005);
  for (const int count : counts) EXPECT_NEAR(count, 2000, 300);
}

}  // namespace
}  // namespace hyperslab::test
