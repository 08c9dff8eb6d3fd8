// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/core/transfer.hpp"
#include "hyperslab/io/dataset.hpp"
#include "hyperslab/ops/matmul.hpp"
#include "hyperslab/plan/plan.hpp"
#include "hyperslab/quantize/quantize.hpp"
#include "hyperslab/train/setup.hpp"
#include "hyperslab/train/trainer.hpp"

namespace hyperslab::quantize {
namespace {

/// X^T X of every operand of a product, on the device.
class InputProducts final : public ProductObserver {
 public:
  explicit InputProducts(const param::ParamStore& params) : params_(params) {
    for (const param::Param& param : params.params()) {
      if (param.role == param::Role::matrix) first_.emplace(param.value.raw(), &param);
    }
  }
  void product(Context& ctx, CView x, CView weight) override {
    if (!first_.contains(weight.raw())) return;  // the head
    Tensor& sum = sums_[weight.raw()];
    const Dim K = x.shape().back();
    const bool starts = !sum.view();
    if (starts) sum = Tensor(x.device(), DType::f32, {K, K});
    rows_[weight.raw()] = weight.shape()[0];
    ops::matmul(ctx, x.as_matrix(), ops::Trans::yes, x.as_matrix(), ops::Trans::no,
                starts ? ops::Accumulate::no : ops::Accumulate::yes, sum.view());
  }
  [[nodiscard]] const std::map<const void*, Tensor>& sums() const { return sums_; }
  /// The tensors that lie one after the other from `weight` on.
  [[nodiscard]] std::vector<std::string> names(const void* weight) const {
    std::vector<std::string> names;
    Dim rows = rows_.at(weight);
    bool inside = false;
    for (const param::Param& param : params_.params()) {
      inside = inside || &param == first_.at(weight);
      if (!inside || rows == 0) continue;
      names.push_back("model/" + param.name);
      rows -= param.part.count[0];
    }
    return names;
  }

 private:
  const param::ParamStore& params_;
  std::map<const void*, const param::Param*> first_;
  std::map<const void*, Tensor> sums_;
  std::map<const void*, Dim> rows_;
};

}  // namespace

Calibration::Calibration(comm::World& world, const train::Config& config,
                         const io::CheckpointReader& reader, std::int64_t samples,
                         const plan::IsLegal& is_legal) {
  const io::DataTokens data =
      io::open_data(config.data, config.model.vocabulary, config.run.seed, io::DataPart::both);
  const io::TokenSamples all(*data.train, config.data.sampling, config.model.context,
                             config.run.seed, false, config.data.target_rules());
  if (all.size() < samples) {
    throw Error(ExitCode::data, data.train->description() + ": it holds " +
                                    std::to_string(all.size()) + " samples, fewer than the " +
                                    std::to_string(samples) + " of --calibrate; give fewer");
  }
  train::TrainerOptions options = train::trainer_options(config, 0, false);
  options.graphs = false;  // every product is seen
  const auto mesh = train::make_mesh(world, config, options.device);
  const plan::Plan plan = plan::make_plan(config, options, 0);
  plan::require_host_memory(world, config, options, plan.memory, is_legal);
  const auto trainer = plan::make_trainer(config, *mesh, options, plan.memory, is_legal);
  trainer->state().initialize();
  trainer->state().load(reader);
  InputProducts products(trainer->stage().params());
  Context& ctx = trainer->context();
  ctx.set_product_observer(&products);
  (void)trainer->evaluate(all, samples, world);
  ctx.set_product_observer(nullptr);
  tokens_ = samples * config.model.context;
  for (const auto& [weight, sum] : products.sums()) {
    Tensor host(Device::cpu, DType::f32, sum.view().shape());
    copy(ctx, sum.view(), host.view());
    synchronize(ctx);
    for (const std::string& name : products.names(weight)) of_tensor_[name] = inputs_.size();
    const auto values = host.view().span<float>();
    inputs_.push_back({{values.begin(), values.end()}, sum.view().shape()[0]});
  }
  for (const param::Param& param : trainer->stage().params().params()) {
    if (param.role == param::Role::matrix && !has("model/" + param.name)) ++unseen_;
  }
}

const ErrorModel& Calibration::errors_of(const std::string& tensor) {
  const std::size_t index = of_tensor_.at(tensor);
  if (index != factored_) {
    errors_ = std::make_unique<ErrorModel>(inputs_[index].products, inputs_[index].columns);
    factored_ = index;
  }
  return *errors_;
}

}  // namespace hyperslab::quantize
