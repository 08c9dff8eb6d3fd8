// SPDX-License-Identifier: Apache-2.0
// Facts that benches report beside times: parts of the model, kernels, dtypes.
#include <algorithm>
#include <map>

#include "bench_rig.hpp"
#include "hyperslab/train/components.hpp"

namespace hyperslab::bench {
namespace {

constexpr std::size_t index(Phase phase) { return static_cast<std::size_t>(phase); }

bool has_op(const Ledger& ledger, const Component& component, std::string_view op) {
  return ledger.find(component.name, op) != nullptr;
}

/// True if all calls of a layer's op compute its activation inside the GEMM.
bool fuses_activation(const Ledger& ledger, std::string_view op) {
  const Work* row = ledger.find(nn::kFfnComponent.name, op);
  return row != nullptr && row->paths == std::set<std::string, std::less<>>{"fused"};
}

/// FLOPs of the GEMMs of reference attention.
double reference_flops(const Ledger& ledger, Phase phase) {
  const Work* row = ledger.find(nn::kAttentionComponent.name, phase == Phase::forward
                                                                  ? "attention_reference_forward"
                                                                  : "attention_reference_backward");
  return row == nullptr ? 0.0 : row->flops;
}

/// "a, b and c"
std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 < names.size() ? ", " : " and ") + names[i];
  }
  return text;
}

std::string fused_in_embedding(const BenchRun& run) {
  const model::Position position = run.config.model.position;
  if (position == model::Position::rope || position == model::Position::none) return "";
  const bool two = position == model::Position::learned && run.mode != BenchMode::forward;
  return two ? "tokens and positions in one pass, their gradients in one each"
             : "tokens and positions in one pass";
}

std::string fused_in_attention(const BenchRun& run, const Ledger& ledger) {
  std::string biases = run.config.model.bias ? "biases in the products" : "";
  if (has_op(ledger, nn::kAttentionComponent, "attention_reference_forward")) return biases;
  return "scores, mask, softmax and value product in one kernel" +
         (biases.empty() ? "" : "; " + biases);
}

std::string fused_in_ffn(const BenchRun& run, const Ledger& ledger) {
  const model::ModelSpec& model = run.config.model;
  std::vector<std::string> in_products;
  std::vector<std::string> alone;
  if (model.bias) in_products.emplace_back("biases");
  if (!ops::is_gated(model.activation)) {
    const bool forward = fuses_activation(ledger, "linear_activation_forward");
    const bool backward = fuses_activation(ledger, "linear_activation_backward_input");
    (forward ? in_products : alone).emplace_back("activation");
    if (run.mode != BenchMode::forward) {
      (backward ? in_products : alone)
          .emplace_back(forward == backward ? "its derivative" : "the activation's derivative");
    }
  }
  const std::string text = in_products.empty() ? "" : joined(in_products) + " in the products";
  std::string rest;
  if (ops::is_gated(model.activation)) {
    rest = "gate and activation in one pass";
  } else if (!alone.empty()) {
    rest =
        joined(alone) + (alone.size() == 1 ? " in a pass of its own" : " in passes of their own");
  }
  return text + (text.empty() || rest.empty() ? "" : "; ") + rest;
}

std::string fused_in_head(const BenchRun& run, const Ledger& ledger) {
  const bool forward = run.mode == BenchMode::forward;
  if (has_op(ledger, nn::kHeadComponent, "vocabulary_cross_entropy")) {
    return forward ? "maximum and sum of a row in one pass, loss in another"
                   : "maximum and sum of a row in one pass, loss and gradient of the logits in "
                     "another";
  }
  return forward ? "softmax and loss in one pass"
                 : "softmax, loss and gradient of the logits in one pass";
}

/// The work that shares kernels on this rank.
std::string fused(const BenchRun& run, const Ledger& ledger, const Component& component) {
  if (ledger.component(component.name).calls == 0) return "";
  if (component == nn::kEmbeddingComponent) return fused_in_embedding(run);
  if (component == nn::kAttentionComponent) return fused_in_attention(run, ledger);
  if (component == nn::kFfnComponent) return fused_in_ffn(run, ledger);
  if (component == nn::kNormsComponent) {
    const bool norms = has_op(ledger, component, "add_norm_forward");
    return norms ? "the residual addition before each norm" : "";
  }
  if (component == nn::kHeadComponent) return fused_in_head(run, ledger);
  if (component == optim::kOptimizerComponent && run.mode == BenchMode::step) {
    return run.options.compute == DType::f32 ? "update and moments in one pass"
                                             : "update, moments and rounded copy in one pass";
  }
  return "";
}

