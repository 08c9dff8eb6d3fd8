// SPDX-License-Identifier: Apache-2.0
// The contents of a checkpoint besides tensors: the deck and the vocabulary of its run.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/io/checkpoint.hpp"
#include "hyperslab/train/config.hpp"

namespace hyperslab::cli {

/// The deck that a checkpoint holds, as text and with the folder that names it in messages.
struct StoredDeck {
  std::string text;
  std::string folder;      ///< the folder of the step
  std::string started_in;  ///< the folder where its run was started, if the checkpoint says so
};
[[nodiscard]] StoredDeck stored_deck(const io::CheckpointReader& reader);

/// That deck with every value that the run had. Throws Error(usage).
[[nodiscard]] train::Config as_stored(const StoredDeck& deck,
                                      const std::vector<std::string>& overrides = {});

/// That deck for a use that trains nothing. `ranks`: that the layout must fit; 0: it need not.
/// Overrides win over it. Without a GPU it is computed in fp32 on the CPU; `notes` gets a line
/// about that, and one about values cut to fit overrides. `reads_data`: the rules about data.*
/// count, too. The base of adapters, checkpoint.initial, is named as found_path(). Throws
/// Error(usage).
[[nodiscard]] train::Config read_stored_deck(const StoredDeck& deck,
                                             const std::vector<std::string>& overrides, int ranks,
                                             std::vector<std::string>& notes,
                                             bool reads_data = false);

/// `path` of a deck, which is relative to the folder where the run was started, as seen from here:
/// itself if it is there, else below the folder in which the step's own shows that the run was
/// started, or that the checkpoint names; itself if that does not help.
[[nodiscard]] std::string found_path(const std::string& path, const StoredDeck& deck,
                                     const train::Config& config);
/// Makes the paths and patterns of a deck's key lead to data files as seen from here. All begin in
/// one folder: the first folder of found_path() from which each names a file. Throws Error(data)
/// if there is none: with a path that is missing in each, and `remedy`.
void find_paths(const std::string& key, std::vector<std::string>& paths, const StoredDeck& deck,
                const train::Config& config, const std::string& remedy);

/// The vocabulary of a checkpoint: the one that it keeps, else its deck's, as found_path(),
/// whether it is there or not. Empty if the deck names none. Throws Error(checkpoint) for a kept
/// one that is damaged.
[[nodiscard]] std::string stored_vocabulary_path(const io::CheckpointReader& reader,
                                                 const train::Config& config);

/// stored_vocabulary_path(); throws Error(data) if nothing is there.
[[nodiscard]] std::string stored_vocabulary(const io::CheckpointReader& reader,
                                            const train::Config& config);

/// Overrides of a stored deck for products in the compute dtype.
inline constexpr std::array kNoFp8 = {"precision.gemm=compute", "precision.fp8_cache_weights=false",
                                      "precision.fp8_param_gather=false",
                                      "precision.fp8_keep_first=0", "precision.fp8_keep_last=0"};
/// Overrides of a stored deck for a layout that has nothing of what training needed.
[[nodiscard]] std::vector<std::string> plain_layout(std::int64_t data, std::int64_t tensor,
                                                    std::int64_t pipeline);

}  // namespace hyperslab::cli
