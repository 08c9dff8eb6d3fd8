// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace hyperslab::io {

/// Workers that threads borrow, each for the time of a loan. There are as many as were lent at
/// once, and they are kept from loan to loan. Threads may borrow at the same time.
template <class Worker>
class IdleWorkers {
 public:
  /// Gives its worker back at its end. The owner must outlive it.
  class Loan {
   public:
    Loan(IdleWorkers& owner, std::unique_ptr<Worker> worker)
        : owner_(owner), worker_(std::move(worker)) {}
    ~Loan() {
      const std::lock_guard lock(owner_.mutex_);
      owner_.idle_.push_back(std::move(worker_));
    }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    Loan(Loan&&) = delete;
    Loan& operator=(Loan&&) = delete;
    [[nodiscard]] Worker& worker() { return *worker_; }

   private:
    IdleWorkers& owner_;
    std::unique_ptr<Worker> worker_;
  };

  /// `make`: gives a new one where none is idle.
  template <class Make>
  [[nodiscard]] Loan lend(Make&& make) {
    std::unique_ptr<Worker> worker = take();
    return Loan(*this, worker ? std::move(worker) : std::forward<Make>(make)());
  }
  /// Those that are not lent.
  [[nodiscard]] const std::vector<std::unique_ptr<Worker>>& idle() const { return idle_; }

 private:
  std::unique_ptr<Worker> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return nullptr;
    std::unique_ptr<Worker> worker = std::move(idle_.back());
    idle_.pop_back();
    return worker;
  }
  std::mutex mutex_;
  std::vector<std::unique_ptr<Worker>> idle_;
};

}  // namespace hyperslab::io