// FLOPs of the row softmax for every score that the mask keeps, without the scale: forward maximum,
// difference, exponential, sum and quotient, backward product, sum, difference and product.
constexpr double kSoftmaxFlops = 5;
constexpr double kSoftmaxBackwardFlops = 4;

/// FLOPs of the row softmax as a pass of its own, which is not in the plan. A GEMM over a full
/// square has 2 Dh FLOPs a score; there are two forward and four backward.
double softmax_flops(const Ledger& ledger, const train::Config& config) {
  const auto Dh = static_cast<double>(config.model.head_width());
  const auto T = static_cast<double>(config.model.context);
  const double kept = (T + 1) / (2 * T);
  return kept * (kSoftmaxFlops / (4 * Dh) * reference_flops(ledger, Phase::forward) +
                 kSoftmaxBackwardFlops / (8 * Dh) * reference_flops(ledger, Phase::backward));
}

/// Scores, mask, softmax, value product; empty if one kernel does them all. Both products have
/// half of the plan's FLOPs, forward (one each) and backward (two each).
std::vector<BenchComponent> parts_of_attention(const std::array<double, kMaxComponents>& seconds,
                                               const Ledger& ledger, const train::Config& config) {
  if (!has_op(ledger, nn::kAttentionComponent, "attention_reference_forward")) return {};
  const double flops =
      reference_flops(ledger, Phase::forward) + reference_flops(ledger, Phase::backward);
  const auto part = [&](const char* name, const Component& component, double work) {
    BenchComponent row;
    row.name = name;
    row.seconds = seconds[component.index];
    row.flops = work;
    return row;
  };
  BenchComponent mask = part("mask", ops::kMaskComponent, 0);
  if (mask.seconds == 0) mask.fused = "in softmax, which leaves out the keys beyond a row";
  return {part("scores", ops::kScoresComponent, 0.5 * flops), mask,
          part("softmax", ops::kSoftmaxComponent, softmax_flops(ledger, config)),
          part("values", ops::kValuesComponent, 0.5 * flops)};
}

void add_shares(std::vector<BenchComponent>& rows, double seconds, double flops) {
  for (BenchComponent& row : rows) {
    row.share = row.seconds / seconds;
    row.expected_share = row.flops / flops;
    add_shares(row.parts, seconds, flops);
  }
}

std::string products_of(const train::Config& config, DType storage) {
  if (config.precision.compute == Precision::tf32) return "tf32 products, f32 sums";
  const std::string name(name_of(storage));
  return storage == DType::bf16 || storage == DType::f16 ? name + " products, f32 sums" : name;
}

}  // namespace

std::vector<BenchComponent> components_of(const std::array<double, kMaxComponents>& seconds,
                                          const Ledger& ledger, const BenchRun& run) {
  double all_seconds = 0;
  for (const double part : seconds) all_seconds += part;
  double all_flops = 0;
  std::vector<BenchComponent> rows;
  const auto is_part = [](const Component& each) {
    return each == ops::kScoresComponent || each == ops::kMaskComponent ||
           each == ops::kSoftmaxComponent || each == ops::kValuesComponent;
  };
  for (const Component& component : train::kComponents) {
    if (is_part(component)) continue;  // a part of attention
    const bool runs = component != optim::kOptimizerComponent || run.mode == BenchMode::step;
    BenchComponent& row = rows.emplace_back();
    row.name = component.name;
    row.seconds = seconds[component.index];
    row.flops = runs ? ledger.component(row.name).flops : 0.0;
    row.fused = fused(run, ledger, component);
    if (component == nn::kAttentionComponent) {
      row.parts = parts_of_attention(seconds, ledger, run.config);
      for (const BenchComponent& part : row.parts) row.seconds += part.seconds;
      if (!row.parts.empty()) row.flops += softmax_flops(ledger, run.config);
    }
    all_flops += row.flops;
  }
  add_shares(rows, all_seconds, all_flops);
  return rows;
}

