// SPDX-License-Identifier: Apache-2.0
// A trainer's checks of its numbers: sums that replicas share, and the source of bad values.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "hyperslab/core/philox.hpp"
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/train/slot_data.hpp"
#include "hyperslab/train/trainer.hpp"
#include "stage_worker.hpp"
#include "step_records.hpp"

namespace hyperslab::train {
namespace {

constexpr Dim kPieceBytes = Dim{64} << 20;  // on the host at a time

/// The sum modulo 2^64 over the bytes' words, each plus one times an odd number that depends on the
/// tensor and the place, as io::parameter_fingerprint does.
std::uint64_t term_of(const unsigned char* bytes, Dim count, std::uint64_t name, std::uint64_t at) {
  std::uint64_t sum = 0;
  for (Dim i = 0; i < count; i += 4) {
    std::uint32_t word = 0;
    std::memcpy(&word, bytes + i, static_cast<std::size_t>(std::min<Dim>(4, count - i)));
    const std::uint64_t place =
        (name + (at + static_cast<std::uint64_t>(i / 4)) * 0x9E3779B97F4A7C15ULL) | 1U;
    sum += (std::uint64_t{word} + 1) * place;
  }
  return sum;
}

/// Copies a view's bytes from a device to the host, in pieces.
class Reader {
 public:
  explicit Reader(Context& ctx) : ctx_(ctx) {}

  /// Calls take(bytes, count, begin) for every piece.
  template <class Take>
  void each_piece(const View& view, const Take& take) {
    const View all(view.raw(), DType::u8, view.device(), {static_cast<Dim>(view.bytes())});
    for (Dim begin = 0; begin < all.numel(); begin += kPieceBytes) {
      const Dim size = std::min(kPieceBytes, all.numel() - begin);
      take(fetch(all.slice(begin, size)), size, begin);
    }
  }

 private:
  const unsigned char* fetch(const View& piece) {
    if (piece.device() == Device::cpu) return piece.data<std::uint8_t>();
    host_.resize(static_cast<std::size_t>(piece.numel()));
    copy(ctx_, piece, View(host_.data(), DType::u8, Device::cpu, piece.shape()));
    synchronize(ctx_);
    return host_.data();
  }
  Context& ctx_;
  std::vector<unsigned char> host_;
};

template <class T>
bool all_finite(const unsigned char* bytes, Dim count) {
  for (Dim i = 0; i < count; i += static_cast<Dim>(sizeof(T))) {
    T value = 0;
    std::memcpy(&value, bytes + i, sizeof value);
    if (!std::isfinite(value)) return false;
  }
  return true;
}

}  // namespace

TrainerState::ReplicaSums TrainerState::replica_sums() {
  wait_all();
  synchronize(parts_.ctx);
  Reader reader(parts_.ctx);
  ReplicaSums sums;
  const auto add_to = [&](std::uint64_t& sum, const std::string& name, const View& view) {
    if (!view) return;
    reader.each_piece(view, [&](const unsigned char* bytes, Dim count, Dim begin) {
      sum += term_of(bytes, count, name_hash(name), static_cast<std::uint64_t>(begin / 4));
    });
  };
  const auto add = [&](const std::string& kind, const param::Param& param, const View& view) {
    const bool is_experts = param.placement.expert.is_shard();
    add_to(is_experts ? sums.experts : sums.whole, kind + param.name, view);
  };
  // Gathered FP8 values stand for their parameters, whose values of other ranks' shards are old.
  std::set<const param::Param*> old;
  for (const param::KeptFp8& kept : parts_.stage.params().kept_fp8()) {
    const auto& members = kept.matrix.members();
    if (kept.values) old.insert(members.begin(), members.end());
    if (!kept.replaces_values()) add("fp8/", *members.front(), kept.values);
    add("scale/", *members.front(), kept.scale);
  }
  const param::ParamStore& params = parts_.stage.params();
  for (const auto* group : {&params.trained(), &params.frozen(), &params.buffers()}) {
    for (const param::Param* param : group->params()) {
      const bool shares_room = group->value().sharded && group->bucket_of(*param).is_sharded();
      if (!old.contains(param) && !shares_room) add("", *param, param->value);
      if (param->master && param->master.raw() != param->value.raw()) {
        add("master/", *param, param->master);
      }
    }
  }
  const param::ParamGroup& trained = parts_.stage.params().trained();
  if (trained.master().sharded) add_to(sums.shards, "masters", trained.master().data);
  if (trained.value().sharded) add_to(sums.shards, "values", trained.value().data);
  const param::ParamGroup& frozen = parts_.stage.params().frozen();
  if (frozen.value().sharded) add_to(sums.shards, "frozen values", frozen.value().data);
  return sums;
}

Trainer::BadNumbers Trainer::find_bad_numbers(const StepArgs& args, io::Loader& loader) {
  state_->wait_all();
  begin(args, loader.weights(args.step));
  StageWorker::PassArgs passes;
  passes.step_views = step_views();
  passes.step = args.step;
  passes.tokens = LoadedData{loader};
  passes.microbatches = program_.microbatches;
  passes.reduces = false;
  passes.eager = true;
  worker_->begin(passes);
  executor_->run(*ctx_, *worker_);
  executor_->finish(*ctx_);
  end();
  synchronize(*ctx_);
  inspection_->restart_clock();
  BadNumbers bad;
  bad.loss = !std::isfinite(records_->read_sums()[ops::kSumLoss]);
  Reader reader(*ctx_);
  for (const param::Param* param : stage_.params().trained().params()) {
    if (!param->gradient || !bad.tensor.empty()) continue;
    reader.each_piece(param->gradient, [&](const unsigned char* bytes, Dim count, Dim) {
      const bool finite = param->gradient.dtype() == DType::f64 ? all_finite<double>(bytes, count)
                                                                : all_finite<float>(bytes, count);
      if (!finite) bad.tensor = param->name;
    });
  }
  return bad;
}

}  // namespace hyperslab::train
