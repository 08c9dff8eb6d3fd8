// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "files/private_folder.hpp"

namespace hyperslab::io {

/// The folder in which this host keeps checkpoints of a run in memory:
/// <directory>/hyperslab-<user>-<id of the run>/<host>. Both folders are private, so nothing below
/// them is of someone else and no link leads away. Functions throw Error(storage).
class MemoryFolder {
 public:
  /// `checkpoints`: the run's directory of them, whose id `id` is; empty: it has none, and nothing
  /// in memory belongs to it.
  MemoryFolder(std::string directory, std::string id, std::string host,
               const std::string& checkpoints);

  [[nodiscard]] const std::string& path() const { return path_; }
  /// Makes the folders, or takes those that are there, and holds the host's one until remove() or
  /// the end of this object. Throws if they are not private, hold steps of another run, or another
  /// process holds it.
  void hold();
  /// Throws unless both folders are there, private, and of this run.
  void require_private() const;
  /// True if there is anything to read; warns of folders that are not private or of another
  /// run.
  [[nodiscard]] bool can_be_read() const;
  /// Removes the run's folders on this host that no other process holds.
  void remove();
  /// Removes folders of this user's other runs that no process holds, if no one wrote there for a
  /// day or their run has a newer checkpoint on the disk. Warns of remains of another run in the
  /// same directory.
  void remove_forgotten() const;

 private:
  void describe() const;
  void require_own() const;

  std::string directory_;
  std::string id_;
  std::string host_;
  std::string checkpoints_;  ///< links resolved
  std::string run_;          ///< the folder of the run
  std::string path_;
  std::optional<FolderLock> lock_;
};

}  // namespace hyperslab::io
