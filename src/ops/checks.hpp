// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <source_location>
#include <string_view>

#include "hyperslab/core/context.hpp"
#include "hyperslab/ops/token_position.hpp"
#include "hyperslab/ops/vocabulary.hpp"

namespace hyperslab::ops {

/// Product of all sizes but the last: the rows, also if the last size is 0.
[[nodiscard]] Dim leading(const Shape& shape);
/// The last size; throws an internal Error naming `what` if there is none.
[[nodiscard]] Dim last(CView view, std::string_view what,
                       std::source_location where = std::source_location::current());
/// f64 for f64, else f32: the dtype of statistics, and of parameter gradients unless they are in
/// bf16.
[[nodiscard]] DType statistic_dtype(DType dtype);

/// Throws an internal Error naming `what` if the view is absent or on another device.
void require_here(const Context& ctx, CView view, std::string_view what,
                  std::source_location where = std::source_location::current());
/// require_here, and the view holds `dtype`.
void require_dtype(const Context& ctx, CView view, DType dtype, std::string_view what,
                   std::source_location where = std::source_location::current());
/// require_dtype, and the view has exactly this shape.
void require_operand(const Context& ctx, CView view, const Shape& expected, DType dtype,
                     std::string_view what,
                     std::source_location where = std::source_location::current());
/// The view has exactly this shape and a dtype that gradients of parameters may have, where
/// activations are in `dtype`: statistic_dtype(dtype), or bf16 as the activations.
void require_gradient(const Context& ctx, CView view, const Shape& expected, DType dtype,
                      std::string_view what,
                      std::source_location where = std::source_location::current());
/// require_dtype, and the view is (..., last) with `rows` rows, however these are divided.
void require_rows(const Context& ctx, CView view, Dim rows, Dim last, DType dtype,
                  std::string_view what,
                  std::source_location where = std::source_location::current());
/// require_dtype, and the view has `count` elements in any shape.
void require_count(const Context& ctx, CView view, Dim count, DType dtype, std::string_view what,
                   std::source_location where = std::source_location::current());
/// Not negative; if it lives on the device, one i32, or one for each sample.
void require_position(const Context& ctx, const TokenPosition& position, Dim samples,
                      std::string_view what,
                      std::source_location where = std::source_location::current());
/// The vector that SumIndex indexes, f32 or f64.
void require_sums(const Context& ctx, CView sums, std::string_view what,
                  std::source_location where = std::source_location::current());

/// The shard lies in its vocabulary and the table or logits have `size` rows or columns for it.
void require_shard(const VocabularyShard& shard, Dim size, std::string_view what,
                   std::source_location where = std::source_location::current());

/// Scratch memory of an op on the device that the numbers of a plan are for.
[[nodiscard]] inline std::size_t workspace_for(const Context& ctx, std::size_t cpu_bytes,
                                               std::size_t cuda_bytes) {
  return ctx.planned() == Device::cuda ? cuda_bytes : cpu_bytes;
}

/// On `meta`, before on_meta(), which frees it unless sums are late: plans for the memory of
/// partial sums on a GPU.
void plan_partials(Context& ctx, std::string_view op, std::size_t cuda_bytes);

/// Reports to the recorder's observer of ops, if there is one, that an op begins now; dispatch()
/// reports the end to it.
void begin_op(Context& ctx, std::string_view op);
/// An op that a GPU does at once with others, from its beginning to its end, as dispatch() has it.
class OpScope {
 public:
  OpScope(Context& ctx, std::string_view op) : ctx_(ctx) {
    ctx.progress();
    begin_op(ctx, op);
  }
  ~OpScope() {
    if (OpObserver* observer = ctx_.recorder().op_observer()) observer->end();
  }
  OpScope(const OpScope&) = delete;
  OpScope& operator=(const OpScope&) = delete;
  OpScope(OpScope&&) = delete;
  OpScope& operator=(OpScope&&) = delete;

 private:
  Context& ctx_;
};

/// Work of an op, if every operand is touched once.
struct Accounted {
  double flops = 0;
  double bytes = 0;
  std::string_view path{};  ///< which of its ways the op takes, if it has several
};

/// On `meta`: adds the work to the context's ledger, and to the list of its stream's operations.
void add_work(Context& ctx, std::string_view op, const Accounted& work,
              std::initializer_list<CView> operands);

/// On `meta`: accounts for the work, if every operand is touched once, for the workspace and, for
/// ops with several ways to do it, for the path; returns true, as the op is done. On other devices
/// the context's background work progresses, and the op begins (begin_op).
[[nodiscard]] bool on_meta(Context& ctx, std::string_view op, double flops,
                           std::initializer_list<CView> operands, std::size_t workspace_bytes = 0,
                           std::string_view path = {});

}  // namespace hyperslab::ops
