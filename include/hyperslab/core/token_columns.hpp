// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "hyperslab/core/view.hpp"

namespace hyperslab {

/// A number that token files may hold for every token, used where that token is a target.
enum class TokenColumn : std::uint8_t {
  weight,                     ///< weight of the target in the mean of the loss, 0 or more
  old_log_probability,        ///< nats, under the policy that sampled the text
  advantage,                  ///< factor of the ratio of probabilities
  reference_log_probability,  ///< nats, under the model that training must not leave far behind
};
inline constexpr std::array kTokenColumns = {TokenColumn::weight, TokenColumn::old_log_probability,
                                             TokenColumn::advantage,
                                             TokenColumn::reference_log_probability};

/// The columns that a loss reads, in the order of TokenColumn, and then log-probabilities of
/// `teachers` likely tokens of a teacher: the last dimension of Batch::token_values.
struct TokenColumns {
  bool weight = false;
  bool old_log_probability = false;
  bool advantage = false;
  bool reference_log_probability = false;
  Dim teachers = 0;

  [[nodiscard]] constexpr bool has(TokenColumn column) const {
    switch (column) {
      case TokenColumn::weight: return weight;
      case TokenColumn::old_log_probability: return old_log_probability;
      case TokenColumn::advantage: return advantage;
      case TokenColumn::reference_log_probability: return reference_log_probability;
    }
    return false;
  }
  /// The place of a column, -1 if it is not read.
  [[nodiscard]] constexpr int at(TokenColumn column) const {
    if (!has(column)) return -1;
    int place = 0;
    for (const TokenColumn earlier : kTokenColumns) {
      if (earlier == column) break;
      place += has(earlier) ? 1 : 0;
    }
    return place;
  }
  /// The place of the first of `teachers` log-probabilities.
  [[nodiscard]] constexpr int first_teacher() const {
    int place = 0;
    for (const TokenColumn column : kTokenColumns) place += has(column) ? 1 : 0;
    return place;
  }
  [[nodiscard]] constexpr Dim count() const { return first_teacher() + teachers; }
  friend bool operator==(const TokenColumns&, const TokenColumns&) = default;
};

/// The name of a column's dataset in token files.
[[nodiscard]] constexpr std::string_view dataset_of(TokenColumn column) {
  switch (column) {
    case TokenColumn::weight: return "weights";
    case TokenColumn::old_log_probability: return "old_log_probabilities";
    case TokenColumn::advantage: return "advantages";
    case TokenColumn::reference_log_probability: return "reference_log_probabilities";
  }
  return "";
}
inline constexpr std::string_view kTeacherIds = "teacher_ids";
inline constexpr std::string_view kTeacherLogProbabilities = "teacher_log_probabilities";

}  // namespace hyperslab
