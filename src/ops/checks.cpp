// SPDX-License-Identifier: Apache-2.0
#include "checks.hpp"

#include <string>

#include "hyperslab/core/error.hpp"
#include "hyperslab/core/operation_list.hpp"
#include "hyperslab/ops/step_state.hpp"

namespace hyperslab::ops {

Dim leading(const Shape& shape) {
  Dim product = 1;
  for (int i = 0; i + 1 < shape.rank(); ++i) product *= shape[i];
  return product;
}

Dim last(CView view, std::string_view what, std::source_location where) {
  if (view.shape().rank() == 0) throw_shape_error(what, view.shape(), "(..., size)", where);
  return view.shape().back();
}

DType statistic_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

void require_here(const Context& ctx, CView view, std::string_view what,
                  std::source_location where) {
  if (!view) throw Error(ExitCode::internal, std::string(what) + ": the view is absent", where);
  if (view.device() != ctx.device()) {
    throw Error(ExitCode::internal,
                std::string(what) + ": is on " + std::string(name_of(view.device())) +
                    ", the context on " + std::string(name_of(ctx.device())),
                where);
  }
}

void require_dtype(const Context& ctx, CView view, DType dtype, std::string_view what,
                   std::source_location where) {
  require_here(ctx, view, what, where);
  if (view.dtype() != dtype) {
    throw Error(ExitCode::internal,
                std::string(what) + ": holds " + std::string(name_of(view.dtype())) +
                    ", expected " + std::string(name_of(dtype)),
                where);
  }
}

void require_operand(const Context& ctx, CView view, const Shape& expected, DType dtype,
                     std::string_view what, std::source_location where) {
  require_dtype(ctx, view, dtype, what, where);
  require_shape(view, expected, what, where);
}

void require_gradient(const Context& ctx, CView view, const Shape& expected, DType dtype,
                      std::string_view what, std::source_location where) {
  require_here(ctx, view, what, where);
  const bool narrow = view.dtype() == DType::bf16 && dtype == DType::bf16;
  require_operand(ctx, view, expected, narrow ? dtype : statistic_dtype(dtype), what, where);
}

void require_rows(const Context& ctx, CView view, Dim rows, Dim last, DType dtype,
                  std::string_view what, std::source_location where) {
  require_dtype(ctx, view, dtype, what, where);
  const Shape& shape = view.shape();
  if (shape.rank() == 0 || shape.back() != last || leading(shape) != rows) {
    throw_shape_error(what, shape, std::to_string(rows) + " rows of " + std::to_string(last),
                      where);
  }
}

void require_count(const Context& ctx, CView view, Dim count, DType dtype, std::string_view what,
                   std::source_location where) {
  require_dtype(ctx, view, dtype, what, where);
  if (view.numel() != count) {
    throw_shape_error(what, view.shape(), std::to_string(count) + " elements", where);
  }
}

void require_position(const Context& ctx, const TokenPosition& position, Dim samples,
                      std::string_view what, std::source_location where) {
  if (position.value < 0) {
    throw Error(ExitCode::internal,
                std::string(what) + ": expected a position from 0 on, found " +
                    std::to_string(position.value),
                where);
  }
  if (!position.live) return;
  const Dim count = position.live.numel() == samples ? samples : 1;
  require_operand(ctx, position.live, {count}, DType::i32, what, where);
}

void require_sums(const Context& ctx, CView sums, std::string_view what,
                  std::source_location where) {
  require_here(ctx, sums, what, where);
  require_operand(ctx, sums, {kSumCount}, statistic_dtype(sums.dtype()), what, where);
}

void require_shard(const VocabularyShard& shard, Dim size, std::string_view what,
                   std::source_location where) {
  const auto [first, count, vocabulary] = shard;
  if (first >= 0 && count >= 0 && count <= size && vocabulary > 0 &&
      (count == 0 || first + count <= vocabulary)) {
    return;
  }
  throw Error(ExitCode::internal,
              std::string(what) + " shard: tokens " + std::to_string(first) + "+" +
                  std::to_string(count) + " of " + std::to_string(vocabulary) +
                  ", expected inside the vocabulary and at most " + std::to_string(size),
              where);
}

void begin_op(Context& ctx, std::string_view op) {
  if (OpObserver* observer = ctx.recorder().op_observer()) observer->begin(op);
}

void add_work(Context& ctx, std::string_view op, const Accounted& work,
              std::initializer_list<CView> operands) {
  ctx.add_work(op, work.flops, work.bytes, work.path);
  OperationList* list = ctx.stream().operations();
  if (list == nullptr) return;
  Operation& added = list->emplace_back();
  added.name = op;
  added.component = ctx.recorder().component().name;
  added.phase = ctx.recorder().phase();
  added.microbatch = ctx.recorder().microbatch();
  added.size.flops = work.flops;
  added.size.bytes = work.bytes;
  if (operands.size() > 0) added.size.dtype = operands.begin()->dtype();
  for (const CView& operand : operands) {
    const Shape& shape = operand.shape();
    const bool has_rows = operand && shape.rank() > 0;
    added.size.operands.push_back(has_rows ? OpSize::Extent{static_cast<double>(leading(shape)),
                                                            static_cast<double>(shape.back())}
                                           : OpSize::Extent{});
  }
}

void plan_partials(Context& ctx, std::string_view op, std::size_t cuda_bytes) {
  if (ctx.device() != Device::meta || ctx.planned() != Device::cuda || cuda_bytes == 0) return;
  ctx.partials(op, cuda_bytes);
}

bool on_meta(Context& ctx, std::string_view op, double flops, std::initializer_list<CView> operands,
             std::size_t workspace_bytes, std::string_view path) {
  if (ctx.device() != Device::meta) {
    ctx.progress();
    begin_op(ctx, op);
    return false;
  }
  double bytes = 0;
  for (const CView& operand : operands) bytes += static_cast<double>(operand.bytes());
  add_work(ctx, op, {flops, bytes, path}, operands);
  if (workspace_bytes > 0) ctx.workspace(op, workspace_bytes);
  if (!ctx.deferred_reductions()) ctx.free_partials();
  return true;
}

}  // namespace hyperslab::ops
