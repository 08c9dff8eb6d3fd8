// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/products.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "hyperslab/core/error.hpp"

namespace hyperslab::ops {
namespace {

constexpr const char* kHere = "cuBLASLt 130100, NVIDIA H200";
constexpr const char* kThere = "cuBLASLt 120800, NVIDIA A100-SXM4-80GB";

ProductTable::Kind kind(std::int64_t first) {
  return {first, 2, 3, 4, 5, 6, 7, -8, 9, 10, std::numeric_limits<std::int64_t>::max(), 0};
}
ProductTable::Algorithm algorithm(std::uint64_t first) {
  return {first, 0, 3, 4, 5, 6, 7, std::numeric_limits<std::uint64_t>::max()};
}

ProductTable two_places() {
  ProductTable table;
  table.add(kHere, kind(1), algorithm(10));
  table.add(kHere, kind(2), algorithm(20));
  table.add(kThere, kind(1), algorithm(30));
  return table;
}

/// What of_text says against it; empty where it takes it.
std::string refusal(const std::string& text) {
  try {
    (void)ProductTable::of_text(text, "products.txt");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::storage);
    return error.what();
  }
  return "";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

TEST(ProductTable, FindsEntriesOfOnePlaceOnly) {
  const ProductTable table = two_places();

  ASSERT_NE(table.find(kHere, kind(1)), nullptr);
  EXPECT_EQ(*table.find(kHere, kind(1)), algorithm(10));
  EXPECT_EQ(*table.find(kThere, kind(1)), algorithm(30));
  EXPECT_EQ(table.find(kThere, kind(2)), nullptr);
  EXPECT_EQ(table.find("cuBLASLt 130100, NVIDIA H100", kind(1)), nullptr);
  EXPECT_EQ(table.size(), 3U);
  EXPECT_EQ(table.size_at(kHere), 2U);
  EXPECT_EQ(table.size_at("elsewhere"), 0U);
}

TEST(ProductTable, WhatIsThereStaysWhenTablesMeet) {
  ProductTable table = two_places();
  ProductTable other;
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

TEST(ProductTable, ComesBackFromItsText) {
  for (const ProductTable& table : {ProductTable(), two_places()}) {
    const std::string text = table.text();

    const ProductTable found = ProductTable::of_text(text, "products.txt");

    EXPECT_EQ(found, table);
    EXPECT_EQ(found.text(), text);
  }
}

TEST(ProductTable, EqualTablesHaveEqualTexts) {
  ProductTable other;
  other.add(kThere, kind(1), algorithm(30));
  other.add(kHere, kind(2), algorithm(20));
  other.add(kHere, kind(1), algorithm(10));

  EXPECT_EQ(other.text(), two_places().text());
}

TEST(ProductTable, EveryCutAndEveryChangedByteIsRefused) {
  const std::string text = two_places().text();
  for (std::size_t i = 0; i < text.size(); ++i) {
    EXPECT_NE(refusal(text.substr(0, i)), "") << "the first " << i << " bytes";
    std::string changed = text;
    changed[i] = changed[i] == '1' ? '2' : '1';
    EXPECT_NE(refusal(changed), "") << "byte " << i;
  }
  EXPECT_NE(refusal(text + "1\n"), "");
  EXPECT_NE(refusal(text + text), "");
}

TEST(ProductTable, RefusalsNameTheLineAndWhatToDo) {
  const std::string text = two_places().text();

  const std::string title = "products " + std::to_string(ProductTable::kFormat);
  EXPECT_THAT(
      refusal(replaced(text, title, "products 9")),
      testing::AllOf(testing::StartsWith("products.txt:1: wanted 'hyperslab " + title + "'"),
                     testing::HasSubstr("found 'hyperslab products 9'"),
                     testing::HasSubstr("without this table")));
  EXPECT_THAT(refusal("1\n2\n"), testing::HasSubstr("found '1'"));
  EXPECT_THAT(refusal(replaced(text, "\n1 2 3", "\n1 x 3")),
              testing::HasSubstr("found no entry of 12 numbers and 8 words"));
  EXPECT_THAT(refusal(replaced(text, "\n2 2 3", "\n3 2 3")), testing::HasSubstr("changed"));
}

TEST(ProductTable, OnlyGpusChooseAlgorithms) {
  Context ctx(Device::cpu);

  adopt_products(ctx, two_places());

  EXPECT_EQ(product_place(ctx), "");
  EXPECT_EQ(products_of(ctx).size(), 0U);
  EXPECT_EQ(chosen_products(ctx), 0);
}

}  // namespace
}  // namespace hyperslab::ops
