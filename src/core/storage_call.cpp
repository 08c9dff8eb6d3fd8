// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/storage_call.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>

namespace hyperslab {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kSlots = 64;  // calls at once; more are not reported
constexpr std::size_t kMostOfPath = 80;
constexpr auto kSlow = std::chrono::milliseconds(500);

struct Slot {
  const char* what = nullptr;  // null: free
  std::array<char, kMostOfPath + 1> path{};
  Clock::time_point begin;
};

std::mutex mutex;  // held for a copy only
std::array<Slot, kSlots> slots;
std::atomic<std::uint64_t> slow_calls = 0;
std::atomic<bool> waits = false;

}  // namespace

StorageCall::StorageCall(const char* what, const std::string& path) noexcept : slot_(kSlots) {
  const Clock::time_point now = Clock::now();
  const std::lock_guard lock(mutex);
  const auto free = std::ranges::find(slots, nullptr, &Slot::what);
  if (free == slots.end()) return;
  slot_ = static_cast<std::size_t>(free - slots.begin());
  free->what = what;
  free->begin = now;
  const std::size_t bytes = std::min(path.size(), kMostOfPath);
  std::memcpy(free->path.data(), path.data() + (path.size() - bytes), bytes);
  free->path[bytes] = '\0';
}

StorageCall::~StorageCall() {
  if (slot_ == kSlots) return;
  const Clock::time_point now = Clock::now();
  const std::lock_guard lock(mutex);
  if (now - slots[slot_].begin >= kSlow) slow_calls.fetch_add(1, std::memory_order_relaxed);
  slots[slot_].what = nullptr;
}

std::uint64_t slow_storage_calls() noexcept { return slow_calls.load(std::memory_order_relaxed); }

StorageWait::StorageWait() noexcept { waits.store(true, std::memory_order_relaxed); }
StorageWait::~StorageWait() { waits.store(false, std::memory_order_relaxed); }
bool waits_for_storage() noexcept { return waits.load(std::memory_order_relaxed); }

std::string oldest_storage_call() {
  Slot oldest;
  {
    const std::lock_guard lock(mutex);
    for (const Slot& each : slots) {
      if (each.what == nullptr) continue;
      if (oldest.what == nullptr || each.begin < oldest.begin) oldest = each;
    }
  }
  if (oldest.what == nullptr) return "";
  const double seconds = std::chrono::duration<double>(Clock::now() - oldest.begin).count();
  return fmt::format("{} {} for {:.0f} s", oldest.what, oldest.path.data(), seconds);
}

}  // namespace hyperslab
