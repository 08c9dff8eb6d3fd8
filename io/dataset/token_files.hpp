// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "dataset/shard.hpp"
#include "hyperslab/io/dataset.hpp"

namespace hyperslab::io {

/// The tokens of several files, one after the other.
class TokenFiles final : public TokenSource {
 public:
  /// Checks every id now if all files together hold at most 1 GiB of tokens; read() checks the ids
  /// that it returns in any case. Throws Error(data).
  /// `first_shards`: of each path or pattern, ascending from 0. `joined`: they are one segment.
  TokenFiles(std::vector<Shard> shards, std::int64_t vocabulary,
             std::vector<std::size_t> first_shards = {0}, bool joined = false);

  [[nodiscard]] std::int64_t size() const override { return ends_.back(); }
  void read(std::int64_t first, std::span<std::int32_t> out) const override;
  [[nodiscard]] std::string description() const override;
  [[nodiscard]] std::uint64_t fingerprint() const override;
  [[nodiscard]] std::vector<TokenFileSummary> files() const override;
  void require_unchanged() const override;
  [[nodiscard]] bool has_mask() const override { return shards_.front().has_mask; }
  /// Only if has_mask().
  void read_mask(std::int64_t first, std::span<std::uint8_t> out) const override;
  [[nodiscard]] TokenColumns columns() const override { return shards_.front().columns; }
  void read_values(std::int64_t first, std::span<float> out) const override;
  void read_teacher_ids(std::int64_t first, std::span<std::int32_t> out) const override;
  [[nodiscard]] std::vector<std::int64_t> documents(std::int32_t end_token) const override;
  [[nodiscard]] std::vector<std::pair<std::string, VocabularyRecord>> vocabularies() const override;
  [[nodiscard]] std::vector<std::int64_t> parts() const override;
  [[nodiscard]] std::vector<std::int64_t> segments() const override;

 private:
  /// action(shard, index in it, part of out) for every shard that [first, ...) meets; out has
  /// `columns` elements a token.
  template <class T, class Action>
  void for_each_part(std::int64_t first, std::span<T> out, std::int64_t columns,
                     Action action) const;
  void check_all_ids() const;
  [[noreturn]] void fail_id(const Shard& shard, std::int64_t first, std::int64_t count) const;

  std::vector<Shard> shards_;
  std::vector<std::int64_t> ends_;  ///< tokens up to the end of each shard
  std::int64_t vocabulary_;
  std::vector<std::size_t> first_shards_;
  bool joined_;
  mutable std::once_flag fingerprint_once_;
  mutable std::uint64_t fingerprint_ = 0;
};

}  // namespace hyperslab::io
