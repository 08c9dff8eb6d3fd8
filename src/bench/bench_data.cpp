// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/bench/bench_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <numeric>

#include "hyperslab/core/transfer.hpp"
#include "hyperslab/io/dataset.hpp"
#include "hyperslab/mesh/mesh.hpp"
#include "hyperslab/train/batch_feed.hpp"
#include "hyperslab/train/deck_data.hpp"
#include "hyperslab/train/prefetcher.hpp"
#include "hyperslab/train/setup.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::bench {
namespace {

/// A microbatch of the model's kind of input, on a device.
class DeviceBatch {
 public:
  DeviceBatch(Device device, const train::Config& config, DType compute) : device_(device) {
    const Dim B = config.train.microbatch;
    const Dim T = config.model.context;
    const model::ImageSpec& image = config.model.image;
    if (config.model.is_of_images()) {
      views_.patches = take(compute, {B, image.patches(), image.patch_values()});
      views_.labels = take(DType::i32, {B, 2});
      views_.label_weights = take(DType::f32, {B});
    } else {
      views_.tokens = take(DType::i32, {B, T});
      views_.targets = take(DType::i32, {B, T});
      views_.token_sort_index = take(DType::i32, {B * T});
      if (config.data.documents == io::Documents::masked) {
        views_.first_keys = take(DType::i32, {B, T});
      }
    }
    views_.sample_position = take(DType::i64, {B});
  }
  [[nodiscard]] const Batch& views() const { return views_; }
  [[nodiscard]] double bytes() const {
    double sum = 0;
    for (const Tensor& tensor : memory_) sum += static_cast<double>(tensor.view().bytes());
    return sum;
  }

 private:
  View take(DType dtype, const Shape& shape) {
    return memory_.emplace_back(device_, dtype, shape).view();
  }
  Device device_;
  std::deque<Tensor> memory_;
  Batch views_;
};

/// The rank's loader of a deck, and the memory that its microbatches go to.
class DataBench {
 public:
  DataBench(comm::World& world, const train::Config& config, int warmup, int steps)
      : world_(world), config_(config), warmup_(warmup), steps_(steps) {
    comm::agree(world_, [this] { open(); });
  }
  DataBenchResult run();

 private:
  using LoadOne = std::function<void(std::int64_t step, int microbatch)>;

  void open();
  void load_directly(std::int64_t step, int microbatch, bool with_sort_index);
  DataBenchRow measure(const std::string& name, const LoadOne& load);
  [[nodiscard]] std::vector<double> of_all_ranks(double mine);
  /// The samples of a step on one data rank.
  [[nodiscard]] std::int64_t rank_samples() const {
    return config_.train.global_batch / config_.parallel.data;
  }

  comm::World& world_;
  const train::Config& config_;
  int warmup_;
  int steps_;
  train::DeckData data_;
  std::unique_ptr<io::Loader> loader_;
  std::unique_ptr<Context> ctx_;
  std::unique_ptr<DeviceBatch> batch_;
  std::unique_ptr<train::HostBatch> host_;
  std::unique_ptr<train::BatchFeed> feed_;
};

void DataBench::open() {
  data_ = train::open_data(config_);
  loader_ = std::make_unique<io::Loader>(
      *data_.train_samples, config_.train.global_batch,
      mesh::Position(config_.parallel, world_.rank()).at(mesh::kSamples), config_.parallel.data);
  const auto options = train::trainer_options(config_, world_.local_rank(), false);
  ctx_ = std::make_unique<Context>(options.device);
  batch_ = std::make_unique<DeviceBatch>(options.device, config_, options.compute);
  host_ = std::make_unique<train::HostBatch>(options.device, batch_->views());
  const auto microbatches = static_cast<int>(config_.microbatches());
  feed_ = train::make_feed(*ctx_, batch_->views(),
                           {static_cast<std::size_t>(3 * microbatches), microbatches});
}

void DataBench::load_directly(std::int64_t step, int microbatch, bool with_sort_index) {
  Batch views = host_->views();
  if (!with_sort_index) views.token_sort_index = View();
  loader_->load(step, microbatch, views);
}

std::vector<double> DataBench::of_all_ranks(double mine) {
  std::vector<double> all;
  for (const std::string& text : world_.all_gather(fmt::format("{}", mine))) {
    all.push_back(std::stod(text));
  }
  return all;
}

DataBenchRow DataBench::measure(const std::string& name, const LoadOne& load) {
  std::vector<double> seconds;
  world_.barrier();
  comm::agree(world_, [&] {
    for (std::int64_t step = 1; step <= warmup_ + steps_; ++step) {
      const double start = now_seconds();
      for (int m = 0; m < config_.microbatches(); ++m) load(step, m);
      synchronize(*ctx_);
      if (step > warmup_) seconds.push_back(now_seconds() - start);
    }
  });
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::ranges::nth_element(seconds, middle);
  DataBenchRow row;
  row.name = name;
  row.step_seconds = of_all_ranks(*middle);
  const auto targets = static_cast<double>(rank_samples() * data_.train_samples->targets());
  for (const double each : row.step_seconds) row.rank_targets_per_second.push_back(targets / each);
  return row;
}

DataBenchResult DataBench::run() {
  DataBenchResult result;
  result.source = data_.train->description();
  result.of_images = config_.model.is_of_images();
  const auto samples = static_cast<double>(rank_samples());
  result.rank_targets = samples * static_cast<double>(data_.train_samples->targets());
  result.rank_bytes = batch_->bytes() * static_cast<double>(config_.microbatches());
  result.rows.push_back(measure("read", [this](std::int64_t step, int microbatch) {
    load_directly(step, microbatch, false);
  }));
  if (!result.of_images) {
    result.rows.push_back(measure("read and sort", [this](std::int64_t step, int microbatch) {
      load_directly(step, microbatch, true);
    }));
  }
  result.rows.push_back(measure("prefetch", [this](std::int64_t step, int microbatch) {
    feed_->load(*ctx_, *loader_, step, microbatch, batch_->views());
  }));
  feed_->release();
  double counted = 0;
  for (std::int64_t step = warmup_ + 1; step <= warmup_ + steps_; ++step) {
    counted += static_cast<double>(loader_->counted_tokens(step));
  }
  result.counted =
      counted / (steps_ * result.rank_targets * static_cast<double>(config_.parallel.data));
  return result;
}

}  // namespace

double DataBenchRow::targets_per_second() const {
  return std::accumulate(rank_targets_per_second.begin(), rank_targets_per_second.end(), 0.0);
}

DataBenchResult run_data_bench(comm::World& world, const train::Config& config, int warmup,
                               int steps) {
  return DataBench(world, config, warmup, steps).run();
}

}  // namespace hyperslab::bench
