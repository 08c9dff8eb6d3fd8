// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "checkpoint/layout.hpp"
#include "checkpoint/steps.hpp"
#include "files/crc32c.hpp"
#include "files/storage.hpp"
#include "fixtures.hpp"
#include "run_jobs.hpp"

namespace hyperslab::test {
namespace {

TEST(Crc32c, KnownVectors) {
  const std::string digits = "123456789";
  EXPECT_EQ(io::crc32c(digits.data(), digits.size()), 0xE3069283U);
  EXPECT_EQ(io::crc32c_by_table(digits.data(), digits.size()), 0xE3069283U);
  EXPECT_EQ(io::crc32c(nullptr, 0), 0U);
  const std::string zeros(32, '\0');  // RFC 3720, B.4
  EXPECT_EQ(io::crc32c(zeros.data(), zeros.size()), 0x8A9136AAU);
  const std::string ones(32, '\xff');
  EXPECT_EQ(io::crc32c_by_table(ones.data(), ones.size()), 0x62A8AB43U);
}

TEST(Crc32c, InstructionAndTablesAgreeOnEveryLengthAndSplit) {
  std::mt19937 rng(1);
  std::string bytes(300, '\0');
  for (char& byte : bytes) byte = static_cast<char>(rng());
  for (std::size_t length = 0; length < bytes.size(); length += 7) {
    const std::uint32_t whole_crc = io::crc32c(bytes.data() + 1, length);
    EXPECT_EQ(io::crc32c_by_table(bytes.data() + 1, length), whole_crc);
    const std::size_t split = length / 3;
    const std::uint32_t first = io::crc32c(bytes.data() + 1, split);
    EXPECT_EQ(io::crc32c(bytes.data() + 1 + split, length - split, first), whole_crc);
  }
}

TEST(Workers, RunEveryJobOnceAndRethrowTheLowestFailure) {
  std::vector<std::atomic<int>> calls(100);
  io::run_jobs(calls.size(), 3, [&](std::size_t i) { ++calls[i]; });
  for (const auto& count : calls) EXPECT_EQ(count, 1);

  const auto fail_all = [](std::size_t i) {
    if (i >= 5) throw std::runtime_error(std::to_string(i));
  };
  try {
    io::run_jobs(10, 1, fail_all);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "5");
  }
}

TEST(Layout, HugeDatasetsTakeNoMemoryAndDoNotMeet) {
  const Dim huge = Dim{40} << 30;
  std::vector<io::Dataset> datasets{
      {"model/a", "slab_0", {huge}, {{0}, {huge}}, DType::f32, 0},
      {"model/b", "slab_0", {3}, {{0}, {3}}, DType::u8, 0},
      {"model/a", "slab_1", {huge}, {{0}, {huge / 2}}, DType::f16, 0}};
  const io::FileLayout layout = io::lay_out({1, 0, "data 1"}, datasets);

  std::vector<std::pair<std::uint64_t, std::uint64_t>> parts;  // begin, end
  for (const auto& d : datasets) {
    parts.emplace_back(d.file_offset, d.file_offset + static_cast<std::uint64_t>(d.part.numel()) *
                                                          size_of(d.dtype));
  }
  std::uint64_t structure = 0;
  for (const auto& part : layout.structure) {
    parts.emplace_back(part.offset, part.offset + part.bytes.size());
    structure += part.bytes.size();
  }
  std::ranges::sort(parts);
  for (std::size_t i = 1; i < parts.size(); ++i) EXPECT_GE(parts[i].first, parts[i - 1].second);
  EXPECT_LE(parts.back().second, layout.file_bytes);
  EXPECT_LT(structure, 1U << 20);
  EXPECT_EQ(datasets[0].file_offset % 4096, 0U);
}

TEST(Steps, NamesGoBothWays) {
  EXPECT_EQ(io::step_name(1000), "step_00001000");
  EXPECT_EQ(io::step_name(123456789012), "step_123456789012");
  EXPECT_EQ(io::step_of_name("step_123456789012"), 123456789012);
  for (const char* name : {"step_1000", "step_00001000.tmp", "step_", "step_0000100x", "latest",
                           "step_-0000001", "step_99999999999999999999"}) {
    EXPECT_EQ(io::step_of_name(name), std::nullopt) << name;
  }
}

TEST(Storage, ErrorsNameThePathAndTheCause) {
  const TempFolder folder;
  const std::string path = folder.path() + "/none/file";
  const auto text = refusal(ExitCode::storage, [&] { (void)io::storage::File::create(path); });
  EXPECT_EQ(text, path + ": creating it failed: No such file or directory");
}

TEST(Storage, SpaceIsCheckedWithBothNumbers) {
  const TempFolder folder;
  EXPECT_NO_THROW(io::require_space(folder.path(), 1));
  const auto text =
      refusal(ExitCode::storage, [&] { io::require_space(folder.path(), 1ULL << 60); });
  EXPECT_NE(text.find("needs 1099511627776.0 MiB"), std::string::npos) << text;
  EXPECT_NE(text.find("checkpoint.keep"), std::string::npos) << text;
}

}  // namespace
}  // namespace hyperslab::test
