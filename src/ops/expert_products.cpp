// SPDX-License-Identifier: Apache-2.0
// Products of experts' rows.
#include <algorithm>

#include "backend.hpp"
#include "checks.hpp"
#include "cuda/experts/product_table.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "hyperslab/ops/experts.hpp"
#include "kernel_choice.hpp"
#include "quantized_checks.hpp"

namespace hyperslab::ops {
namespace {

constexpr Dim kRoundedRows = 512;  // at once, as the workspace is planned before rows are counted

/// Sizes of a product of each expert's rows.
struct Products {
  Dim experts;
  Dim rows;
  Dim in;
  Dim out;
  [[nodiscard]] double flops() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
  }
};

void require_gathered(Context& ctx, const GatheredRows& rows, const char* op) {
  if (rows.in_order()) return;
  require_here(ctx, rows.values, op);
  require_dtype(ctx, rows.pairs, DType::i32, op);
  require_rows(ctx, rows.room, rows.pairs.numel(), last(rows.values, op), rows.values.dtype(), op);
}

Products require_products(Context& ctx, CView in, CView out, const Shape& weights, CView first_rows,
                          const char* op) {
  require_dtype(ctx, first_rows, DType::i32, op);
  const Dim experts = first_rows.numel() - 1;
  require(experts > 0 && weights.rank() == 2 && weights[0] % experts == 0,
          "experts: other weights than first_rows has experts");
  const Products sizes = {experts, leading(in.shape()), weights[1], weights[0] / experts};
  require_rows(ctx, in, sizes.rows, sizes.in, in.dtype(), op);
  require_rows(ctx, out, sizes.rows, sizes.out, in.dtype(), op);
  return sizes;
}

/// True if a GPU did the op: its kernels read there which rows an expert has.
template <auto cuda_op, class... Operands>
bool done_on_gpu(Context& ctx, const Operands&... operands) {
  if constexpr (kHasCuda) {
    if (ctx.device() != Device::cuda) return false;
    cuda_op(ctx, operands...);
    if (OpObserver* observer = ctx.recorder().op_observer()) observer->end();
    return true;
  } else {
    return false;
  }
}

/// On `meta`: notes the kernel that a GPU takes for a product.
template <class Table>
void note_product(Context& ctx, std::string_view op, const Table& table,
                  const cuda::ExpertsProblem& problem) {
  note_kernel(ctx, op, table, problem, [&] {
    return std::to_string(problem.experts) + " experts, " + std::to_string(problem.rows) + " x " +
           std::to_string(problem.depth) + " to " + std::to_string(problem.columns) + " columns, " +
           std::string(name_of(problem.dtype));
  });
}

/// True if a kernel of the table reads the problem's rows where they lie. problem: a function.
template <class Table, class Problem>
bool kernel_gathers(const Context& ctx, const Table& table, const Problem& problem) {
  cuda::Features features;
  if (ctx.device() == Device::meta) {
    if (ctx.planned() != Device::cuda) return false;
    features = cuda::kHopper;
  } else if constexpr (kHasCuda) {
    if (ctx.device() != Device::cuda) return false;
    features = cuda::features_of_kernels();
  } else {
    return false;
  }
  const cuda::ExpertsProblem of = problem();
  return std::ranges::any_of(table, [&](const auto& kernel) {
    return cuda::reason_against(kernel, of, features).empty();
  });
}

/// The rows as they are if a kernel of the table reads them there, else in order.
template <class Table, class Problem>
GatheredRows rows_for(Context& ctx, const Table& table, const GatheredRows& rows,
                      const Problem& problem) {
  if (rows.in_order() || kernel_gathers(ctx, table, problem)) return rows;
  return rows_in_order(ctx, rows);
}

/// Calls work(expert, first row, rows) for every expert.
template <class Work>
void for_experts(const Context& ctx, const Products& sizes, CView first_rows, Work&& work) {
  require(ctx.device() == Device::cpu, "rows of experts are counted on the host");
  const auto* first = first_rows.data<std::int32_t>();
  require(first[0] == 0 && first[sizes.experts] <= sizes.rows, "experts have more rows than fit");
  for (Dim expert = 0; expert < sizes.experts; ++expert) {
    require(first[expert] <= first[expert + 1], "rows of experts are not ascending");
    work(expert, Dim{first[expert]}, Dim{first[expert + 1] - first[expert]});
  }
}

/// The matrix of an expert.
template <class AnyView>
AnyView matrix_of(const Products& sizes, AnyView weights, Dim expert) {
  return weights.slice(expert * sizes.out, sizes.out);
}

}  // namespace

CView rows_in_order(Context& ctx, const GatheredRows& rows) {
  require_gathered(ctx, rows, "rows_in_order");
  if (rows.in_order()) return rows.values;
  gather_rows(ctx, rows.values, rows.pairs, rows.divisor, rows.room, rows.used);
  return rows.room;
}

