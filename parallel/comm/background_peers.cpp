// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/comm/background_peers.hpp"

#include <utility>

#include "hyperslab/core/error.hpp"

namespace hyperslab::comm {

BackgroundPeers::BackgroundPeers(int rank, int size, std::string host,
                                 std::unique_ptr<Transport> transport)
    : rank_(rank), size_(size), host_(std::move(host)), transport_(std::move(transport)) {}

BackgroundPeers::~BackgroundPeers() { close(); }

/// Throws if the main thread will not come any more.
void BackgroundPeers::ask_and_wait(std::unique_lock<std::mutex>& lock) {
  if (!closed_) state_ = State::asked;
  changed_.wait(lock, [this] { return closed_ || state_ == State::done; });
  if (state_ != State::done) {
    throw Error(ExitCode::internal, "the ranks stopped before a thread beside them was done");
  }
  state_ = State::idle;
}

std::vector<std::string> BackgroundPeers::all_gather(const std::string& text) {
  if (size_ == 1) return {text};
  std::unique_lock lock(mutex_);
  text_ = text;
  exchanges_ = false;
  ask_and_wait(lock);
  return std::move(texts_);
}

void BackgroundPeers::exchange(std::span<const Parcel> sends, std::span<const Parcel> receives) {
  if (sends.empty() && receives.empty()) return;
  std::unique_lock lock(mutex_);
  sends_ = sends;
  receives_ = receives;
  exchanges_ = true;
  ask_and_wait(lock);
}

bool BackgroundPeers::advance() {
  return exchanges_ ? transport_->advance_exchange() : transport_->advance_gathering(texts_);
}

void BackgroundPeers::progress() {
  const std::lock_guard lock(mutex_);
  if (state_ == State::asked) {
    exchanges_ ? transport_->start_exchange(sends_, receives_) : transport_->start_gathering(text_);
    state_ = State::moving;
  }
  if (state_ != State::moving || !advance()) return;
  state_ = State::done;
  changed_.notify_all();
}

void BackgroundPeers::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

}  // namespace hyperslab::comm
