// SPDX-License-Identifier: Apache-2.0
// Values that token files hold for their tokens.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "dataset/shard.hpp"

namespace hyperslab::io {
namespace {

std::string sidecar_of(const Shard& shard, std::string_view name) {
  const std::filesystem::path tokens(shard.path);
  return (tokens.parent_path() / fmt::format("{}.{}.npy", tokens.stem().string(), name)).string();
}

[[noreturn]] void fail_missing(const Shard& shard, std::string_view name, std::string_view type) {
  const bool is_weight = name == dataset_of(TokenColumn::weight);
  const std::string dataset =
      shard.format.starts_with("HDF5") ? fmt::format("a dataset {} or ", name) : "";
  fail_file(shard.path,
            fmt::format("{}a file '{}' of {}, one a token", dataset, sidecar_of(shard, name), type),
            "none",
            fmt::format("write it (docs/losses.md), or set {}",
                        is_weight ? "data.token_weights to false" : "train.loss to cross_entropy"));
}

void require_shape(const Shard& shard, const ShardColumn& column, std::string_view name,
                   std::int64_t least) {
  const auto elements = static_cast<std::int64_t>(column.bytes.size() / 4);
  if (elements == shard.count * column.columns && column.columns >= least) return;
  fail_file(shard.path,
            fmt::format("{} of {} tokens{}", name, shard.count,
                        least > 1 ? fmt::format(" and at least {} in a row", least) : ""),
            fmt::format("{} elements{}", elements,
                        least > 1 ? fmt::format(" in rows of {}", column.columns) : ""),
            fmt::format("write tokens and their values again{}",
                        least > 1 ? ", or make train.teacher_tokens smaller" : ""));
}

/// Opens the arrays that lie beside the tokens, where the tokens' file has no dataset.
void read_npy_columns(Shard& shard, const ColumnNeeds& needs) {
  const auto open = [&](ShardColumn& column, std::string_view name, std::string_view descr,
                        bool is_matrix) {
    if (column.is_there()) return;
    column = open_npy_column(shard, sidecar_of(shard, name), descr, is_matrix);
  };
  for (const TokenColumn column : kTokenColumns) {
    if (!reads(needs, column)) continue;
    open(shard.values[static_cast<std::size_t>(column)], dataset_of(column), "<f4", false);
  }
  if (shard.columns.teachers == 0 || !needs.all) return;
  open(shard.teacher_ids, kTeacherIds, "<i4", true);
  open(shard.teacher_values, kTeacherLogProbabilities, "<f4", true);
}

}  // namespace

void open_columns(Shard& shard, const ColumnNeeds& needs) {
  shard.columns = needs.columns;
  if (shard.format.starts_with("HDF5")) read_hdf5_columns(shard, needs);
  read_npy_columns(shard, needs);
  const auto check = [&](const ShardColumn& column, std::string_view name, bool needed,
                         std::int64_t least, std::string_view type) {
    if (column.is_there()) return require_shape(shard, column, name, least);
    if (needed) fail_missing(shard, name, type);
  };
  for (const TokenColumn column : kTokenColumns) {
    check(shard.values[static_cast<std::size_t>(column)], dataset_of(column), reads(needs, column),
          1, "float32");
  }
  const std::int64_t teachers = shard.columns.teachers;
  const bool needed = teachers > 0 && needs.all;
  check(shard.teacher_ids, kTeacherIds, needed, teachers, "int32 (tokens, k)");
  check(shard.teacher_values, kTeacherLogProbabilities, needed, teachers, "float32 (tokens, k)");
}

namespace {

/// Copies `count` elements of each token from `index` on, to places `stride` apart.
template <class T>
void copy_rows(const ShardColumn& column, std::int64_t index, std::int64_t count, T* out,
               std::int64_t stride, std::int64_t tokens) {
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::byte* row = column.bytes.data() + 4 * (index + t) * column.columns;
    std::memcpy(out + t * stride, row, static_cast<std::size_t>(4 * count));
  }
}

[[noreturn]] void fail_value(const Shard& shard, std::string_view name, std::int64_t token,
                             const std::string& expected, const std::string& found) {
  fail_file(shard.path, fmt::format("{} in {}", expected, name),
            fmt::format("{} at token {}", found, token), "write tokens and their values again");
}

}  // namespace

void read_shard_values(const Shard& shard, std::int64_t index, std::span<float> out) {
  const TokenColumns& columns = shard.columns;
  const std::int64_t stride = columns.count();
  const std::int64_t tokens = std::ssize(out) / stride;
  std::ranges::fill(out, 1.0F);
  for (const TokenColumn column : kTokenColumns) {
    const ShardColumn& from = shard.values[static_cast<std::size_t>(column)];
    if (!columns.has(column) || !from.is_there()) continue;
    float* to = out.data() + columns.at(column);
    copy_rows(from, index, 1, to, stride, tokens);
    const bool is_weight = column == TokenColumn::weight;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const float value = to[t * stride];
      if (std::isfinite(value) && !(is_weight && value < 0)) continue;
      fail_value(shard, dataset_of(column), index + t,
                 is_weight ? "finite weights of 0 or more" : "finite numbers",
                 fmt::format("{}", value));
    }
  }
  if (columns.teachers == 0 || !shard.teacher_values.is_there()) return;
  float* to = out.data() + columns.first_teacher();
  copy_rows(shard.teacher_values, index, columns.teachers, to, stride, tokens);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::span<const float> row(to + t * stride, static_cast<std::size_t>(columns.teachers));
    const auto bad = std::ranges::find_if_not(row, [](float v) { return std::isfinite(v); });
    if (bad == row.end()) continue;
    fail_value(shard, kTeacherLogProbabilities, index + t, "finite numbers",
               fmt::format("{}", *bad));
  }
}

void read_shard_teachers(const Shard& shard, std::int64_t index, std::int64_t vocabulary,
                         std::span<std::int32_t> out) {
  const std::int64_t teachers = shard.columns.teachers;
  std::ranges::fill(out, 0);
  if (!shard.teacher_ids.is_there()) return;
  copy_rows(shard.teacher_ids, index, teachers, out.data(), teachers, std::ssize(out) / teachers);
  for (std::int64_t t = 0; t < std::ssize(out) / teachers; ++t) {
    const auto row =
        out.subspan(static_cast<std::size_t>(t * teachers), static_cast<std::size_t>(teachers));
    for (auto id = row.begin(); id != row.end(); ++id) {
      if (*id < 0 || *id >= vocabulary) {
        fail_value(shard, kTeacherIds, index + t,
                   fmt::format("ids below the vocabulary of {}", vocabulary),
                   fmt::format("id {}", *id));
      }
      if (std::find(row.begin(), id, *id) != id) {
        fail_value(shard, kTeacherIds, index + t, "different ids", fmt::format("id {} twice", *id));
      }
    }
  }
}

}  // namespace hyperslab::io
