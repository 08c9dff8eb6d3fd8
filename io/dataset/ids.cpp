// SPDX-License-Identifier: Apache-2.0
#include "dataset/ids.hpp"

#include <algorithm>
#include <cstring>

namespace hyperslab::io {
namespace {

/// Headers give no alignment, so elements are loaded by memcpy, which compiles to plain loads.
template <class T>
T load(const std::byte* ids, std::int64_t index) {
  T id;
  std::memcpy(&id, ids + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return id;
}

// Ids are compared as unsigned numbers: a negative one is then larger than any vocabulary.
template <class T>
std::uint64_t copy(const std::byte* ids, std::int64_t count, std::int32_t* out) {
  T largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const T id = load<T>(ids, i);
    out[i] = static_cast<std::int32_t>(id);
    largest = std::max(largest, id);
  }
  return largest;
}

template <class T>
std::uint64_t largest(const std::byte* ids, std::int64_t count) {
  constexpr std::int64_t kChunk = 1 << 18;
  const std::int64_t chunks = (count + kChunk - 1) / kChunk;
  T all = 0;
#pragma omp parallel for schedule(static) reduction(max : all)
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    const std::int64_t end = std::min(count, (chunk + 1) * kChunk);
    T here = 0;
    for (std::int64_t i = chunk * kChunk; i < end; ++i) here = std::max(here, load<T>(ids, i));
    all = std::max(all, here);
  }
  return all;
}

/// Calls `action` with a value of the unsigned type that is as wide as the shard's ids.
template <class Action>
auto with_width(IdType type, Action action) {
  switch (type) {
    case IdType::u16: return action(std::uint16_t{});
    case IdType::u32:
    case IdType::i32: return action(std::uint32_t{});
    case IdType::i64: break;
  }
  return action(std::uint64_t{});
}

}  // namespace

std::uint64_t copy_ids(const Shard& shard, std::int64_t first, std::span<std::int32_t> out) {
  const std::byte* ids = shard.ids() + first * size_of(shard.type);
  return with_width(shard.type, [&](auto width) {
    return copy<decltype(width)>(ids, static_cast<std::int64_t>(out.size()), out.data());
  });
}

std::uint64_t largest_id(const Shard& shard) {
  return with_width(shard.type,
                    [&](auto width) { return largest<decltype(width)>(shard.ids(), shard.count); });
}

std::int64_t find_bad_id(const Shard& shard, std::int64_t first, std::int64_t count,
                         std::int64_t vocabulary) {
  for (std::int64_t i = first; i < first + count; ++i) {
    const std::int64_t id = id_at(shard, i);
    if (id < 0 || id >= vocabulary) return i;
  }
  return -1;
}

std::vector<std::int64_t> documents_by_end(const Shard& shard, std::int32_t end_token) {
  std::vector<std::int64_t> starts = {0};
  with_width(shard.type, [&](auto width) {
    for (std::int64_t i = 0; i + 1 < shard.count; ++i) {
      const std::uint64_t id = load<decltype(width)>(shard.ids(), i);
      if (id == static_cast<std::uint64_t>(end_token)) starts.push_back(i + 1);
    }
  });
  return starts;
}

std::int64_t id_at(const Shard& shard, std::int64_t index) {
  const std::byte* ids = shard.ids();
  switch (shard.type) {
    case IdType::u16: return load<std::uint16_t>(ids, index);
    case IdType::u32: return load<std::uint32_t>(ids, index);
    case IdType::i32: return load<std::int32_t>(ids, index);
    case IdType::i64: break;
  }
  return load<std::int64_t>(ids, index);
}

}  // namespace hyperslab::io
