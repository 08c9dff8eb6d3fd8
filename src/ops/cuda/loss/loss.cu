// SPDX-License-Identifier: Apache-2.0
#include "cuda/tools/handles.hpp"
#include "loss_streamed.cuh"

namespace hyperslab::ops::cuda {
namespace {

constexpr int kWarpWidth = 2048;  // logits up to which a warp takes a row
constexpr int kRowThreads = 512;  // threads of a block that takes a row

/// A row that does not count: no gradient, and a target outside the vocabulary gives a loss that is
/// not a number, which finalize_step finds.
template <class T>
__device__ void skip_row(const LossCall<T>& call, Dim row, std::int32_t target) {
  if (call.gradient) {
    clear_row(call.logits + row * call.columns.stride, 0, call.columns.stride);
  }
  if (threadIdx.x == 0) write_no_loss(call, row, target);
}

/// dlogits of a row that counts, in the place of its logits x.
template <bool kBlock, class T>
__device__ void write_gradient(const LossCall<T>& call, const RowParts<T>& parts,
                               std::int32_t target, const RowTotal& total, T* x) {
  const float scale = call.state->gradient_scale;
  const float factor = softmax_factor(call, total, scale);
  write_row(x, parts, total.largest, factor);
  clear_row(x, call.columns.count, call.columns.stride);
  row_barrier<kBlock>();
  if (threadIdx.x == 0 && call.columns.is_here(target)) {
    constexpr bool kFast = sizeof(T) == 2;
    const float softmax = exponential<kFast>(total.target - total.largest) * factor;
    x[target - call.columns.first] = from_real<T>(softmax - scale);
  }
}

// One row per block, or per warp if blockDim.x is 32.

/// The whole vocabulary is here. The second pass over a row finds it in L2, if the rows of all
/// blocks fit there.
template <bool kBlock, class T>
__global__ void __launch_bounds__(kRowThreads, 4) loss_kernel(LossCall<T> call) {
  __shared__ SoftmaxScratch scratch;
  overlap();
  wait_for_earlier();
  const Dim row = static_cast<Dim>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= call.rows) return;
  const std::int32_t target = call.targets[row];
  if (!call.columns.is_here(target)) return skip_row(call, row, target);
  T* x = call.logits + row * call.columns.stride;
  const RowParts<T> parts(x, call.columns.count);
  const float at_target = to_real(x[target]);
  const Seen<T> seen = read_row(x, parts);
  const RowTotal total = total_of_row<kBlock>(seen, call.columns, at_target, scratch);
  if (threadIdx.x == 0) write_loss(call, row, target, total);
  if (call.gradient) write_gradient<kBlock>(call, parts, target, total, x);
}

template <class T>
struct StatisticsCall {
  Dim rows;
  Columns columns;
  const T* logits;
  const std::int32_t* targets;
  float* out;
};

template <bool kBlock, class T>
__global__ void __launch_bounds__(kRowThreads) statistics_kernel(StatisticsCall<T> call) {
  __shared__ SoftmaxScratch scratch;
  overlap();
  wait_for_earlier();
  const Dim row = static_cast<Dim>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= call.rows) return;
  const std::int32_t target = call.targets[row];
  const T* x = call.logits + row * call.columns.stride;
  const RowParts<T> parts(x, call.columns.count);
  const Seen<T> seen = read_row(x, parts);
  const float at_target =
      call.columns.is_here(target) ? to_real(x[target - call.columns.first]) : -INFINITY;
  const RowTotal total = total_of_row<kBlock>(seen, call.columns, at_target, scratch);
  if (threadIdx.x != 0) return;
  float* out = call.out + row * kRowStatisticCount;
  out[kRowLargest] = total.largest;
  out[kRowExponentials] = total.exponentials;
  out[kRowTarget] = total.target;
  out[kRowAnswer] = total.answer;
}

