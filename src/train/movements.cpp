// SPDX-License-Identifier: Apache-2.0
// The movements of a step, for people.
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::train {

std::vector<sharding::NamedMovement> Trainer::movements() const {
  std::vector<sharding::NamedMovement> all = presence_.movements(program_.microbatches);
  if (!optimizer_) return all;
  const std::vector<std::size_t> bytes = optimizer_->moved_bytes();
  const std::vector<param::Bucket>& buckets = stage_.params().trained().buckets();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == 0) continue;
    const bool by_bucket = bytes.size() == buckets.size();  // else one range is all of them
    all.push_back({"state",
                   by_bucket ? buckets[i].first_unit : 0,
                   by_bucket ? buckets[i].last_unit : stage_.units() - 1,
                   {{layout::Step::Kind::to_device, {}, bytes[i]},
                    {layout::Step::Kind::to_host, {}, bytes[i]}},
                   1,
                   "around its update",
                   presence_.overlaps_updates() ? "forward of the units before it" : ""});
  }
  return all;
}

}  // namespace hyperslab::train