double BenchKernels::seconds() const {
  double sum = 0;
  for (const BenchKernel& row : rows) sum += row.seconds;
  return sum;
}

double BenchKernels::seconds(Phase phase) const {
  double sum = 0;
  for (const BenchKernel& row : rows) sum += row.phase_seconds[index(phase)];
  return sum;
}

double BenchKernels::share(ops::KernelClass kernel_class) const {
  double sum = 0;
  for (const BenchKernel& row : rows) sum += row.kernel_class == kernel_class ? row.seconds : 0;
  return sum / seconds();
}

double BenchKernels::share(ops::KernelClass kernel_class, Phase phase) const {
  double sum = 0;
  for (const BenchKernel& row : rows) {
    sum += row.kernel_class == kernel_class ? row.phase_seconds[index(phase)] : 0;
  }
  return sum / seconds(phase);
}

const BenchKernel* BenchKernels::top(Phase phase) const {
  const auto seconds_of = [&](const BenchKernel& row) { return row.phase_seconds[index(phase)]; };
  const auto found = std::ranges::max_element(rows, {}, seconds_of);
  return found != rows.end() && seconds_of(*found) > 0 ? &*found : nullptr;
}

double BenchKernels::calls_per_forward(const BenchKernel& kernel) const {
  return static_cast<double>(kernel.phase_calls[index(Phase::forward)]) / forwards;
}

CallFigures call_figures_of(std::span<const double> seconds) {
  const StepFigures all = figures_of(seconds);
  const auto [least, most] = std::ranges::minmax(seconds);
  return {least, all.median, most, all.standard_deviation};
}

BenchKernels summarize(const std::vector<KernelTime>& times, int forwards, ClassOf class_of) {
  std::map<std::string, BenchKernel> by_name;
  std::map<std::string, std::vector<double>> calls;
  for (const KernelTime& time : times) {
    BenchKernel& row = by_name[time.name];
    row.name = time.name;
    row.kernel_class = class_of(time.name);
    row.calls += time.calls;
    row.seconds += time.seconds;
    row.phase_calls[index(time.phase)] += time.calls;
    row.phase_seconds[index(time.phase)] += time.seconds;
    std::vector<double>& all = calls[time.name];
    all.insert(all.end(), time.call_seconds.begin(), time.call_seconds.end());
  }
  for (const auto& [name, seconds] : calls) {
    if (!seconds.empty()) by_name[name].call = call_figures_of(seconds);
  }
  BenchKernels kernels;
  kernels.forwards = forwards;
  for (auto& [name, row] : by_name) kernels.rows.push_back(std::move(row));
  std::ranges::stable_sort(kernels.rows, std::greater<>(), &BenchKernel::seconds);
  return kernels;
}

std::vector<BenchDType> dtypes_of(const train::Trainer& trainer, const train::Config& config) {
  const param::ParamGroup& params = trainer.stage().params().trained();
  const DType value = params.value().data.dtype();
  const DType master = params.master().data.dtype();
  const std::string products = products_of(config, value);
  std::vector<BenchDType> rows;
  const auto add = [&](const char* what, DType storage, const std::string& compute) {
    rows.push_back({what, std::string(name_of(storage)), compute});
  };
  const auto add_found = [&](const char* what, std::string_view label, const std::string& compute) {
    for (const Arena* arena : trainer.arenas().all()) {
      for (const Allocation& found : arena->allocations()) {
        if (found.label.ends_with(label)) return add(what, found.dtype, compute);
      }
    }
  };
  const std::string statistics(name_of(master));
  const bool training = trainer.stage().options().training;
  add("parameters", value, products);
  add("masters", master, statistics);
  add("layer outputs", trainer.stage().input({}).dtype(), products);
  add_found("norm statistics", ".rstd", statistics);
  add_found("attention statistics", ".log_sum_exp", statistics);
  add_found("attention probabilities", ".probabilities", products);
  add_found("logits", "logits", products + "; softmax " + statistics);
  add_found("loss", "sums", statistics);
  if (!training) return rows;
  add("gradients", trainer.gradients().data.dtype(), products);
  add("activation gradients", trainer.stage().gradient({}).dtype(), products);
  add_found("optimizer state", "exp_avg", statistics);
  return rows;
}

}  // namespace hyperslab::bench
