// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <mutex>
#include <set>

#include "checkpoint/blocks.hpp"
#include "checkpoint/vocabulary.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/hyperslab.hpp"
#include "hyperslab/io/checkpoint.hpp"

namespace hyperslab::io {
namespace {

using Piece = CheckpointReader::Piece;
using TensorEntry = CheckpointReader::TensorEntry;
using Tensors = std::map<std::string, TensorEntry>;

constexpr std::size_t kShownLines = 20;
constexpr std::size_t kStructureTag = std::numeric_limits<std::size_t>::max();  // no source has it

std::string joined(const std::vector<std::string>& lines) {
  const std::size_t shown = std::min(lines.size(), kShownLines);
  std::string text = fmt::format(
      "{}", fmt::join(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(shown), "\n  "));
  if (shown < lines.size()) text += fmt::format("\n  and {} more", lines.size() - shown);
  return text;
}

/// "optimizer/exp_avg/" of "optimizer/exp_avg/head.weight": tensors of one kind.
std::string kind_of(const std::string& tensor) {
  const std::size_t slash = tensor.rfind('/');
  return slash == std::string::npos ? "" : tensor.substr(0, slash + 1);
}

/// Stored tensors of the kinds that the targets have, but of which no target is. Another stage may
/// own them, so they are only a hint if something is missing.
void add_unexpected(std::vector<std::string>& lines, const Tensors& tensors,
                    std::span<const SlabTarget> targets) {
  std::set<std::string> names;
  std::set<std::string> kinds;
  for (const SlabTarget& target : targets) {
    names.insert(target.tensor);
    kinds.insert(kind_of(target.tensor));
  }
  for (const auto& [name, entry] : tensors) {
    if (names.contains(name) || !kinds.contains(kind_of(name))) continue;
    lines.push_back(fmt::format("unexpected: {} {} is there and not asked for", name,
                                entry.global_shape.str()));
  }
}

/// True if a target's memory can take a tensor of this dtype; one without memory takes nothing.
bool takes(const SlabTarget& target, DType dtype) {
  return !target.data || target.data.dtype() == dtype;
}

enum class Dtypes : std::uint8_t { any, stored };

/// The tensors which cannot be given, a line each.
struct Mismatches {
  std::vector<std::string> missing;
  std::vector<std::string> shapes;
  std::vector<std::string> dtypes;
};

/// Targets may have other dtypes than the stored ones if `dtypes` says so.
Mismatches mismatches_of(const Tensors& tensors, std::span<const SlabTarget> targets,
                         Dtypes dtypes) {
  Mismatches found;
  std::set<std::string> seen;
  std::set<std::string> of_other_dtype;
  for (const SlabTarget& target : targets) {
    const bool empty = target.global_shape.numel() == 0;  // nothing of it is ever stored
    if (empty) continue;
    const bool is_new = seen.insert(target.tensor).second;
    const auto tensor = tensors.find(target.tensor);
    if (tensor == tensors.end()) {
      if (!is_new) continue;
      found.missing.push_back(
          fmt::format("missing: {} {}", target.tensor, target.global_shape.str()));
      continue;
    }
    const TensorEntry& entry = tensor->second;
    if (is_new && !(entry.global_shape == target.global_shape)) {
      found.shapes.push_back(fmt::format("other shape: {} is {}, expected {}", target.tensor,
                                         entry.global_shape.str(), target.global_shape.str()));
    }
    if (dtypes == Dtypes::stored && !takes(target, entry.dtype) &&
        of_other_dtype.insert(target.tensor).second) {
      found.dtypes.push_back(fmt::format("other dtype: {} is {}, asked for as {}", target.tensor,
                                         name_of(entry.dtype), name_of(target.data.dtype())));
    }
  }
  return found;
}

/// Throws one Error that lists all tensors which cannot be given.
void check_targets(const std::string& folder, const Tensors& tensors,
                   std::span<const SlabTarget> targets, Dtypes dtypes) {
  const Mismatches found = mismatches_of(tensors, targets, dtypes);
  std::vector<std::string> lines = found.shapes;
  lines.insert(lines.end(), found.dtypes.begin(), found.dtypes.end());
  lines.insert(lines.end(), found.missing.begin(), found.missing.end());
  if (lines.empty()) return;
  if (!found.missing.empty()) add_unexpected(lines, tensors, targets);
  const std::string of_dtypes =
      found.dtypes.empty() ? "" : fmt::format(", {} of another dtype", found.dtypes.size());
  throw Error(
      ExitCode::checkpoint,
      fmt::format("{}: it does not fit this model ({} missing, {} of another shape{}):\n  {}",
                  folder, found.missing.size(), found.shapes.size(), of_dtypes, joined(lines)));
}

void check_memory(const SlabTarget& target) {
  const std::string outside = problem_of(target.part, target.global_shape);
  if (!outside.empty()) throw Error(ExitCode::internal, target.tensor + ": " + outside);
  if (target.data.numel() != target.part.count.numel() || target.data.device() != Device::cpu) {
    throw Error(ExitCode::internal, target.tensor + ": targets are on cpu of the shape `count`");
  }
}

std::vector<Hyperslab> parts_of(const TensorEntry& entry) {
  std::vector<Hyperslab> parts;
  parts.reserve(entry.pieces.size());
  for (const Piece& piece : entry.pieces) parts.push_back(piece.part);
  return parts;
}

/// Elements that one target takes from a piece.
struct Copy {
  HyperslabRuns runs;
  char* target = nullptr;
};
struct Source {
  const std::string* tensor = nullptr;
  DType dtype = DType::f32;
  const Piece* piece = nullptr;
  std::vector<Copy> copies;
};

/// Throws unless every element is in exactly one piece: pieces that meet might add up and leave
/// others out.
void require_covered(const std::string& folder, const std::string& name, const TensorEntry& entry) {
  const std::string problem = coverage_problem(parts_of(entry), entry.global_shape);
  if (problem.empty()) return;
  throw Error(ExitCode::checkpoint, fmt::format("{}: tensor {}: {}", folder, name, problem));
}

/// Every piece that some target needs, with the copies to make from it.
std::vector<Source> sources_of(const std::string& folder, const Tensors& tensors,
                               std::span<const SlabTarget> targets) {
  std::map<const Piece*, Source> sources;
  std::set<std::string> covered;
  for (const SlabTarget& target : targets) {
    if (target.part.count.numel() == 0) continue;
    const auto tensor = tensors.find(target.tensor);
    const std::string& name = tensor->first;
    Dim found = 0;
    for (const Piece& piece : tensor->second.pieces) {
      const auto common = intersect(piece.part, target.part);
      if (!common) continue;
      found += common->count.numel();
      const Source unused{&name, tensor->second.dtype, &piece, {}};
      Source& source = sources.try_emplace(&piece, unused).first->second;
      source.copies.push_back(
          {HyperslabRuns(piece.part, target.part, *common), static_cast<char*>(target.data.raw())});
    }
    if (found != target.part.count.numel()) {
      throw Error(ExitCode::checkpoint,
                  fmt::format("{}: tensor {} has {} of the {} elements from offset {}", folder,
                              name, found, target.part.count.numel(), target.part.offset.str()));
    }
    if (covered.insert(name).second) require_covered(folder, name, tensor->second);
  }
  std::vector<Source> out;
  out.reserve(sources.size());
  for (auto& [piece, source] : sources) out.push_back(std::move(source));
  return out;
}

/// Elements [begin, end) of a piece's array.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

bool touches(const Copy& copy, const Range& range) {
  const std::int64_t first = copy.runs.first_after(range.begin);
  return first < copy.runs.size() && copy.runs[first].source < range.end;
}

/// Copies the parts of the runs that are within `range`, whose elements are at `bytes`; an element
/// has `size` bytes.
void copy_range(const Copy& copy, const Range& range, const char* bytes, std::size_t size) {
  for (std::int64_t i = copy.runs.first_after(range.begin); i < copy.runs.size(); ++i) {
    const HyperslabRuns::Run run = copy.runs[i];
    if (run.source >= range.end) break;
    const std::int64_t from = std::max(run.source, range.begin);
    const std::int64_t to = std::min(run.source + copy.runs.length(), range.end);
    std::memcpy(copy.target + static_cast<std::size_t>(run.target + from - run.source) * size,
                bytes + static_cast<std::size_t>(from - range.begin) * size,
                static_cast<std::size_t>(to - from) * size);
  }
}

Range range_of(const Source& source, const StoredBlock& block) {
  const auto size = static_cast<std::int64_t>(size_of(source.dtype));
  const auto begin =
      static_cast<std::int64_t>(block.file_offset - source.piece->file_offset) / size;
  return {begin, begin + static_cast<std::int64_t>(block.bytes) / size};
}

StoredBlock structure_block(const std::string& file, const CheckpointReader::Structure& part) {
  return {fmt::format("structure of {} at byte {}", file, part.offset),
          &file,
          part.offset,
          part.bytes,
          part.crc32c,
          kStructureTag};
}

/// HDF5's structure of every file that the sources are in and that is not among `sound`.
std::vector<StoredBlock> structure_blocks(const std::vector<Source>& sources,
                                          const std::vector<CheckpointReader::FileEntry>& files,
                                          const std::set<std::string>& sound) {
  std::set<std::string> touched;
  for (const Source& source : sources) touched.insert(source.piece->file);
  std::vector<StoredBlock> blocks;
  for (const CheckpointReader::FileEntry& file : files) {
    if (!touched.contains(file.name) || sound.contains(file.name)) continue;
    for (const auto& part : file.structure) blocks.push_back(structure_block(file.name, part));
  }
  return blocks;
}

std::vector<StoredBlock> touched_blocks(const std::vector<Source>& sources,
                                        std::uint64_t block_bytes) {
  std::vector<StoredBlock> blocks;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const Source& source = sources[i];
    for (std::size_t k = 0; k < source.piece->crc32c.size(); ++k) {
      StoredBlock block = stored_block(*source.tensor, source.dtype, *source.piece, k, block_bytes);
      const Range range = range_of(source, block);
      if (std::ranges::none_of(source.copies, [&](const Copy& c) { return touches(c, range); })) {
        continue;
      }
      block.tag = i;
      blocks.push_back(std::move(block));
    }
  }
  return blocks;
}

/// Fills a target from a whole tensor in memory.
void copy_part(CView whole, const SlabTarget& target) {
  const Hyperslab all = Hyperslab::whole(whole.shape());
  const HyperslabRuns runs(all, target.part, target.part);
  const std::size_t size = size_of(whole.dtype());
  const auto bytes_at = [&](std::int64_t element) {
    return static_cast<std::size_t>(element) * size;
  };
  for (std::int64_t i = 0; i < runs.size(); ++i) {
    std::memcpy(static_cast<char*>(target.data.raw()) + bytes_at(runs[i].target),
                static_cast<const char*>(whole.raw()) + bytes_at(runs[i].source),
                bytes_at(runs.length()));
  }
}

}  // namespace

