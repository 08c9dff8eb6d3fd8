// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <barrier>
#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hyperslab/comm/agree.hpp"

namespace hyperslab::test {

/// The state that the threads of one job share.
struct ThreadJob {
  explicit ThreadJob(std::vector<std::string> hosts_of_ranks)
      : hosts(std::move(hosts_of_ranks)),
        texts(hosts.size()),
        barrier(static_cast<std::ptrdiff_t>(hosts.size())) {}
  std::vector<std::string> hosts;
  std::vector<std::string> texts;
  std::barrier<> barrier;
};

/// A thread as a rank.
class ThreadPeers final : public comm::Peers {
 public:
  ThreadPeers(ThreadJob& job, std::size_t rank) : job_(job), rank_(rank) {}
  [[nodiscard]] int rank() const override { return static_cast<int>(rank_); }
  [[nodiscard]] int size() const override { return static_cast<int>(job_.hosts.size()); }
  [[nodiscard]] const std::string& host() const override { return job_.hosts[rank_]; }
  [[nodiscard]] std::vector<std::string> all_gather(const std::string& text) override {
    job_.texts[rank_] = text;
    job_.barrier.arrive_and_wait();
    std::vector<std::string> all = job_.texts;
    job_.barrier.arrive_and_wait();
    return all;
  }

 private:
  ThreadJob& job_;
  std::size_t rank_;
};

/// Runs `work`, which must not throw, as a rank on each of these hosts at once.
inline void as_ranks_on(const std::vector<std::string>& hosts,
                        const std::function<void(comm::Peers&)>& work) {
  ThreadJob job(hosts);
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    threads.emplace_back([&job, &work, rank] {
      ThreadPeers peers(job, rank);
      work(peers);
    });
  }
}

}  // namespace hyperslab::test
