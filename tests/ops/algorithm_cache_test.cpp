// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/algorithm_cache.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/philox.hpp"

namespace hyperslab::ops {
namespace {

constexpr const char* kHere = "cuBLASLt 130100, NVIDIA H200";
constexpr const char* kThere = "cuBLASLt 120800, NVIDIA A100-SXM4-80GB";

AlgorithmCache::Kind kind(std::int64_t first) {
  return {first, 2, 3, 4, 5, 6, 7, -8, 9, 10, std::numeric_limits<std::int64_t>::max(), 0};
}
AlgorithmCache::Algorithm algorithm(std::uint64_t first) {
  return {first, 0, 3, 4, 5, 6, 7, std::numeric_limits<std::uint64_t>::max()};
}

AlgorithmCache two_platforms() {
  AlgorithmCache table;
  table.add(kHere, kind(1), algorithm(10));
  table.add(kHere, kind(2), algorithm(20));
  table.add(kThere, kind(1), algorithm(30));
  return table;
}

/// What of_text says against the text; empty if it accepts it.
std::string refusal(const std::string& text) {
  try {
    (void)AlgorithmCache::of_text(text, "algorithms.txt");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::storage);
    return error.what();
  }
  return "";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(AlgorithmCache, FindsEntriesOfOnePlatformOnly) {
  const AlgorithmCache table = two_platforms();

  ASSERT_NE(table.find(kHere, kind(1)), nullptr);
  EXPECT_EQ(*table.find(kHere, kind(1)), algorithm(10));
  EXPECT_EQ(*table.find(kThere, kind(1)), algorithm(30));
  EXPECT_EQ(table.find(kThere, kind(2)), nullptr);
  EXPECT_EQ(table.find("cuBLASLt 130100, NVIDIA H100", kind(1)), nullptr);
  EXPECT_EQ(table.size(), 3U);
  EXPECT_EQ(table.size_on(kHere), 2U);
  EXPECT_EQ(table.size_on("elsewhere"), 0U);
}

TEST(AlgorithmCache, WhatIsThereStaysWhenTablesMeet) {
  AlgorithmCache table = two_platforms();
  AlgorithmCache other;
  other.add(kHere, kind(1), algorithm(99));
  other.add(kHere, kind(3), algorithm(40));
  other.add("another", kind(1), algorithm(50));

  table.merge(other);
  table.add(kThere, kind(1), algorithm(99));

  EXPECT_EQ(*table.find(kHere, kind(1)), algorithm(10));
  EXPECT_EQ(*table.find(kHere, kind(3)), algorithm(40));
  EXPECT_EQ(*table.find(kThere, kind(1)), algorithm(30));
  EXPECT_EQ(*table.find("another", kind(1)), algorithm(50));
  EXPECT_EQ(table.size(), 5U);
}

TEST(AlgorithmCache, ComesBackFromItsText) {
  for (const AlgorithmCache& table : {AlgorithmCache(), two_platforms()}) {
    const std::string text = table.text();

    const AlgorithmCache found = AlgorithmCache::of_text(text, "algorithms.txt");

    EXPECT_EQ(found, table);
    EXPECT_EQ(found.text(), text);
  }
}

TEST(AlgorithmCache, EqualTablesHaveEqualTexts) {
  AlgorithmCache other;
  other.add(kThere, kind(1), algorithm(30));
  other.add(kHere, kind(2), algorithm(20));
  other.add(kHere, kind(1), algorithm(10));

  EXPECT_EQ(other.text(), two_platforms().text());
}

TEST(AlgorithmCache, EveryCutAndEveryChangedByteIsRefused) {
  const std::string text = two_platforms().text();
  for (std::size_t i = 0; i < text.size(); ++i) {
    EXPECT_NE(refusal(text.substr(0, i)), "") << "the first " << i << " bytes";
    std::string changed = text;
    changed[i] = changed[i] == '1' ? '2' : '1';
    EXPECT_NE(refusal(changed), "") << "byte " << i;
  }
  EXPECT_NE(refusal(text + "1\n"), "");
  EXPECT_NE(refusal(text + text), "");
}

/// Files of earlier programs had another title, which their hash includes.
TEST(AlgorithmCache, ReadsFilesUnderTheirOldTitle) {
  const std::string old =
      "hyperslab products 3\non cuBLASLt 130100, NVIDIA H200\n"
      "1 2 3 4 5 6 7 8 9 10 11 12  a b c d e f 10 11\n";
  std::ostringstream end;
  end << "end 1 " << std::hex << name_hash(old) << '\n';

  const AlgorithmCache cache = AlgorithmCache::of_text(old + end.str(), "products.txt");

  ASSERT_EQ(cache.size_on(kHere), 1U);
  EXPECT_NE(cache.find(kHere, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}), nullptr);
  EXPECT_THAT(cache.text(), testing::StartsWith("hyperslab algorithms 3\n"));
}

TEST(AlgorithmCache, RefusalsNameTheLineAndWhatToDo) {
  const std::string text = two_platforms().text();

  const std::string title = "algorithms " + std::to_string(AlgorithmCache::kFormat);
  EXPECT_THAT(
      refusal(replaced(text, title, "algorithms 9")),
      testing::AllOf(testing::StartsWith("algorithms.txt:1: expected 'hyperslab " + title + "'"),
                     testing::HasSubstr("found 'hyperslab algorithms 9'"),
                     testing::HasSubstr("without this cache")));
  EXPECT_THAT(refusal("1\n2\n"), testing::HasSubstr("found '1'"));
  EXPECT_THAT(refusal(replaced(text, "\n1 2 3", "\n1 x 3")),
              testing::HasSubstr("found no entry of 12 numbers and 8 words"));
  EXPECT_THAT(refusal(replaced(text, "\n2 2 3", "\n3 2 3")), testing::HasSubstr("changed"));
}

TEST(AlgorithmCache, OnlyGpusChooseAlgorithms) {
  Context ctx(Device::cpu);

  adopt_algorithms(ctx, two_platforms());

  EXPECT_EQ(gemm_platform(ctx), "");
  EXPECT_EQ(algorithms_of(ctx).size(), 0U);
  EXPECT_EQ(chosen_algorithms(ctx), 0);
}

}  // namespace
}  // namespace hyperslab::ops
