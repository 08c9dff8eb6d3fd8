// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>

#include "files/crc32c.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/io/tensorboard.hpp"
#include "support/nth_fault.hpp"
#include "support/temp_folder.hpp"

namespace hyperslab::test {
namespace {

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

template <class Number>
Number number_at(const std::string& text, std::size_t offset) {
  Number number{};
  EXPECT_LE(offset + sizeof number, text.size());
  std::memcpy(&number, text.data() + offset, sizeof number);
  return number;
}

/// Undoes the mask that the format puts on a checksum.
std::uint32_t unmasked(std::uint32_t masked) { return std::rotl(masked - 0xA282EAD8U, 15); }

/// The data of all records, whose lengths and checksums are right.
std::vector<std::string> records_in(const std::string& path) {
  const std::string text = content_of(path);
  std::vector<std::string> records;
  for (std::size_t at = 0; at < text.size();) {
    const auto length = number_at<std::uint64_t>(text, at);
    EXPECT_EQ(unmasked(number_at<std::uint32_t>(text, at + 8)), io::crc32c(text.data() + at, 8));
    const std::string data = text.substr(at + 12, length);
    EXPECT_EQ(data.size(), length);
    EXPECT_EQ(unmasked(number_at<std::uint32_t>(text, at + 12 + length)),
              io::crc32c(data.data(), data.size()));
    records.push_back(data);
    at += 16 + length;
  }
  return records;
}

TEST(TensorboardLog, BeginsWithTheVersionOfTheFormat) {
  const TempFolder folder;
  const io::TensorboardLog log(folder.path() + "/board", "n7", 201);

  const auto records = records_in(log.path());
  ASSERT_EQ(records.size(), 2U);
  EXPECT_NE(log.path().find("/board/events.out.tfevents."), std::string::npos);
  EXPECT_NE(log.path().find(".n7."), std::string::npos);
  // wall_time (field 1, double), step 0 (field 2), file_version (field 3, 13 bytes)
  EXPECT_EQ(records[0].substr(0, 1), "\x09");
  EXPECT_GT(number_at<double>(records[0], 1), 1.7e9);
  EXPECT_EQ(records[0].substr(9), std::string("\x10\x00\x1a\x0d", 4) + "brain.Event:2");
  // step 201, session_log (field 7) with status START: later steps of older files do not count
  EXPECT_EQ(records[1].substr(9), "\x10\xc9\x01\x3a\x02\x08\x01");
}

TEST(TensorboardLog, AStepIsOneRecordOfItsScalars) {
  const TempFolder folder;
  io::TensorboardLog log(folder.path(), "host", 1);
  log.append(300, {{"loss", 2.5}, {"lr", std::numeric_limits<double>::quiet_NaN()}});

  const auto records = records_in(log.path());
  ASSERT_EQ(records.size(), 3U);
  const std::string& event = records[2];
  EXPECT_EQ(event.substr(9, 3), "\x10\xac\x02");  // step 300 as a varint
  EXPECT_EQ(event[12], '\x2a');                   // summary, field 5
  EXPECT_EQ(static_cast<std::size_t>(event[13]), event.size() - 14);
  // A value: tag (field 1), simple_value (field 2, float).
  EXPECT_EQ(event.substr(14, 9), "\x0a\x0b\x0a\x04loss\x15");
  EXPECT_EQ(number_at<float>(event, 23), 2.5F);
  EXPECT_EQ(event.substr(27, 7), "\x0a\x09\x0a\x02lr\x15");
  EXPECT_TRUE(std::isnan(number_at<float>(event, 34)));
  EXPECT_EQ(event.size(), 38U);
}

TEST(TensorboardLog, ALongSummaryHasALengthOfSeveralBytes) {
  const TempFolder folder;
  io::TensorboardLog log(folder.path(), "host", 1);
  const std::string tag(500, 't');
  log.append(1, {{tag, 1.0}});

  const auto records = records_in(log.path());
  ASSERT_EQ(records.size(), 3U);
  EXPECT_NE(records[2].find(tag), std::string::npos);
}

TEST(TensorboardLog, AFailureOfTheDiskLosesOneRecordAndSaysSo) {
  const TempFolder folder;
  io::TensorboardLog log(folder.path(), "host", 1);
  testing::internal::CaptureStderr();
  {
    const fault::Injection full([](std::string_view point, const std::string& path) {
      return point == "file.write" && path.find("tfevents") != std::string::npos ? ENOSPC : 0;
    });
    log.append(1, {{"loss", 3}});
    log.append(2, {{"loss", 2}});
  }
  log.append(3, {{"loss", 1}});
  const std::string reported = testing::internal::GetCapturedStderr();

  EXPECT_EQ(records_in(log.path()).size(), 3U);
  const std::size_t first = reported.find("No space left on device");
  EXPECT_NE(first, std::string::npos) << reported;
  EXPECT_EQ(reported.find("No space left on device", first + 1), std::string::npos) << reported;
  EXPECT_NE(reported.find("written again"), std::string::npos) << reported;
}

TEST(TensorboardLog, AFolderThatCannotBeMadeIsNamed) {
  try {
    const io::TensorboardLog log("/dev/null/board", "host", 1);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::storage);
    EXPECT_NE(std::string(error.what()).find("/dev/null/board"), std::string::npos);
  }
}

}  // namespace
}  // namespace hyperslab::test
