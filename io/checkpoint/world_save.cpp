// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/save.hpp"

namespace hyperslab::io {
namespace {

class WorldPeers final : public Peers {
 public:
  explicit WorldPeers(comm::World& world) : world_(world) {}
  [[nodiscard]] int rank() const override { return world_.rank(); }
  [[nodiscard]] int size() const override { return world_.size(); }
  [[nodiscard]] std::vector<std::string> all_gather(const std::string& text) override {
    return world_.all_gather(text);
  }

 private:
  comm::World& world_;
};

}  // namespace

void save_checkpoint(comm::World& world, const std::string& directory, const CheckpointMeta& meta,
                     std::span<const Slab> slabs) {
  WorldPeers peers(world);
  SaveOptions options;
  options.activity = &world.activity();
  save_checkpoint(peers, directory, meta, slabs, options);
}

}  // namespace hyperslab::io
