// SPDX-License-Identifier: Apache-2.0
#include "cuda/tools/kernel_table.hpp"
#include "product_table.hpp"

namespace hyperslab::ops::cuda {

void experts_forward(Context& ctx, const GatheredRows& x, CView weights, CView first_rows, View y) {
  const ExpertsProblem problem = experts_problem(first_rows, x, y.shape().back(), weights, y);
  choose(kExpertsForward, problem, features_of_kernels()).launch(ctx, x, weights, first_rows, y);
}

void experts_backward_input(Context& ctx, const GatheredRows& dy, CView weights, CView first_rows,
                            View dx) {
  const ExpertsProblem problem = experts_problem(first_rows, dy, dx.shape().back(), weights, dx);
  choose(kExpertsBackwardInput, problem, features_of_kernels())
      .launch(ctx, dy, weights, first_rows, dx);
}

void experts_backward_weight(Context& ctx, const GatheredRows& dy, const GatheredRows& x,
                             CView first_rows, Accumulate accumulate, View dweights) {
  const ExpertsProblem problem = weights_problem(first_rows, dy, x, dweights);
  choose(kExpertsBackwardWeight, problem, features_of_kernels())
      .launch(ctx, dy, x, first_rows, accumulate, dweights);
}

}  // namespace hyperslab::ops::cuda
