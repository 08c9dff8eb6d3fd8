// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "files/storage.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/fault.hpp"
#include "hyperslab/io/timing.hpp"
#include "support/temp_folder.hpp"

namespace hyperslab::test {
namespace {

using nlohmann::ordered_json;

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::int64_t> steps_of(const std::string& path) {
  std::vector<std::int64_t> steps;
  for (const std::string& line : lines_of(path)) {
    steps.push_back(ordered_json::parse(line).at("step"));
  }
  return steps;
}

io::MetricsLine line_of(std::int64_t step) {
  io::MetricsLine line;
  line.step = step;
  line.loss = 0.1 + static_cast<double>(step);
  return line;
}

void append_steps(const std::string& path, std::int64_t first, std::int64_t last) {
  io::MetricsLog log(path, first);
  for (std::int64_t step = first; step <= last; ++step) log.append(line_of(step));
}

TEST(MetricsLog, KeysAreThoseOfTheContract) {
  const TempFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  io::MetricsLog log(path, 1);
  log.append(line_of(1));
  io::MetricsLine validated = line_of(2);
  validated.loss = std::nan("");
  validated.grad_norm = INFINITY;
  validated.tokens = std::int64_t{1} << 60;
  validated.validation = {3.5, io::TextMetrics{33.1, 0.25}};
  log.append(validated);
  validated.validation = {3.5, io::TextMetrics{33.1, 0.25, 1.25}};
  log.append(validated);
  io::MetricsLine spike;
  spike.spike = 7.5;
  spike.left_out = true;
  log.append(spike);
  io::MetricsLine images;
  images.meaning = io::ImageMetrics{0.5, 0.875};
  images.images_per_second = 640;
  images.validation = {2.5, io::ImageMetrics{0.25, 0.75}};
  log.append(images);

  const auto lines = lines_of(path);  // while the log is open: every line is flushed
  ASSERT_EQ(lines.size(), 5U);
  std::vector<std::string> keys;
  const ordered_json first = ordered_json::parse(lines[0]);
  for (const auto& [key, value] : first.items()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"step", "loss", "grad_norm", "lr", "tokens",
                                            "step_seconds", "tokens_per_second", "mfu", "mfu_full",
                                            "perplexity", "token_accuracy", "wall_seconds",
                                            "skipped_steps", "memory_peak_bytes"}));
  EXPECT_EQ(first.at("loss").get<double>(), 1.1);
  const ordered_json second = ordered_json::parse(lines[1]);
  EXPECT_EQ(second.size(), 17U);
  EXPECT_TRUE(second.at("loss").is_null());
  EXPECT_TRUE(second.at("grad_norm").is_null());
  EXPECT_EQ(second.at("tokens"), std::int64_t{1} << 60);
  EXPECT_EQ(second.at("validation_loss"), 3.5);
  EXPECT_EQ(second.at("validation_perplexity"), 33.1);
  EXPECT_EQ(second.at("validation_token_accuracy"), 0.25);
  const ordered_json third = ordered_json::parse(lines[2]);
  EXPECT_EQ(third.size(), 18U);
  EXPECT_EQ(third.at("validation_bits_per_byte"), 1.25);
  const ordered_json fourth = ordered_json::parse(lines[3]);
  EXPECT_EQ(fourth.size(), 16U);
  EXPECT_EQ(fourth.at("spike"), 7.5);
  EXPECT_EQ(fourth.at("left_out"), 1);
  const ordered_json fifth = ordered_json::parse(lines[4]);
  EXPECT_EQ(fifth.at("top1"), 0.5);
  EXPECT_EQ(fifth.at("top5"), 0.875);
  EXPECT_EQ(fifth.at("images_per_second"), 640);
  EXPECT_EQ(fifth.at("validation_top1"), 0.25);
  EXPECT_EQ(fifth.at("validation_top5"), 0.75);
  EXPECT_FALSE(fifth.contains("perplexity"));
  EXPECT_FALSE(fifth.contains("token_accuracy"));
}

TEST(MetricsLog, AResumeCutsWhatWillBeDoneAgain) {
  const TempFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  append_steps(path, 1, 9);
  const auto before = lines_of(path);

  append_steps(path, 6, 7);

  EXPECT_EQ(steps_of(path), (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(lines_of(path).at(4), before.at(4));
  append_steps(path, 8, 8);
  EXPECT_EQ(steps_of(path).size(), 8U);
  append_steps(path, 1, 1);
  EXPECT_EQ(steps_of(path), std::vector<std::int64_t>{1});
}

TEST(MetricsLog, ATornLastLineIsRemovedAtAnyLength) {
  const TempFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  append_steps(path, 1, 3);
  const auto size = std::filesystem::file_size(path);
  const auto last = lines_of(path).back().size();
  for (std::size_t cut = 2; cut <= last; cut += 13) {
    std::filesystem::resize_file(path, size - cut);
    append_steps(path, 3, 3);
    ASSERT_EQ(steps_of(path), (std::vector<std::int64_t>{1, 2, 3})) << cut;
  }
  // Whole but for its end of line: kept, and what follows goes on a line of its own.
  std::filesystem::resize_file(path, size - 1);
  append_steps(path, 4, 4);
  EXPECT_EQ(steps_of(path), (std::vector<std::int64_t>{1, 2, 3, 4}));
}

TEST(MetricsLog, APathThatCannotBeWrittenIsNamed) {
  try {
    const io::MetricsLog log("/dev/null/metrics.jsonl", 1);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::storage);
    EXPECT_NE(std::string(error.what()).find("Not a directory"), std::string::npos) << error.what();
  }
}

/// While it lives no file of this process can grow beyond `bytes`, as on a disk that is full.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;
  FullDisk(FullDisk&&) = delete;
  FullDisk& operator=(FullDisk&&) = delete;

 private:
  rlimit before_{};
};

