// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/train/same_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hyperslab/core/activity.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/train/setup.hpp"

namespace hyperslab::train {
namespace {

struct File {
  std::string path;
  std::string content;  ///< size, tokens, format, fingerprint
};

/// The files of a rank as one text; no path has a zero byte.
std::string text_of(const std::vector<io::TokenFileSummary>& files) {
  std::string text;
  for (const io::TokenFileSummary& file : files) {
    text += file.path + '\0';
    text += fmt::format("{} bytes, {} tokens, {}, fingerprint {:016x}", file.file_bytes,
                        file.tokens, file.format, file.fingerprint);
    text += '\0';
  }
  return text;
}

std::vector<File> files_in(std::string_view text) {
  const auto take = [&text] {
    std::string field(text.substr(0, text.find('\0')));
    text.remove_prefix(field.size() + 1);
    return field;
  };
  std::vector<File> files;
  while (!text.empty()) {
    std::string path = take();
    files.push_back({std::move(path), take()});
  }
  return files;
}

/// The first file that two ranks do not have alike, as each of them has it.
std::pair<std::string, std::string> difference(const std::vector<File>& first,
                                               const std::vector<File>& other) {
  if (first.size() != other.size()) {
    return {fmt::format("{} files", first.size()), fmt::format("{} files", other.size())};
  }
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (first[i].content == other[i].content) continue;
    return {fmt::format("'{}' ({})", first[i].path, first[i].content),
            fmt::format("'{}' ({})", other[i].path, other[i].content)};
  }
  return {"other documents of the same files", "these"};
}

/// Values of all ranks, known to every rank.
struct Gathered {
  std::vector<std::string> fingerprints;
  std::vector<std::string> files;
  std::vector<std::string> hosts;
};

[[noreturn]] void fail(const char* key, const Gathered& all) {
  constexpr std::size_t kMostNamed = 8;
  std::vector<std::string> differing;
  std::size_t first = 0;
  for (std::size_t rank = 1; rank < all.fingerprints.size(); ++rank) {
    if (all.fingerprints[rank] == all.fingerprints[0]) continue;
    if (differing.empty()) first = rank;
    differing.push_back(fmt::format("{} (host {})", rank, all.hosts[rank]));
  }
  const std::size_t left_out = differing.size() - std::min(differing.size(), kMostNamed);
  differing.resize(differing.size() - left_out);
  const auto [ours, theirs] = difference(files_in(all.files[0]), files_in(all.files[first]));
  throw Error(ExitCode::data,
              fmt::format("{}: the ranks find different data: rank 0 on host {} has {}, rank {} "
                          "on host {} has {}; ranks that differ from rank 0: {}{}; give every host "
                          "the same files",
                          key, all.hosts[0], ours, first, all.hosts[first], theirs,
                          fmt::join(differing, ", "),
                          left_out > 0 ? fmt::format(" and {} more", left_out) : ""))
      .on_all_ranks();
}

}  // namespace

void require_same_data(comm::World& world, std::initializer_list<NamedSource> parts) {
  if (world.size() == 1) return;
  for (const auto& [key, tokens] : parts) {
    if (tokens == nullptr) continue;
    std::uint64_t mine = 0;
    comm::agree(world, [&world, &mine, source = tokens] {
      const Pause pause(world.activity(), "reading the data files");
      mine = source->fingerprint();
    });
    Gathered all;
    all.fingerprints = world.all_gather(fmt::format("{:016x}", mine));
    if (std::ranges::count(all.fingerprints, all.fingerprints[0]) == world.size()) continue;
    std::string files;
    comm::agree(world, [&world, &files, source = tokens] {
      const Pause pause(world.activity(), "reading the data files");
      files = text_of(source->files());
    });
    all.files = world.all_gather(files);
    all.hosts = world.all_gather(world.host());
    fail(key, all);
  }
}

}  // namespace hyperslab::train
