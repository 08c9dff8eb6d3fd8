// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/nfc.hpp"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>

namespace hyperslab::io {
namespace {

std::string nfc(const std::string& text) {
  std::string copy;
  return std::string(in_nfc(text, copy));
}

/// By the library's own function, whose time grows with the square of a run of marks.
std::string reference(const std::string& text) {
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> composed(
      utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str())), &std::free);
  return reinterpret_cast<const char*>(composed.get());
}

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(Nfc, DrawnLettersAndMarksAreThoseOfTheLibrary) {
  constexpr std::array<const char*, 16> kPieces = {
      "a",      "e",      "\u00e9", "\u0301", "\u0316", "\u0344", "\u0327", "\u0334",
      "\u0345", "\u1100", "\u1161", "\u11a8", "\uac00", "\u0958", "\u212b", "\U0001d15e"};
  std::mt19937 random(7);
  for (int trial = 0; trial < 2000; ++trial) {
    std::string text;
    const auto pieces = random() % 12;
    for (std::size_t i = 0; i < pieces; ++i) text += kPieces.at(random() % kPieces.size());

    EXPECT_EQ(nfc(text), reference(text));
  }
}

TEST(Nfc, MarksOfOneClassKeepTheirOrder) {
  EXPECT_EQ(nfc("q\u0301\u0300\u0316\u0317"), "q\u0316\u0317\u0301\u0300");
}

TEST(Nfc, ALongRunOfMarksTakesNoQuadraticTime) {
  constexpr int kMarks = 1'000'000;
  const std::string above = repeated("\u0301", kMarks);
  const std::string below = repeated("\u0316", kMarks);

  EXPECT_EQ(nfc("q" + above + below), "q" + below + above);
}

TEST(Nfc, BytesThatAreNoUtf8Stay) {
  EXPECT_EQ(nfc("e\u0301\xff"
                "e\u0301"),
            "\u00e9\xff\u00e9");
}

}  // namespace
}  // namespace hyperslab::io
