// SPDX-License-Identifier: Apache-2.0
#include "dataset/bus_errors.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <mutex>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/failure_notice.hpp"

namespace hyperslab::io {
namespace {

/// A mapped file; free if `begin` is 0. The handler reads it without a lock.
struct Slot {
  std::atomic<std::uintptr_t> begin;
  std::atomic<std::size_t> bytes;
  std::atomic<const char*> line;
  std::atomic<std::size_t> line_bytes;
};
static_assert(std::atomic<std::uintptr_t>::is_always_lock_free &&
              std::atomic<const char*>::is_always_lock_free);

constexpr int kSlots = 1 << 14;
std::array<Slot, kSlots> slots;
std::atomic<int> used = 0;  // slots from here on were never taken
std::mutex writers;
struct sigaction earlier;

extern "C" void handle_bus_error(int number, siginfo_t* info, void* /*context*/) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  const int count = info->si_code == BUS_ADRERR ? used.load() : 0;
  for (int i = 0; i < count; ++i) {
    const Slot& slot = slots[static_cast<std::size_t>(i)];
    const std::uintptr_t begin = slot.begin.load();
    if (begin == 0 || address < begin || address - begin >= slot.bytes.load()) continue;
    (void)!::write(STDERR_FILENO, slot.line.load(), slot.line_bytes.load());
    failure_notice::give();
    ::_exit(static_cast<int>(ExitCode::data));
  }
  ::sigaction(SIGBUS, &earlier, nullptr);
  // The access is tried again; a signal of another process does not come again by itself.
  if (info->si_code <= 0) (void)std::raise(number);
}

void install_once() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = handle_bus_error;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &earlier);
  });
}

int take_slot(std::span<const std::byte> mapped, const std::string& line) {
  const std::lock_guard lock(writers);
  int i = 0;
  while (i < kSlots && slots[static_cast<std::size_t>(i)].begin != 0) ++i;
  if (i == kSlots) return -1;
  Slot& slot = slots[static_cast<std::size_t>(i)];
  slot.bytes = mapped.size();
  slot.line = line.data();
  slot.line_bytes = line.size();
  slot.begin = reinterpret_cast<std::uintptr_t>(mapped.data());
  if (i >= used) used = i + 1;
  return i;
}

}  // namespace

BusErrorLine::BusErrorLine(std::span<const std::byte> mapped, const std::string& path,
                           const char* kind)
    : line_(fmt::format("hyperslab: {0} '{1}': expected the {2} bytes that it had when it was "
                        "opened, found fewer: it was shortened while it was read, or its storage "
                        "failed; do not change {0}s under a run\n",
                        kind, path, mapped.size())),
      slot_(take_slot(mapped, line_)) {
  install_once();
}

BusErrorLine::~BusErrorLine() {
  if (slot_ >= 0) slots[static_cast<std::size_t>(slot_)].begin = 0;
}

}  // namespace hyperslab::io