void experts_forward(Context& ctx, const GatheredRows& given, CView weights, CView first_rows,
                     View y) {
  const char* op = "experts_forward";
  require_gathered(ctx, given, op);
  const Products sizes = require_products(ctx, given.matrix(), y, weights.shape(), first_rows, op);
  const auto problem_of = [&](const GatheredRows& rows) {
    return cuda::experts_problem(first_rows, rows, sizes.out, weights, y);
  };
  const GatheredRows x =
      rows_for(ctx, cuda::kExpertsForward, given, [&] { return problem_of(given); });
  note_product(ctx, op, cuda::kExpertsForward, problem_of(x));
  if (on_meta(ctx, op, sizes.flops(), {x.matrix(), weights, y})) return;
  if (done_on_gpu<cuda::experts_forward>(ctx, x, weights, first_rows, y)) return;
  for_experts(ctx, sizes, first_rows, [&](Dim expert, Dim first, Dim rows) {
    if (rows == 0) return;
    linear_forward(ctx, x.values.slice(first, rows), matrix_of(sizes, weights, expert), {},
                   y.slice(first, rows));
  });
}

void quantized_experts_forward(Context& ctx, CView x, const CQuantizedMatrix& weights,
                               CView first_rows, ActivationFormat activations, View y) {
  const char* op = "quantized_experts_forward";
  require_quantized(ctx, weights, op);
  const Products sizes = require_products(ctx, x, y, weights.shape, first_rows, op);
  const QuantizedProduct most = {kRoundedRows,   sizes.out,   sizes.in,
                                 weights.format, activations, x.dtype()};
  if (on_meta(ctx, op, sizes.flops(), {x, weights.codes, weights.scales, weights.block_scales, y},
              cpu::quantized_linear_forward_workspace(ctx.threads(), most))) {
    return;
  }
  for_experts(ctx, sizes, first_rows, [&](Dim expert, Dim first, Dim rows) {
    const CQuantizedMatrix weight = rows_of(weights, expert * sizes.out, sizes.out);
    const Dim step = activations == ActivationFormat::none ? std::max<Dim>(rows, 1) : kRoundedRows;
    for (Dim row = first; row < first + rows; row += step) {
      const Dim count = std::min(step, first + rows - row);
      quantized_linear_forward(ctx, x.slice(row, count), weight, {}, activations,
                               y.slice(row, count));
    }
  });
}

void experts_backward_input(Context& ctx, const GatheredRows& given, CView weights,
                            CView first_rows, View dx) {
  const char* op = "experts_backward_input";
  require_gathered(ctx, given, op);
  const Products sizes = require_products(ctx, dx, given.matrix(), weights.shape(), first_rows, op);
  const auto problem_of = [&](const GatheredRows& rows) {
    return cuda::experts_problem(first_rows, rows, sizes.in, weights, dx);
  };
  const GatheredRows dy =
      rows_for(ctx, cuda::kExpertsBackwardInput, given, [&] { return problem_of(given); });
  note_product(ctx, op, cuda::kExpertsBackwardInput, problem_of(dy));
  if (on_meta(ctx, op, sizes.flops(), {dy.matrix(), weights, dx})) return;
  if (done_on_gpu<cuda::experts_backward_input>(ctx, dy, weights, first_rows, dx)) return;
  for_experts(ctx, sizes, first_rows, [&](Dim expert, Dim first, Dim rows) {
    if (rows == 0) return;
    linear_backward_input(ctx, dy.values.slice(first, rows), matrix_of(sizes, weights, expert),
                          Accumulate::no, dx.slice(first, rows));
  });
}

void experts_backward_weight(Context& ctx, const GatheredRows& given_dy,
                             const GatheredRows& given_x, CView first_rows, Accumulate accumulate,
                             View dweights) {
  const char* op = "experts_backward_weight";
  require_gathered(ctx, given_dy, op);
  require_gathered(ctx, given_x, op);
  const CView x_rows = given_x.matrix();
  const Products sizes =
      require_products(ctx, x_rows, given_dy.matrix(), dweights.shape(), first_rows, op);
  require_gradient(ctx, dweights, dweights.shape(), x_rows.dtype(), op);
  const auto given = [&] { return cuda::weights_problem(first_rows, given_dy, given_x, dweights); };
  const GatheredRows dy = rows_for(ctx, cuda::kExpertsBackwardWeight, given_dy, given);
  const GatheredRows x = rows_for(ctx, cuda::kExpertsBackwardWeight, given_x, given);
  note_product(ctx, op, cuda::kExpertsBackwardWeight,
               cuda::weights_problem(first_rows, dy, x, dweights));
  if (on_meta(ctx, op, sizes.flops(), {dy.matrix(), x.matrix(), dweights})) return;
  if (done_on_gpu<cuda::experts_backward_weight>(ctx, dy, x, first_rows, accumulate, dweights)) {
    return;
  }
  for_experts(ctx, sizes, first_rows, [&](Dim expert, Dim first, Dim rows) {
    const View dw = matrix_of(sizes, dweights, expert);
    if (rows > 0) {
      linear_backward_weight(ctx, dy.values.slice(first, rows), x.values.slice(first, rows),
                             accumulate, dw, {});
    } else if (accumulate == Accumulate::no) {
      fill(ctx, 0, dw);
    }
  });
}

}  // namespace hyperslab::ops
