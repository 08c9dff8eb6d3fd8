// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/memory_steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <sstream>
#include <utility>

#include "checkpoint/blocks.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/save.hpp"
#include "checkpoint/steps.hpp"
#include "checkpoint/vocabulary.hpp"
#include "files/crc32c.hpp"
#include "files/storage.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"

namespace hyperslab::io {
namespace {

namespace fs = std::filesystem;

/// Throws Error(checkpoint) and Error(storage).
std::string text_of_step(const StepFolder& found) {
  const std::string path = found.path + "/" + kManifestName;
  const std::string written = storage::read_text(path);
  const Manifest manifest = manifest_of_text(written, path);
  if (manifest.meta.step != found.step) {
    throw Error(ExitCode::checkpoint, fmt::format("{}: it is of step {}, in a folder of step {}",
                                                  path, manifest.meta.step, found.step));
  }
  std::string text = fmt::format("{} {}", found.step, crc32c(written.data(), written.size()));
  for (const CheckpointReader::FileEntry& file : manifest.files) {
    std::error_code error;
    const auto bytes = fs::file_size(found.path + "/" + file.name, error);
    if (!error && bytes == file.bytes) text += " " + file.name;
  }
  return text + "\n";
}

/// Copies a file of a step and checks its bytes against the manifest. Throws Error(checkpoint) and
/// Error(storage).
void copy_checked(const std::string& from, const std::string& to, const Manifest& manifest,
                  const CheckpointReader::FileEntry& entry) {
  constexpr std::size_t kAtOnce = std::size_t{16} << 20;
  const storage::File source = storage::File::open(from + "/" + entry.name);
  storage::File target = storage::File::create(to + "/" + entry.name);
  std::vector<char> buffer(kAtOnce);
  for (std::uint64_t offset = 0; offset < entry.bytes;) {
    const std::size_t wanted = std::min<std::uint64_t>(kAtOnce, entry.bytes - offset);
    const std::size_t bytes = source.read_at(offset, buffer.data(), wanted);
    if (bytes == 0) throw Error(ExitCode::checkpoint, from + "/" + entry.name + " was shortened");
    target.write_at(offset, buffer.data(), bytes);
    offset += bytes;
  }
  target.sync();
  target.close();
  std::vector<StoredBlock> blocks;
  for (const auto& [name, tensor] : manifest.tensors) {
    for (const CheckpointReader::Piece& piece : tensor.pieces) {
      if (piece.file != entry.name) continue;
      for (std::size_t k = 0; k < piece.crc32c.size(); ++k) {
        blocks.push_back(stored_block(name, tensor.dtype, piece, k, manifest.block_bytes));
      }
    }
  }
  for (const CheckpointReader::Structure& part : entry.structure) {
    blocks.push_back({fmt::format("structure of {} at byte {}", entry.name, part.offset),
                      &entry.name, part.offset, part.bytes, part.crc32c, 0});
  }
  read_blocks(to, std::move(blocks),
              [&](const StoredBlock&, const char* bytes, const std::string& problem) {
                if (bytes == nullptr) throw Error(ExitCode::checkpoint, from + ": " + problem);
              });
}

/// Holders of the file, lowest first.
std::vector<int> holders_of(const std::vector<HeldStep>& holders, const std::string& file) {
  std::vector<int> found;
  for (const HeldStep& held : holders) {
    if (std::ranges::find(held.files, file) != held.files.end()) found.push_back(held.holder);
  }
  return found;
}

/// Brings the files of a step from those who hold them.
class FileCopies {
 public:
  FileCopies(comm::Peers& peers, const Manifest& manifest, const BroughtStep& brought)
      : peers_(peers), manifest_(manifest), brought_(brought), folder_(brought.folder + "/") {
    folder_ += step_name(manifest.meta.step);
    for (const CheckpointReader::FileEntry& file : manifest.files) {
      holders_.push_back(holders_of(brought.holders, file.name));
      asked_.push_back(0);
      open_.push_back(true);
      if (!holders_.back().empty()) continue;
      throw Error(ExitCode::checkpoint, file.name + " is in the memory of no host").on_all_ranks();
    }
  }

  /// Collective, until all files are there.
  void copy_to(const std::string& temporary, const comm::OnFailure& removes) {
    while (std::ranges::find(open_, true) != open_.end()) {
      const auto mine = [&] { return copy_mine(temporary); };
      take(comm::agree_and_gather(peers_, mine, removes));
      const auto require_holders = [&] {
        if (!lost_.empty()) throw Error(ExitCode::checkpoint, lost_);
      };
      comm::agree(peers_, require_holders, removes);
    }
  }

