// SPDX-License-Identifier: Apache-2.0
#include "same_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "hyperslab/core/philox.hpp"
#include "mpi_check.hpp"

namespace hyperslab::comm {
namespace {

using Hashes = std::vector<std::uint64_t>;
using Text = std::array<char, 160>;  // description of an allocation

/// One for each allocation in order, and one for the end of the arena.
std::vector<std::string> texts_of(const Arena& arena) {
  std::vector<std::string> texts;
  for (const Allocation& each : arena.allocations()) {
    texts.push_back(
        fmt::format("{} bytes at byte {} for {}", each.bytes, each.offset_bytes, each.label));
  }
  texts.push_back(fmt::format("the end at byte {}", arena.buffer().bytes()));
  return texts;
}

Hashes reduced(Hashes mine, MPI_Op op, MPI_Comm group, const std::string& communicator) {
  std::uint64_t* const values = mine.data();
  HS_MPI(communicator, MPI_Allreduce(MPI_IN_PLACE, values, static_cast<int>(mine.size()),
                                     MPI_UINT64_T, op, group));
  return mine;
}

/// The texts of all members; a text that does not fit is cut off.
std::vector<Text> gathered(const std::string& mine, MPI_Comm group,
                           const std::string& communicator) {
  Text text{};
  mine.copy(text.data(), text.size() - 1);
  std::vector<Text> all(static_cast<std::size_t>(size_of_group(group, communicator)));
  HS_MPI(communicator, MPI_Allgather(text.data(), sizeof text, MPI_BYTE, all.data(), sizeof text,
                                     MPI_BYTE, group));
  return all;
}

}  // namespace

std::string layout_difference(MPI_Comm group, const std::string& communicator, const Arena& arena) {
  std::vector<std::string> texts = texts_of(arena);
  texts.resize(reduced({texts.size()}, MPI_MAX, group, communicator).front());
  Hashes hashes(texts.size());
  std::ranges::transform(texts, hashes.begin(), name_hash);
  const Hashes least = reduced(hashes, MPI_MIN, group, communicator);
  const Hashes most = reduced(hashes, MPI_MAX, group, communicator);
  const auto first = std::ranges::mismatch(least, most).in1 - least.begin();
  if (first == std::ssize(least)) return {};
  std::string reported;
  int member = 0;
  for (const Text& text : gathered(texts[static_cast<std::size_t>(first)], group, communicator)) {
    reported += fmt::format("{} member {} has {}", member == 0 ? "" : ",", member, text.data());
    ++member;
  }
  return fmt::format("their arenas {} differ:{}", arena.name(), reported);
}

}  // namespace hyperslab::comm
