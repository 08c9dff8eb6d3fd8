// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <system_error>

#include "checkpoint/save.hpp"
#include "checkpoint/steps.hpp"
#include "checkpoint/vocabulary.hpp"
#include "files/storage.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"
#include "hyperslab/io/checkpoint_parts.hpp"

namespace hyperslab::io {
namespace {

/// The folder and its parents that are not there, the inner ones first.
std::vector<std::string> missing_folders(const std::string& folder) {
  std::vector<std::string> missing;
  std::error_code ignored;
  for (std::filesystem::path path = folder; !path.empty(); path = path.parent_path()) {
    if (std::filesystem::exists(path, ignored) || path == path.parent_path()) break;
    if (path.has_filename()) missing.push_back(path.string());
  }
  return missing;
}

}  // namespace

CheckpointParts::CheckpointParts(std::string directory, CheckpointMeta meta, std::uint64_t bytes)
    : directory_(std::move(directory)),
      meta_(std::move(meta)),
      missing_(missing_folders(directory_)) {
  try {
    prepare(bytes);
  } catch (...) {
    clear();
    throw;
  }
}

CheckpointParts::~CheckpointParts() {
  if (!committed_) clear();
}

void CheckpointParts::prepare(std::uint64_t bytes) {
  temporary_ = prepare_step(directory_, step_name(meta_.step), bytes + bytes_of(meta_.vocabulary));
}

void CheckpointParts::clear() const noexcept {
  try {
    if (!temporary_.empty()) storage::remove_tree(temporary_);
  } catch (const std::exception& error) {
    log::warn(error.what());
  }
  for (const std::string& folder : missing_) {
    std::error_code ignored;  // another's file keeps its folder
    std::filesystem::remove(folder, ignored);
  }
}

void CheckpointParts::add(std::span<const Slab> slabs) {
  for (const Slab& slab : slabs) {
    require(slab.part.count == slab.global_shape, "parts of a checkpoint hold whole tensors");
  }
  const int part = static_cast<int>(tables_.size());
  const RankFileHead head{meta_.step, part, meta_.layout};
  tables_.push_back(table_text(write_rank_file(temporary_, head, slabs, SaveOptions{})));
}

void CheckpointParts::commit() {
  Manifest manifest;
  manifest.meta = meta_;
  manifest.block_bytes = SaveOptions{}.block_bytes;
  for (const std::string& table : tables_) add_table(manifest, table);
  for (const auto& [name, entry] : manifest.tensors) {
    require(entry.pieces.size() == 1, "a tensor belongs into one part of a checkpoint");
  }
  manifest.vocabulary = write_vocabulary(temporary_, meta_.vocabulary);
  publish(directory_, temporary_, step_name(meta_.step), manifest);
  committed_ = true;
}

}  // namespace hyperslab::io
