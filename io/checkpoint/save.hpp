// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "checkpoint/layout.hpp"
#include "checkpoint/manifest.hpp"
#include "hyperslab/io/checkpoint.hpp"

namespace hyperslab::io {

/// Writes this rank's file into `folder` and puts it on the disk. Returns its entry and its pieces.
[[nodiscard]] Manifest write_rank_file(const std::string& folder, const RankFileHead& head,
                                       std::span<const Slab> slabs, const SaveOptions& options);

/// Bytes of the file that a rank writes for the slabs, rounded up.
[[nodiscard]] std::uint64_t rank_bytes(std::span<const Slab> slabs);

/// Makes the folder to write the step `name` into, where `bytes` must be free, and returns it.
/// Files that an ended program left in the directory are removed.
[[nodiscard]] std::string prepare_step(const std::string& directory, const std::string& name,
                                       std::uint64_t bytes);

/// All ranks' tables in one manifest. Throws if the slabs do not cover the tensors exactly once.
[[nodiscard]] Manifest merged_manifest(const CheckpointMeta& meta,
                                       std::span<const std::string> tables,
                                       std::size_t block_bytes);

/// Removes the file or folder; if that fails, logs a warning and leaves it.
void remove_quietly(const std::string& path);

/// Throws Error(storage) with both numbers if the file system of `path` has less than `bytes`
/// free.
void require_space(const std::string& path, std::uint64_t bytes);

/// Gives the folder `from` the name `to` in one step. Where `to` is there already, returns the name
/// of the folder that was replaced, which the caller removes; else nothing.
[[nodiscard]] std::string replace_folder(const std::string& from, const std::string& to);

/// Writes the manifest into the folder `temporary`, gives it its name in one step, and points
/// `latest` to it. If something fails, the earlier checkpoint is as it was.
void publish(const std::string& directory, const std::string& temporary, const std::string& name,
             const Manifest& manifest);

}  // namespace hyperslab::io
