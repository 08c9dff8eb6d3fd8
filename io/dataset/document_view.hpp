// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/io/dataset.hpp"

namespace hyperslab::io {

/// Some documents of another source, one after the other.
class DocumentView final : public TokenSource {
 public:
  /// `name`: "training", for messages. Neighbours are to be appended as one run: fewer runs are
  /// faster.
  DocumentView(std::shared_ptr<const TokenSource> all, std::string name);
  /// Tokens [begin, end) of `all`, after all those appended before.
  void append(std::int64_t begin, std::int64_t end);

  [[nodiscard]] std::int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  void read(std::int64_t first, std::span<std::int32_t> out) const override;
  [[nodiscard]] std::string description() const override;
  [[nodiscard]] std::uint64_t fingerprint() const override;
  [[nodiscard]] std::vector<TokenFileSummary> files() const override { return all_->files(); }
  void require_unchanged() const override { all_->require_unchanged(); }
  [[nodiscard]] std::vector<std::pair<std::string, VocabularyRecord>> vocabularies()
      const override {
    return all_->vocabularies();
  }
  [[nodiscard]] bool has_mask() const override { return all_->has_mask(); }
  void read_mask(std::int64_t first, std::span<std::uint8_t> out) const override;
  [[nodiscard]] TokenColumns columns() const override { return all_->columns(); }
  void read_values(std::int64_t first, std::span<float> out) const override;
  void read_teacher_ids(std::int64_t first, std::span<std::int32_t> out) const override;
  /// The other source's documents, each run beginning one.
  [[nodiscard]] std::vector<std::int64_t> documents(std::int32_t end_token) const override;
  /// The other source's segments, as far as runs of them are here.
  [[nodiscard]] std::vector<std::int64_t> segments() const override;

 private:
  template <class T, class Action>
  void for_each_part(std::int64_t first, std::span<T> out, std::int64_t columns,
                     Action action) const;

  std::shared_ptr<const TokenSource> all_;
  std::string name_;
  std::vector<std::int64_t> begins_;  ///< position in all_ at which each run begins
  std::vector<std::int64_t> ends_;    ///< position in this view at which each run ends
};

}  // namespace hyperslab::io
