// SPDX-License-Identifier: Apache-2.0
// What benches say beside times: parts of the model, kernels, dtypes.
#include <algorithm>
#include <map>

#include "bench_rig.hpp"

namespace hyperslab::train {
namespace {

constexpr std::size_t index(Phase phase) { return static_cast<std::size_t>(phase); }

bool has_op(const Ledger& ledger, Component component, std::string_view op) {
  return ledger.rows().contains({std::string(name_of(component)), std::string(op)});
}

double flops_of_op(const Ledger& ledger, Component component, const std::string& op) {
  const auto row = ledger.rows().find({std::string(name_of(component)), op});
  return row == ledger.rows().end() ? 0.0 : row->second.flops;
}

/// What shares kernels, by the operations that the plan has seen.
std::string fused(const Ledger& ledger, Component component) {
  switch (component) {
    case Component::embedding: return "tokens and positions in one pass";
    case Component::attention:
      return has_op(ledger, component, "attention_reference_forward")
                 ? "biases in their products"
                 : "scores, mask, softmax and value product in one kernel; biases in their "
                   "products";
    case Component::ffn:
      return has_op(ledger, component, "linear_activation_forward")
                 ? "biases, activation and its derivative in the products beside them"
                 : "biases in their products; gate and activation in one pass";
    case Component::norms: return "the residual addition before each norm";
    case Component::head: return "softmax, loss and gradient of the logits in one pass";
    case Component::optimizer: return "update, moments and rounded copy in one pass";
    default: return "";
  }
}

/// Scores, mask, softmax, value product; empty where one kernel does them all. Both products have
/// half of the FLOPs, forward (one each) and backward (two each).
std::vector<BenchComponent> parts_of_attention(const std::array<double, kComponents>& seconds,
                                               const Ledger& ledger, BenchMode mode) {
  constexpr Component kAttention = Component::attention;
  if (!has_op(ledger, kAttention, "attention_reference_forward")) return {};
  double flops = flops_of_op(ledger, kAttention, "attention_reference_forward");
  if (mode != BenchMode::forward) {
    flops += flops_of_op(ledger, kAttention, "attention_reference_backward");
  }
  const auto part = [&](const char* name, Component component, double work) {
    BenchComponent row;
    row.name = name;
    row.seconds = seconds[static_cast<std::size_t>(component)];
    row.flops = work;
    return row;
  };
  BenchComponent mask;
  mask.name = "mask";
  mask.fused = "in softmax, which leaves out the keys beyond a row";
  return {part("scores", Component::attention_scores, 0.5 * flops), mask,
          part("softmax", Component::attention_softmax, 0),
          part("values", Component::attention_values, 0.5 * flops)};
}

void add_shares(std::vector<BenchComponent>& rows, double seconds, double flops) {
  for (BenchComponent& row : rows) {
    row.share = row.seconds / seconds;
    row.expected_share = row.flops / flops;
    add_shares(row.parts, seconds, flops);
  }
}

std::string products_of(const Config& config, DType storage) {
  if (config.precision.compute == "tf32") return "tf32 products, f32 sums";
  const std::string name(name_of(storage));
  return storage == DType::bf16 || storage == DType::f16 ? name + " products, f32 sums" : name;
}

}  // namespace

std::vector<BenchComponent> components_of(const std::array<double, kComponents>& seconds,
                                          const Ledger& ledger, BenchMode mode) {
  double all_seconds = 0;
  for (const double part : seconds) all_seconds += part;
  double all_flops = 0;
  std::vector<BenchComponent> rows;
  for (int c = 0; c <= static_cast<int>(Component::communication); ++c) {
    const auto component = static_cast<Component>(c);
    const bool runs = component != Component::optimizer || mode == BenchMode::step;
    BenchComponent& row = rows.emplace_back();
    row.name = name_of(component);
    row.seconds = seconds[static_cast<std::size_t>(c)];
    row.flops = runs ? ledger.component(row.name).flops : 0.0;
    row.fused = fused(ledger, component);
    if (component == Component::attention) {
      row.parts = parts_of_attention(seconds, ledger, mode);
      for (const BenchComponent& part : row.parts) row.seconds += part.seconds;
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

double BenchKernels::share(KernelClass kernel_class) const {
  double sum = 0;
  for (const BenchKernel& row : rows) sum += row.kernel_class == kernel_class ? row.seconds : 0;
  return sum / seconds();
}

double BenchKernels::share(KernelClass kernel_class, Phase phase) const {
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

BenchKernels summarize(const std::vector<KernelTime>& times, int forwards) {
  std::map<std::string, BenchKernel> by_name;
  for (const KernelTime& time : times) {
    BenchKernel& row = by_name[time.name];
    row.name = time.name;
    row.kernel_class = time.kernel_class;
    row.calls += time.calls;
    row.seconds += time.seconds;
    row.phase_calls[index(time.phase)] += time.calls;
    row.phase_seconds[index(time.phase)] += time.seconds;
  }
  BenchKernels kernels;
  kernels.forwards = forwards;
  for (auto& [name, row] : by_name) kernels.rows.push_back(std::move(row));
  std::ranges::stable_sort(kernels.rows, std::greater<>(), &BenchKernel::seconds);
  return kernels;
}

std::vector<BenchDType> dtypes_of(const Trainer& trainer, const Config& config) {
  const nn::ParamTable& params = trainer.stage().params();
  const DType value = params.value().dtype();
  const DType master = params.master().dtype();
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
  add("gradients", params.gradient(params.buckets().front()).dtype(), products);
  add("activation gradients", trainer.stage().gradient({}).dtype(), products);
  add_found("optimizer state", "exp_avg", statistics);
  return rows;
}

}  // namespace hyperslab::train
