// SPDX-License-Identifier: Apache-2.0
#include "checkpoint_writer.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

#include "hyperslab/core/activity.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/fault.hpp"
#include "hyperslab/core/recorder.hpp"
#include "hyperslab/core/storage_call.hpp"

namespace hyperslab::run {
namespace {

constexpr auto kBetweenLooks = std::chrono::microseconds(200);

}  // namespace

CheckpointWriter::CheckpointWriter(comm::World& world, std::string directory)
    : world_(world), directory_(std::move(directory)), peers_(world.background_peers()) {}

CheckpointWriter::~CheckpointWriter() {
  peers_->close();
  if (thread_.joinable()) thread_.join();
}

/// Everything that communicates is called by all ranks alike, so that all have the same outcome.
SaveOutcome CheckpointWriter::attempt(comm::Peers& peers, const SaveJob& job) const {
  SaveOutcome outcome;
  outcome.step = job.meta.step;
  outcome.in_memory = job.memory != nullptr;
  try {
    const auto look = [&] { return io::first_not_finite(job.slabs, job.options); };
    const std::vector<std::string> bad = comm::agree_and_gather(peers, look);
    const auto first =
        std::ranges::find_if(bad, [](const std::string& name) { return !name.empty(); });
    if (first != bad.end()) {
      outcome.not_finite = *first;
      return outcome;
    }
    if (job.memory != nullptr) {
      job.memory->save(*peers_, job.meta, job.slabs, job.options);
      return outcome;
    }
    io::save_checkpoint(peers, directory_, job.meta, job.slabs, job.options);
    if (peers.rank() == 0) {
      fault::reach("checkpoint.prune");
      const Pause pause(world_.activity(), "removing old checkpoints");
      io::prune_checkpoints(directory_, job.keep);
    }
  } catch (const std::exception& error) {
    outcome.failure = error.what();
  }
  return outcome;
}

SaveOutcome CheckpointWriter::write(const SaveJob& job) {
  require(!is_busy() && job.memory == nullptr, "a checkpoint is in progress");
  const double start = now_seconds();
  SaveOutcome outcome = attempt(world_, job);
  outcome.seconds = now_seconds() - start;
  return outcome;
}

void CheckpointWriter::start(SaveJob job, const Event& ready) {
  require(!is_busy(), "a checkpoint is in progress");
  job_ = std::make_unique<SaveJob>(std::move(job));
  ready_ = ready;
  started_ = now_seconds();
  is_done_ = false;
  progress();
}

/// Signals are the main thread's.
void CheckpointWriter::start_thread() {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  sigdelset(&all, SIGBUS);  // this thread's own reads raise it
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] {
    outcome_ = attempt(*peers_, *job_);
    is_done_ = true;
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void CheckpointWriter::progress() {
  if (job_ == nullptr) return;
  if (!thread_.joinable() && !is_done_ && ready_.is_complete()) {
    ready_.wait();  // throws an error of the copies
    start_thread();
  }
  peers_->progress();
}

std::optional<SaveOutcome> CheckpointWriter::poll() {
  progress();
  if (job_ == nullptr || !is_done_) return std::nullopt;
  thread_.join();
  job_.reset();
  outcome_.seconds = now_seconds() - started_;
  return std::exchange(outcome_, {});
}

std::optional<SaveOutcome> CheckpointWriter::finish() {
  const StorageWait waiting;
  while (is_busy()) {
    if (auto outcome = poll()) return outcome;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return std::nullopt;
}

}  // namespace hyperslab::run
