// SPDX-License-Identifier: Apache-2.0
#include "worker.hpp"

#include <boost/asio/post.hpp>
#include <utility>

namespace hyperslab::serve {

bool Worker::push(std::function<void()> job) {
  if (jobs_.fetch_add(1) >= most_) {
    --jobs_;
    return false;
  }
  boost::asio::post(pool_, [this, job = std::move(job)]() mutable {
    std::exchange(job, nullptr)();
    --jobs_;
  });
  return true;
}

}  // namespace hyperslab::serve
