// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hyperslab::io {

/// Writes a file of scalars that TensorBoard reads: records in TensorFlow's framing (length, masked
/// CRC32C of it, data, masked CRC32C of that), each an Event message of its event.proto. A failure
/// of the disk is a warning, once and then at most every ten minutes, and loses that record.
class TensorboardLog {
 public:
  /// Makes `folder` and in it events.out.tfevents.<unix seconds>.<host>.<process>, which says that
  /// older files' events of `first_step` and later steps are obsolete. Throws Error(storage).
  TensorboardLog(const std::string& folder, const std::string& host, std::int64_t first_step);
  TensorboardLog(TensorboardLog&&) noexcept;
  TensorboardLog& operator=(TensorboardLog&&) noexcept;
  TensorboardLog(const TensorboardLog&) = delete;
  TensorboardLog& operator=(const TensorboardLog&) = delete;
  ~TensorboardLog();

  using Scalars = std::vector<std::pair<std::string_view, double>>;
  /// One record with the values of a step; those that are not finite stay as they are.
  void append(std::int64_t step, const Scalars& scalars);
  [[nodiscard]] const std::string& path() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hyperslab::io