void CheckpointReader::replace(const std::string& tensor, Tensor values) {
  TensorEntry& entry = tensors_.at(tensor);
  entry.global_shape = values.view().shape();
  entry.dtype = values.view().dtype();
  replaced_[tensor] = std::make_shared<const Tensor>(std::move(values));
}

void CheckpointReader::use_averages() {
  const std::string model = "model/";
  const std::string average = "optimizer/ema/";
  std::vector<std::string> averaged;
  for (const auto& [name, entry] : tensors_) {
    if (name.starts_with(average)) averaged.push_back(name.substr(average.size()));
  }
  if (averaged.empty()) {
    throw Error(
        ExitCode::checkpoint,
        fmt::format("{}: it keeps no average of the weights; leave out --ema, or train with "
                    "optimizer.ema_decay",
                    folder_));
  }
  for (const std::string& name : averaged) tensors_[model + name] = tensors_.at(average + name);
}

void CheckpointReader::check(std::span<const SlabTarget> targets) const {
  check_targets(folder_, tensors_, targets, Dtypes::any);
}

void CheckpointReader::read(std::span<const SlabTarget> targets) const {
  check_targets(folder_, tensors_, targets, Dtypes::stored);
  for (const SlabTarget& target : targets) {
    if (target.part.count.numel() > 0) check_memory(target);
  }
  std::vector<SlabTarget> stored;
  stored.reserve(targets.size());
  for (const SlabTarget& target : targets) {
    const auto replaced = replaced_.find(target.tensor);
    if (replaced == replaced_.end()) {
      stored.push_back(target);
    } else if (target.part.count.numel() > 0) {
      copy_part(replaced->second->view(), target);
    }
  }
  const std::vector<Source> sources = sources_of(folder_, tensors_, stored);
  const auto use = [&](const StoredBlock& block, const char* bytes, const std::string& problem) {
    if (bytes == nullptr) {
      throw Error(
          ExitCode::checkpoint,
          fmt::format("{}: {}; load an older step, or copy the file again", folder_, problem));
    }
    if (block.tag == kStructureTag) return;
    const Source& source = sources[block.tag];
    const Range range = range_of(source, block);
    for (const Copy& copy : source.copies) copy_range(copy, range, bytes, size_of(source.dtype));
  };
  std::vector<StoredBlock> blocks = touched_blocks(sources, block_bytes_);
  std::set<std::string> sound;
  {
    const std::lock_guard lock(sound_->mutex);
    sound = sound_->names;
  }
  std::ranges::move(structure_blocks(sources, files_, sound), std::back_inserter(blocks));
  read_blocks(folder_, std::move(blocks), use);
  const std::lock_guard lock(sound_->mutex);
  for (const Source& source : sources) sound_->names.insert(source.piece->file);
}

