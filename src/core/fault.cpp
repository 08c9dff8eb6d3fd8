// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/fault.hpp"

#include <atomic>
#include <utility>

#include "hyperslab/core/error.hpp"

namespace hyperslab::fault {
namespace {

std::atomic<const Injection::Answer*> current{nullptr};

}  // namespace

int at(const char* point, const std::string& subject) {
  const Injection::Answer* answer = current.load(std::memory_order_acquire);
  return answer == nullptr ? 0 : (*answer)(point, subject);
}

Injection::Injection(Answer answer) : answer_(std::move(answer)) {
  const Answer* none = nullptr;
  require(current.compare_exchange_strong(none, &answer_), "two fault injections at once");
}

Injection::~Injection() { current.store(nullptr); }

}  // namespace hyperslab::fault
