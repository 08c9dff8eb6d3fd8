// SPDX-License-Identifier: Apache-2.0
// Steps in the memory of hosts, and their way to the disk.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/comm/agree.hpp"
#include "hyperslab/io/checkpoint.hpp"

namespace hyperslab::io {

/// Files of a step that a host holds.
struct HeldStep {
  std::int64_t step = 0;
  std::uint32_t manifest = 0;  ///< CRC32C of its text, which is equal on all hosts of one save
  int holder = 0;              ///< the host's lowest rank
  std::vector<std::string> files;
};

/// "step manifest file file\n" for every step in the folder of a host, with the files that have
/// their size. A step that is damaged, or is not the one that its folder names, is left out with a
/// warning.
[[nodiscard]] std::string text_of_held(const std::string& folder);

/// The holders of each step, from the texts of all ranks: the newest step first, and of a step with
/// several manifests one after the other.
[[nodiscard]] std::vector<std::vector<HeldStep>> steps_of_texts(
    const std::vector<std::string>& texts);

struct BroughtStep {
  const std::string& folder;       ///< this rank's host in memory
  const std::string& checkpoints;  ///< on the disk, which all ranks see
  const std::vector<HeldStep>& holders;
  std::span<const VocabularyFile> vocabulary;  ///< rank 0: to be kept beside it
};

/// Writes one step to the disk and checks every byte. A file that the lowest holder has damaged is
/// taken from the next one, with a warning. Collective. Throws Error(checkpoint) and
/// Error(storage).
void bring_step(comm::Peers& peers, const BroughtStep& brought);

}  // namespace hyperslab::io
