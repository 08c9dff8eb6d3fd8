// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "hyperslab/io/checkpoint.hpp"

namespace hyperslab::io {

/// A checkpoint that one rank alone writes in parts, a file for each, so that only one part is in
/// memory. It is complete with commit(); without one the destructor removes the written files, and
/// the folders that were made for it. All failures throw Error(storage).
class CheckpointParts {
 public:
  /// Writes into a temporary folder in `directory`; `bytes` of tensors must be free there.
  CheckpointParts(std::string directory, CheckpointMeta meta, std::uint64_t bytes);
  CheckpointParts(const CheckpointParts&) = delete;
  CheckpointParts& operator=(const CheckpointParts&) = delete;
  CheckpointParts(CheckpointParts&&) = delete;
  CheckpointParts& operator=(CheckpointParts&&) = delete;
  ~CheckpointParts();

  /// Whole tensors (CPU; f32, f16 or u8), each in one part of the checkpoint only.
  void add(std::span<const Slab> slabs);
  /// Gives the step its name and points `latest` to it.
  void commit();

 private:
  void prepare(std::uint64_t bytes);
  void clear() const noexcept;
  std::string directory_;
  CheckpointMeta meta_;
  std::string temporary_;             ///< the folder until it is complete
  std::vector<std::string> tables_;   ///< a part's pieces, as text
  std::vector<std::string> missing_;  ///< folders that were not there before, the inner ones first
  bool committed_ = false;
};

}  // namespace hyperslab::io