 private:
  /// Copies the files asked of this rank. Returns
  /// "<file's number> <problem>\n" for each failure.
  [[nodiscard]] std::string copy_mine(const std::string& temporary) const {
    std::string failures;
    for (std::size_t i = 0; i < open_.size(); ++i) {
      if (!open_[i] || holders_[i][asked_[i]] != peers_.rank()) continue;
      try {
        copy_checked(folder_, temporary, manifest_, manifest_.files[i]);
      } catch (const Error& error) {
        std::string problem = error.what();
        std::ranges::replace(problem, '\n', ' ');
        failures += fmt::format("{} {}\n", i, problem);
      }
    }
    storage::sync_folder(temporary);
    return failures;
  }

  /// Asks the next holder for a file that one could not copy.
  void take(const std::vector<std::string>& failures_by_rank) {
    std::map<std::size_t, std::string> failed;
    for (const std::string& failures : failures_by_rank) {
      std::istringstream lines(failures);
      for (std::string line; std::getline(lines, line);) {
        failed[std::stoull(line)] = line.substr(line.find(' ') + 1);
      }
    }
    open_.assign(open_.size(), false);
    for (const auto& [file, problem] : failed) {
      open_[file] = ++asked_[file] < holders_[file].size();
      if (!open_[file]) {
        lost_ = problem;
      } else if (peers_.rank() == 0) {
        log::warn(fmt::format("in memory: {}; the copy of another host is taken", problem));
      }
    }
  }

  comm::Peers& peers_;
  const Manifest& manifest_;
  const BroughtStep& brought_;
  std::string folder_;                     // the step on this host
  std::vector<std::vector<int>> holders_;  // by file
  std::vector<std::size_t> asked_;         // by file: holders that could not copy it
  std::vector<bool> open_;                 // by file: it is not there yet
  std::string lost_;                       // the problem of a file that no holder could copy
};

}  // namespace

std::string text_of_held(const std::string& folder) {
  std::string text;
  for (const StepFolder& found : find_steps(folder)) {
    try {
      text += text_of_step(found);
    } catch (const Error& error) {
      log::warn(fmt::format("a checkpoint in memory is left out: {}", error.what()));
    }
  }
  return text;
}

std::vector<std::vector<HeldStep>> steps_of_texts(const std::vector<std::string>& texts) {
  std::map<std::pair<std::int64_t, std::uint32_t>, std::vector<HeldStep>, std::greater<>> steps;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    std::istringstream lines(texts[rank]);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      HeldStep held;
      held.holder = static_cast<int>(rank);
      words >> held.step >> held.manifest;
      for (std::string file; words >> file;) held.files.push_back(file);
      steps[{held.step, held.manifest}].push_back(std::move(held));
    }
  }
  std::vector<std::vector<HeldStep>> found;
  found.reserve(steps.size());
  for (auto& [key, holders] : steps) found.push_back(std::move(holders));
  return found;
}

void bring_step(comm::Peers& peers, const BroughtStep& brought) {
  const HeldStep& first = brought.holders.front();
  const std::string name = step_name(first.step);
  const auto texts = comm::agree_and_gather(peers, [&]() -> std::string {
    if (first.holder != peers.rank()) return "";
    return storage::read_text(brought.folder + "/" + name + "/" + kManifestName);
  });
  Manifest manifest = manifest_of_text(texts[static_cast<std::size_t>(first.holder)], name);
  FileCopies copies(peers, manifest, brought);
  std::string temporary;  // rank 0 chooses it
  const comm::OnFailure removes = {[&] {
    if (!temporary.empty()) remove_quietly(temporary);
  }};
  const auto make_room = [&]() -> std::string {
    std::uint64_t bytes = bytes_of(brought.vocabulary);
    for (const CheckpointReader::FileEntry& file : manifest.files) bytes += file.bytes;
    return peers.rank() == 0 ? prepare_step(brought.checkpoints, name, bytes) : "";
  };
  temporary = comm::agree_and_gather(peers, make_room).front();
  copies.copy_to(temporary, removes);
  const auto commit = [&] {
    if (peers.rank() != 0) return;
    manifest.vocabulary = write_vocabulary(temporary, brought.vocabulary);
    publish(brought.checkpoints, temporary, name, manifest);
  };
  comm::agree(peers, commit, removes);
}

}  // namespace hyperslab::io
