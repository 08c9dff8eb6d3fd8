// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/failure_notice.hpp"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>

namespace hyperslab::failure_notice {
namespace {

constexpr int kLooks = 200;  // ten milliseconds apart
constexpr timespec kBetweenLooks = {0, 10'000'000};

std::atomic<int> listener{-1};
std::atomic<bool> given{false};
std::atomic<bool> answered{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

}  // namespace

void give() noexcept {
  const int event = listener.load();
  if (event < 0) return;
  const int error = errno;  // errno of the code that the handler interrupts
  given = true;
  const std::uint64_t one = 1;
  (void)!::write(event, &one, sizeof one);
  for (int look = 0; look < kLooks && !answered && listener.load() >= 0; ++look) {
    (void)::nanosleep(&kBetweenLooks, nullptr);
  }
  errno = error;
}

void listen(int event) noexcept {
  given = false;
  answered = false;
  listener = event;
}

bool is_given() noexcept { return given; }

void answer() noexcept { answered = true; }

}  // namespace hyperslab::failure_notice
