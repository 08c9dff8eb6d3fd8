// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "hyperslab/generate/generate.hpp"
#include "hyperslab/serve/model_queue.hpp"
#include "hyperslab/serve/serve.hpp"

namespace hyperslab::serve {

/// Brings the checkpoints of a run to the model that is served. A thread of its own looks for them
/// and checks them; the queue's thread loads them while no answer is in progress.
class ModelUpdates {
 public:
  /// `stop`: ends the server, on the queue's thread, if no checkpoint can be loaded any more. The
  /// generator and the queue must outlive this.
  ModelUpdates(FollowedRun followed, generate::Generator& generator, ModelQueue& queue,
               std::function<void()> stop);
  /// After the queue has been closed.
  ~ModelUpdates();
  ModelUpdates(const ModelUpdates&) = delete;
  ModelUpdates& operator=(const ModelUpdates&) = delete;
  ModelUpdates(ModelUpdates&&) = delete;
  ModelUpdates& operator=(ModelUpdates&&) = delete;

  /// The error that ended the server; null: none. Once the queue's thread has ended.
  [[nodiscard]] const std::exception_ptr& failure() const { return failure_; }

 private:
  void watch();
  void look();
  void load(const io::CheckpointReader& reader);
  void load_another(const std::exception_ptr& error);
  void set_done();

  FollowedRun followed_;
  generate::Generator& generator_;
  ModelQueue& queue_;
  std::function<void()> stop_;
  std::exception_ptr failure_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_ending_ = false;
  bool is_loading_ = false;  ///< a checkpoint is on its way to the model
  std::thread thread_;
};

}  // namespace hyperslab::serve
