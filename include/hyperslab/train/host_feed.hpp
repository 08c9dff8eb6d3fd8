// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "hyperslab/train/batch_feed.hpp"
#include "hyperslab/train/prefetcher.hpp"

namespace hyperslab::train {

/// A feed whose samples are made in the host's memory, by one thread, and copied. Nothing is
/// allocated after the first calls.
class HostFeed final : public BatchFeed {
 public:
  HostFeed(Context& ctx, const Batch& like, const FeedOptions& options);
  HostFeed(const HostFeed&) = delete;
  HostFeed& operator=(const HostFeed&) = delete;
  HostFeed(HostFeed&&) = delete;
  HostFeed& operator=(HostFeed&&) = delete;
  ~HostFeed() override;

  void load(Context& ctx, io::Loader& loader, std::int64_t step, int microbatch,
            const Batch& destination) override;
  void load(Context& ctx, const Part& part, const Batch& destination) override;
  void release() override;

 private:
  /// Host memory for the next microbatch of an evaluation: on the CPU the views of `like`.
  [[nodiscard]] Batch next();

  Batch like_;
  Device device_;
  FeedOptions options_;
  std::unique_ptr<TokenCut> cut_;  ///< for evaluations
  std::unique_ptr<Prefetcher> prefetcher_;
  std::vector<HostBatch> staging_;  ///< memory for next(); empty on the CPU and on meta
  std::size_t at_ = 0;
};

}  // namespace hyperslab::train