std::vector<std::string> CheckpointReader::verify() const {
  std::vector<std::string> problems;
  std::vector<StoredBlock> blocks;
  for (const auto& [name, entry] : tensors_) {
    for (const Piece& piece : entry.pieces) {
      for (std::size_t k = 0; k < piece.crc32c.size(); ++k) {
        blocks.push_back(stored_block(name, entry.dtype, piece, k, block_bytes_));
      }
    }
    const std::string problem = coverage_problem(parts_of(entry), entry.global_shape);
    if (!problem.empty()) problems.push_back("tensor " + name + ": " + problem);
  }
  for (const FileEntry& file : files_) {
    for (const Structure& part : file.structure) {
      blocks.push_back(structure_block(file.name, part));
    }
  }
  std::mutex mutex;
  std::vector<std::string> damaged;
  read_blocks(folder_, std::move(blocks),
              [&](const StoredBlock&, const char* bytes, const std::string& problem) {
                if (bytes != nullptr) return;
                const std::lock_guard lock(mutex);
                damaged.push_back(problem);
              });
  std::ranges::sort(damaged);
  problems.insert(problems.end(), damaged.begin(), damaged.end());
  const std::vector<std::string> of_vocabulary = vocabulary_problems(folder_, vocabulary_);
  problems.insert(problems.end(), of_vocabulary.begin(), of_vocabulary.end());
  return problems;
}

}  // namespace hyperslab::io
