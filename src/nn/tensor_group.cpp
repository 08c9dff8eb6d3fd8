// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/nn/tensor_group.hpp"

#include <algorithm>

#include "hyperslab/core/error.hpp"

namespace hyperslab::nn {

comm::Ticket TensorGroup::start_gather(Context& ctx, CView x, View full) const {
  if (!sequence_) return 0;
  return group_->all_gather(ctx, x, full);
}

CView TensorGroup::gather(Context& ctx, CView x, View full) const {
  if (!sequence_) return x;
  wait(ctx, start_gather(ctx, x, full));
  return full;
}

comm::Ticket TensorGroup::start_sum(Context& ctx, View partial, View out) const {
  if (size_ == 1) return 0;
  if (sequence_) return group_->reduce_scatter(ctx, partial, out);
  return group_->all_reduce(ctx, out, comm::ReduceOp::sum);
}

void TensorGroup::sum(Context& ctx, View partial, View out) const {
  wait(ctx, start_sum(ctx, partial, out));
}

int TensorGroup::pieces(const Context& ctx, Dim rows, Dim inner) const {
  if (size_ == 1 || sequence_ || ctx.planned() != Device::cuda) return 1;
  // An element of 16 bits takes 2 inner FLOP to compute and 4 (t - 1) / t bytes over links to add
  // up: one takes as long as the other for the inner length even_inner (t - 1) / t.
  const double even_inner = 2 * ctx.machine().gemm_flops / ctx.machine().link_bytes;
  const double hidden = static_cast<double>(inner * size_) / (even_inner * (size_ - 1));
  const Dim worthwhile = hidden >= 2 ? kMostPieces : hidden >= 1 ? 2 : 1;
  return static_cast<int>(std::clamp<Dim>(rows / kLeastRows, 1, worthwhile));
}

void TensorGroup::all_gather(Context& ctx, CView mine, View all) const {
  const Scope phase(ctx.recorder(), Phase::tensor_comm);
  group_->wait(ctx, group_->all_gather(ctx, mine, all));
}

void TensorGroup::wait(Context& ctx, comm::Ticket ticket) const {
  if (ticket == 0) return;
  const Scope phase(ctx.recorder(), Phase::tensor_comm);
  group_->wait(ctx, ticket);
}

}  // namespace hyperslab::nn
