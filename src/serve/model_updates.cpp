// SPDX-License-Identifier: Apache-2.0
#include "model_updates.hpp"

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"

namespace hyperslab::serve {

ModelUpdates::ModelUpdates(FollowedRun followed, generate::Generator& generator, ModelQueue& queue,
                           std::function<void()> stop)
    : followed_(std::move(followed)),
      generator_(generator),
      queue_(queue),
      stop_(std::move(stop)),
      thread_([this] { watch(); }) {}

ModelUpdates::~ModelUpdates() {
  {
    const std::scoped_lock lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ModelUpdates::watch() {
  constexpr auto kPause = std::chrono::seconds(1);
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kPause, [this] { return is_ending_; })) {
    lock.unlock();
    try {
      look();
    } catch (const std::exception& error) {
      log::warn(fmt::format("the checkpoints of {} could not be looked at: {}",
                            followed_.checkpoints.directory(), error.what()));
    }
    lock.lock();
    changed_.wait(lock, [this] { return !is_loading_ || is_ending_; });
  }
}

/// Hands a new checkpoint to the queue.
void ModelUpdates::look() {
  const std::optional<io::CheckpointReader> found = followed_.checkpoints.next();
  if (!found) return;
  const auto reader = std::make_shared<const io::CheckpointReader>(*found);
  {
    const std::scoped_lock lock(mutex_);
    is_loading_ = true;
  }
  const ModelQueue::Work work = {.begin =
                                     [this, reader] {
                                       load(*reader);
                                       set_done();
                                     },
                                 .refuse = [this] { set_done(); },
                                 .is_alone = true,
                                 .is_first = true};
  if (queue_.push(work) != ModelQueue::Pushed::taken) set_done();
}

void ModelUpdates::set_done() {
  {
    const std::scoped_lock lock(mutex_);
    is_loading_ = false;
  }
  changed_.notify_all();
}

/// On the queue's thread.
void ModelUpdates::load(const io::CheckpointReader& reader) {
  try {
    generator_.require_takes(reader);
  } catch (const std::exception& error) {  // nothing has changed
    log::warn(fmt::format("checkpoint {} is not used, and the one before it stays: {}",
                          reader.folder(), error.what()));
    return;
  }
  try {
    generator_.load(reader.folder(), followed_.averages);
    log::info(fmt::format("answers that begin now are those of step {} ({})", reader.meta().step,
                          reader.folder()));
  } catch (const std::exception&) {
    load_another(std::current_exception());
  }
}

/// The model has values of two checkpoints: its run may have removed one while it was read. Takes
/// the newest one then, or ends the server.
void ModelUpdates::load_another(const std::exception_ptr& error) {
  constexpr int kAttempts = 3;
  failure_ = error;
  for (int i = 0; i < kAttempts && failure_; ++i) {
    try {
      const io::CheckpointReader reader(followed_.checkpoints.directory());
      generator_.load(reader.folder(), followed_.averages);
      log::info(fmt::format("answers that begin now are those of step {} ({})", reader.meta().step,
                            reader.folder()));
      failure_ = nullptr;
    } catch (const std::exception& found) {
      log::error(found.what());
      failure_ = std::current_exception();
    }
  }
  if (failure_) stop_();
}

}  // namespace hyperslab::serve