/// The vocabulary is shared out over ranks, whose statistics are in `gathered`.
template <bool kBlock, class T>
__global__ void __launch_bounds__(kRowThreads)
    vocabulary_loss_kernel(LossCall<T> call, const float* gathered, Dim ranks) {
  overlap();
  wait_for_earlier();
  const Dim row = static_cast<Dim>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= call.rows) return;
  const std::int32_t target = call.targets[row];
  if (target < 0 || target >= call.columns.vocabulary) return skip_row(call, row, target);
  const RowTotal total = total_of_ranks(gathered + row * kRowStatisticCount, ranks,
                                        call.rows * kRowStatisticCount, call.columns.vocabulary);
  if (threadIdx.x == 0) write_loss(call, row, target, total);
  if (!call.gradient) return;
  T* x = call.logits + row * call.columns.stride;
  const RowParts<T> parts(x, call.columns.count);
  write_gradient<kBlock>(call, parts, target, total, x);
}

/// Adds the rows to sums in a fixed order, and writes their scores unless that is null. One block.
__global__ void __launch_bounds__(1024)
    sum_losses_kernel(const RowLoss* rows, Dim count, float* sums, float* scores) {
  __shared__ double scratch[32];
  double loss = 0;
  double z_loss = 0;
  double tokens = 0;
  double correct = 0;
  overlap();
  wait_for_earlier();
#pragma unroll 4
  for (Dim i = threadIdx.x; i < count; i += blockDim.x) {
    const RowLoss row = rows[i];
    loss += row.loss;
    z_loss += static_cast<double>(row.z_loss);
    tokens += static_cast<double>(row.tokens);
    correct += static_cast<double>(row.correct);
    if (scores == nullptr) continue;
    scores[i * kTargetScoreCount + kScoreLoss] = static_cast<float>(row.loss);
    scores[i * kTargetScoreCount + kScoreIsAnswer] = row.correct;
  }
  loss = block_sum(loss, scratch);
  z_loss = block_sum(z_loss, scratch);
  tokens = block_sum(tokens, scratch);
  correct = block_sum(correct, scratch);
  if (threadIdx.x != 0) return;
  sums[kSumLoss] += static_cast<float>(loss);
  sums[kSumZLoss] += static_cast<float>(z_loss);
  sums[kSumTokens] += static_cast<float>(tokens);
  sums[kSumCorrect] += static_cast<float>(correct);
}

/// Adds the rows of a loss to sums and writes `scores`, if that is there: see LossRows.
void add_rows(Context& ctx, const char* op, const RowLoss* rows, Dim count, View sums,
              View scores) {
  float* of_rows = scores ? scores.data<float>() : nullptr;
  launch_waiting(ctx, op, count, sum_losses_kernel, {1, 1024}, rows, count, sums.data<float>(),
                 of_rows);
}

RowLoss* row_losses(Context& ctx, const char* op, Dim rows) {
  return static_cast<RowLoss*>(ctx.workspace(op, loss_workspace(rows)));
}

/// The kernel for rows of `count` logits, each of which a warp or a block takes.
template <class... Parameters>
void launch_rows(Context& ctx, const char* op, Dim rows, int count, void (*warps)(Parameters...),
                 void (*blocks)(Parameters...),
                 const std::type_identity_t<Parameters>&... arguments) {
  const bool by_warps = count <= kWarpWidth;
  const dim3 threads = by_warps ? dim3(32, 4) : dim3(kRowThreads);
  const auto count_of_blocks = static_cast<unsigned>(ceil_divide(rows, Dim{threads.y}));
  launch_waiting(ctx, op, rows, by_warps ? warps : blocks, {count_of_blocks, threads},
                 arguments...);
}

/// True if rows come and go in a stream (loss_streamed.cuh): gradients are asked for, and two
/// blocks of a multiprocessor have room for a row each. Rows begin at multiples of 16 bytes.
template <class T>
bool is_streamed(const LossCall<T>& call) {
  const Dim row_bytes = call.columns.stride * static_cast<Dim>(sizeof(T));
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(call.logits) % 16 == 0 && row_bytes % 16 == 0;
  return call.gradient && call.columns.count > kWarpWidth && aligned &&
         row_bytes <= StreamCut::kSharedBytes && compute_capability() >= 90;
}

