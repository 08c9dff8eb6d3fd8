// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "hyperslab/io/checkpoint.hpp"

namespace hyperslab::io {

/// Looks again and again for the newest checkpoint of a run that goes on.
class CheckpointFollower {
 public:
  /// `path`: a directory of checkpoints, or a run directory with one; `known`: the checkpoint of it
  /// that is in use. Throws Error(usage) if `path` is the folder of a single step.
  CheckpointFollower(const std::string& path, const CheckpointReader& known);

  /// The checkpoint that CheckpointReader finds in the directory, every byte of it checked, if that
  /// is another than the last one that was given, or than `known`: also an older one that training
  /// went back to, and a step that was written again. A look at an unchanged directory reads two
  /// file entries. A broken checkpoint is passed over with one warning. Throws nothing for errors
  /// of the disk.
  [[nodiscard]] std::optional<CheckpointReader> next();
  [[nodiscard]] const std::string& directory() const { return directory_; }

 private:
  [[nodiscard]] std::string look() const;

  std::string directory_;
  std::uint64_t contents_;  ///< contents_of() the checkpoint in use
  std::string seen_;        ///< look() that was answered; empty: none, as `known` may be old
};

}  // namespace hyperslab::io