std::size_t count(const std::string& text, const std::string& word) {
  std::size_t found = 0;
  for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++found;
  return found;
}

TEST(MetricsLog, AFullDiskIsReportedOnceAndLinesComeWhenThereIsRoom) {
  const TempFolder folder;
  const std::string path = folder.path() + "/metrics.jsonl";
  testing::internal::CaptureStderr();
  {
    io::MetricsLog log(path, 1);
    for (std::int64_t step = 1; step <= 3; ++step) log.append(line_of(step));
    {
      const FullDisk full(std::filesystem::file_size(path) + 100);  // a part of a line still fits
      for (std::int64_t step = 4; step <= 9; ++step) log.append(line_of(step));
      EXPECT_EQ(steps_of(path), (std::vector<std::int64_t>{1, 2, 3})) << "whole lines only";
    }
    log.append(line_of(10));
    EXPECT_EQ(steps_of(path), (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  }
  const std::string reported = testing::internal::GetCapturedStderr();
  EXPECT_EQ(count(reported, "File too large"), 1U) << reported;
  EXPECT_EQ(count(reported, "written again"), 1U) << reported;
  EXPECT_EQ(count(reported, "lost"), 0U) << reported;
}

/// A line longer than all that is said about it, which goes to a file here, too.
std::string long_line(int step) {
  return R"({"step":)" + std::to_string(step) + R"(,"text":")" + std::string(4000, 'x') + R"("})";
}

TEST(LineLog, WhatCannotBeWrittenToTheEndIsCounted) {
  const TempFolder folder;
  const std::string path = folder.path() + "/lines.jsonl";
  testing::internal::CaptureStderr();
  {
    const FullDisk full(5000);
    io::LineLog log(path, 1, 3);
    for (int step = 1; step <= 8; ++step) log.append(long_line(step));
  }
  const std::string reported = testing::internal::GetCapturedStderr();
  EXPECT_EQ(count(reported, "lines.jsonl: 7 line(s) are lost"), 1U) << reported;
  EXPECT_EQ(count(reported, "training goes on"), 1U) << reported;
  EXPECT_EQ(steps_of(path), std::vector<std::int64_t>{1});
}

TEST(LineLog, TheOldestOfTooManyThatWaitAreLost) {
  const TempFolder folder;
  const std::string path = folder.path() + "/lines.jsonl";
  testing::internal::CaptureStderr();
  {
    io::LineLog log(path, 1, 3);
    {
      const FullDisk full(5000);
      for (int step = 1; step <= 8; ++step) log.append(long_line(step));
    }
    log.append(long_line(9));
  }
  const std::string reported = testing::internal::GetCapturedStderr();
  EXPECT_EQ(count(reported, "5 line(s) are lost"), 1U) << reported;
  EXPECT_EQ(steps_of(path), (std::vector<std::int64_t>{1, 7, 8, 9}));
}

TEST(LineLog, ATornLineThatCannotBeRemovedIsRemovedLater) {
  const TempFolder folder;
  const std::string path = folder.path() + "/lines.jsonl";
  io::LineLog log(path, 1);
  log.append(R"({"step":1})");
  {
    int writes = 0;
    const fault::Injection disk([&](std::string_view point, const std::string& /*path*/) {
      if (point == io::storage::kWrite) return writes++ == 0 ? fault::kShortWrite : ENOSPC;
      return point == io::storage::kResize ? EIO : 0;
    });
    log.append(R"({"step":2,"long":"longer than the next"})");
  }
  EXPECT_GT(std::filesystem::file_size(path), 11U) << "half of the line is there";

  log.append(R"({"step":3})");

  EXPECT_EQ(steps_of(path), (std::vector<std::int64_t>{1, 2, 3}));
}

TEST(LineLog, AFileThatSomeoneRemovedIsReported) {
  const TempFolder folder;
  const std::string path = folder.path() + "/lines.jsonl";
  testing::internal::CaptureStderr();
  {
    io::LineLog log(path, 1);
    log.append(R"({"step":1})");
    std::filesystem::remove(path);
    log.append(R"({"step":2})");
    log.append(R"({"step":3})");
  }
  const std::string reported = testing::internal::GetCapturedStderr();
  EXPECT_EQ(count(reported, "was removed"), 1U) << reported;
  EXPECT_EQ(count(reported, "2 line(s) are lost"), 1U) << reported;
}

TEST(LineLog, ALineThatWaitsForARemovedFileIsLostOnce) {
  const TempFolder folder;
  const std::string path = folder.path() + "/lines.jsonl";
  testing::internal::CaptureStderr();
  {
    io::LineLog log(path, 1);
    const FullDisk full(1000);
    std::filesystem::remove(path);
    log.append(long_line(1));
    log.append(long_line(2));
  }
  const std::string reported = testing::internal::GetCapturedStderr();
  EXPECT_EQ(count(reported, "2 line(s) are lost"), 1U) << reported;
}

}  // namespace
}  // namespace hyperslab::test