template <class T>
void launch_streamed(Context& ctx, const char* op, const LossCall<T>& call) {
  constexpr auto kKernel = streamed_loss_kernel<T>;
  [[maybe_unused]] static const bool asked = [op] {
    check_cuda(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    StreamCut::kSharedBytes),
               op, "cudaFuncSetAttribute");
    return true;
  }();
  constexpr Dim kSize = sizeof(T);
  const StreamSizes sizes(static_cast<int>(call.columns.stride * kSize),
                          static_cast<int>(ceil_divide(call.columns.count * kSize, 16) * 16));
  const auto blocks =
      static_cast<unsigned>(std::min(call.rows, Dim{StreamCut::kBlocks} * Dim{multiprocessors()}));
  launch_waiting(ctx, op, call.rows, kKernel,
                 {blocks, StreamCut::kThreads, static_cast<std::size_t>(sizes.shared_bytes())},
                 call, sizes);
}

template <class T>
void launch_loss(Context& ctx, const char* op, const LossCall<T>& call) {
  if constexpr (sizeof(T) == 2) {
    if (is_streamed(call)) return launch_streamed(ctx, op, call);
  }
  launch_rows(ctx, op, call.rows, call.columns.count, loss_kernel<false, T>, loss_kernel<true, T>,
              call);
}

template <class T>
void launch_statistics(Context& ctx, const char* op, const StatisticsCall<T>& call) {
  launch_rows(ctx, op, call.rows, call.columns.count, statistics_kernel<false, T>,
              statistics_kernel<true, T>, call);
}

template <class T>
void launch_vocabulary_loss(Context& ctx, const char* op, const LossCall<T>& call, CView gathered) {
  // Without a gradient the logits are not read.
  launch_rows(ctx, op, call.rows, call.gradient ? call.columns.count : 0,
              vocabulary_loss_kernel<false, T>, vocabulary_loss_kernel<true, T>, call,
              gathered.data<float>(), gathered.shape()[0]);
}

template <class T>
LossCall<T> call_of(const LossRows& operands, const StepState* state, WithGradient gradient,
                    RowLoss* rows) {
  return {operands.logits.shape()[0],
          {operands.logits, operands.shard},
          operands.logits.data<T>(),
          operands.targets.data<std::int32_t>(),
          state,
          gradient == WithGradient::yes,
          operands.z_loss,
          rows};
}

}  // namespace

void softmax_cross_entropy(Context& ctx, const LossRows& operands, const StepState* state,
                           WithGradient gradient, View sums) {
  constexpr const char* kName = "softmax_cross_entropy";
  const Dim N = operands.logits.shape()[0];
  if (N == 0) return;
  RowLoss* rows = row_losses(ctx, kName, N);
  with_element(operands.logits.dtype(), kName, [&]<class T>(T) {
    launch_loss(ctx, kName, call_of<T>(operands, state, gradient, rows));
  });
  add_rows(ctx, kName, rows, N, sums, operands.scores);
}

void softmax_statistics(Context& ctx, CView logits, const VocabularyShard& shard, CView targets,
                        View statistics) {
  constexpr const char* kName = "softmax_statistics";
  const Dim N = logits.shape()[0];
  if (N == 0) return;
  with_element(logits.dtype(), kName, [&]<class T>(T) {
    const StatisticsCall<T> call = {N,
                                    {logits, shard},
                                    logits.data<T>(),
                                    targets.data<std::int32_t>(),
                                    statistics.data<float>()};
    launch_statistics(ctx, kName, call);
  });
}

void vocabulary_cross_entropy(Context& ctx, const LossRows& operands, CView gathered,
                              const StepState* state, WithGradient gradient, View sums) {
  constexpr const char* kName = "vocabulary_cross_entropy";
  const Dim N = operands.logits.shape()[0];
  if (N == 0) return;
  RowLoss* rows = row_losses(ctx, kName, N);
  with_element(operands.logits.dtype(), kName, [&]<class T>(T) {
    launch_vocabulary_loss(ctx, kName, call_of<T>(operands, state, gradient, rows), gathered);
  });
  add_rows(ctx, kName, rows, N, sums, operands.scores);
}

}  // namespace hyperslab::ops::cuda
