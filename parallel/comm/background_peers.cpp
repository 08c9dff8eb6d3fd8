// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/comm/background_peers.hpp"

#include <utility>

#include "hyperslab/core/error.hpp"

namespace hyperslab::comm {

BackgroundPeers::BackgroundPeers(int rank, int size, std::string host,
                                 std::unique_ptr<Transport> transport)
    : rank_(rank), size_(size), host_(std::move(host)), transport_(std::move(transport)) {}

BackgroundPeers::~BackgroundPeers() { close(); }

std::vector<std::string> BackgroundPeers::all_gather(const std::string& text) {
  if (size_ == 1) return {text};
  std::unique_lock lock(mutex_);
  text_ = text;
  if (!closed_) state_ = State::asked;
  changed_.wait(lock, [this] { return closed_ || state_ == State::done; });
  if (state_ != State::done) {
    throw Error(ExitCode::internal, "the ranks stopped before a thread beside them was done");
  }
  state_ = State::idle;
  return std::move(texts_);
}

void BackgroundPeers::progress() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::asked) {
    transport_->start(text_);
    state_ = State::moving;
  }
  if (state_ != State::moving || !transport_->advance(texts_)) return;
  state_ = State::done;
  changed_.notify_all();
}

void BackgroundPeers::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

}  // namespace hyperslab::comm
