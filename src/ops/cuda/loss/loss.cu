// SPDX-License-Identifier: Apache-2.0
#include "cuda/tools/handles.hpp"
#include "loss_streamed.cuh"

namespace hyperslab::ops::cuda {
namespace {

constexpr int kWarpWidth = 2048;  // logits up to which a warp takes a row
constexpr int kRowThreads = 512;  // threads of a block that takes a row

/// A row that does not count: no gradient, and a target outside the vocabulary gives a loss that is
/// not a number, which finalize_step finds.
template <bool kTerms, class T>
__device__ void skip_row(const LossCall<T>& call, Dim row, std::int32_t target) {
  if (call.gradient) {
    clear_row(call.logits + row * call.columns.stride, 0, call.columns.stride);
  }
  if (threadIdx.x == 0) write_no_loss<kTerms>(call, row, target);
}

/// A row's target among its teacher's tokens.
template <class T>
__device__ bool teaches_target(const LossCall<T>& call, Dim row, std::int32_t target) {
  for (int j = 0; j < call.terms.loss.teachers; ++j) {
    if (call.terms.id(row, j) == target) return true;
  }
  return false;
}

/// dlogits of a row that counts, in the place of its logits x. Thread j writes the teacher's token
/// j.
template <bool kTerms, bool kBlock, class T>
__device__ void write_gradient(const LossCall<T>& call, const RowParts<T>& parts, Dim row,
                               std::int32_t target, const RowTotal& total, float of_teacher, T* x) {
  constexpr bool kFast = sizeof(T) == 2;
  const RowFactors factors =
      factors_of<kTerms>(call, row, total, of_teacher, call.state->gradient_scale);
  const Dim first = call.columns.first;
  std::int32_t taught = kIgnoredTarget;
  float at_taught = 0;
  bool is_taught = false;
  if constexpr (kTerms) {
    const bool has_teacher = call.terms.loss.has_teacher();
    const auto j = static_cast<int>(threadIdx.x);
    if (has_teacher && j < call.terms.loss.teachers) taught = call.terms.id(row, j);
    if (!call.columns.is_here(taught)) taught = kIgnoredTarget;
    if (taught != kIgnoredTarget) at_taught = to_real(x[taught - first]);
    is_taught = has_teacher && teaches_target(call, row, target);
    row_barrier<kBlock>();  // before logits become gradients
  }
  write_row(x, parts, total.largest, factors.softmax);
  clear_row(x, call.columns.count, call.columns.stride);
  row_barrier<kBlock>();
  if (threadIdx.x == 0 && call.columns.is_here(target) && !is_taught) {
    const float softmax = exponential<kFast>(total.target - total.largest) * factors.softmax;
    x[target - first] = from_real<T>(softmax - factors.target);
  }
  if constexpr (kTerms) {
    if (taught == kIgnoredTarget) return;
    const float q =
        call.terms.teacher(row).probability(call.terms.log_probability(row, threadIdx.x));
    const float softmax = exponential<kFast>(at_taught - total.largest) * factors.softmax;
    const float of_target = taught == target ? factors.target : 0.0F;
    x[taught - first] = from_real<T>(softmax - factors.teacher * q - of_target);
  }
}

// One row per block, or per warp if blockDim.x is 32.

/// The whole vocabulary is here. The second pass over a row finds it in L2, if the rows of all
/// blocks fit there.
template <bool kTerms, bool kBlock, class T>
__global__ void __launch_bounds__(kRowThreads, 4) loss_kernel(LossCall<T> call) {
  __shared__ SoftmaxScratch scratch;
  overlap();
  wait_for_earlier();
  const Dim row = static_cast<Dim>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= call.rows) return;
  const std::int32_t target = call.targets[row];
  if (!call.columns.is_here(target)) return skip_row<kTerms>(call, row, target);
  T* x = call.logits + row * call.columns.stride;
  const RowParts<T> parts(x, call.columns.count);
  const float at_target = to_real(x[target]);
  const float of_teacher = kTerms ? teacher_logit(call.terms, call.columns, row, x) : 0.0F;
  const Seen<T> seen = read_row(x, parts);
  const RowTotal total = total_of_row<kBlock>(seen, call.columns, at_target, scratch);
  if (threadIdx.x == 0) write_loss<kTerms>(call, row, target, total, of_teacher);
  if (call.gradient) {
    write_gradient<kTerms, kBlock>(call, parts, row, target, total, of_teacher, x);
  }
}

template <class T>
struct StatisticsCall {
  Dim rows;
  Columns columns;
  const T* logits;
  const std::int32_t* targets;
  float* out;
  Dim width;  ///< row_statistics()
  TermsCall terms;
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
  float* out = call.out + row * call.width;
  if (call.width > kRowTeacher) {
    out[kRowTeacher] =
        target == kIgnoredTarget ? 0.0F : teacher_logit(call.terms, call.columns, row, x);
  }
  out[kRowLargest] = total.largest;
  out[kRowExponentials] = total.exponentials;
  out[kRowTarget] = total.target;
  out[kRowAnswer] = total.answer;
}

/// The vocabulary is shared out over ranks, whose statistics are in `gathered`.
template <bool kTerms, bool kBlock, class T>
__global__ void __launch_bounds__(kRowThreads)
    vocabulary_loss_kernel(LossCall<T> call, const float* gathered, Dim ranks, Dim width) {
  overlap();
  wait_for_earlier();
  const Dim row = static_cast<Dim>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= call.rows) return;
  const std::int32_t target = call.targets[row];
  if (target < 0 || target >= call.columns.vocabulary) return skip_row<kTerms>(call, row, target);
  const float* statistics = gathered + row * width;
  const Dim apart = call.rows * width;
  const RowTotal total = total_of_ranks(statistics, ranks, apart, call.columns.vocabulary);
  float of_teacher = 0;
  if (width > kRowTeacher) {
    for (Dim rank = 0; rank < ranks; ++rank) of_teacher += statistics[rank * apart + kRowTeacher];
  }
  if (threadIdx.x == 0) write_loss<kTerms>(call, row, target, total, of_teacher);
  if (!call.gradient) return;
  T* x = call.logits + row * call.columns.stride;
  const RowParts<T> parts(x, call.columns.count);
  write_gradient<kTerms, kBlock>(call, parts, row, target, total, of_teacher, x);
}

/// Adds the rows to sums in a fixed order, and writes their scores unless that is null. One block.
__global__ void __launch_bounds__(1024)
    sum_losses_kernel(const RowLoss* rows, const RowTermSums* terms, Dim count, float* sums,
                      float* scores) {
  __shared__ double scratch[32];
  double loss = 0;
  double z_loss = 0;
  double tokens = 0;
  double correct = 0;
  double weights = 0;
  double kl = 0;
  double clipped = 0;
  overlap();
  wait_for_earlier();
#pragma unroll 4
  for (Dim i = threadIdx.x; i < count; i += blockDim.x) {
    const RowLoss row = rows[i];
    loss += row.loss;
    z_loss += static_cast<double>(row.z_loss);
    tokens += static_cast<double>(row.tokens);
    correct += static_cast<double>(row.correct);
    auto target_loss = static_cast<float>(row.loss);
    if (terms != nullptr) {
      const RowTermSums besides = terms[i];
      weights += static_cast<double>(besides.weight);
      kl += static_cast<double>(besides.kl);
      clipped += static_cast<double>(besides.clipped);
      target_loss = besides.target_loss;
    }
    if (scores == nullptr) continue;
    scores[i * kTargetScoreCount + kScoreLoss] = target_loss;
    scores[i * kTargetScoreCount + kScoreIsAnswer] = row.correct;
  }
  loss = block_sum(loss, scratch);
  z_loss = block_sum(z_loss, scratch);
  tokens = block_sum(tokens, scratch);
  correct = block_sum(correct, scratch);
  if (terms != nullptr) {
    weights = block_sum(weights, scratch);
    kl = block_sum(kl, scratch);
    clipped = block_sum(clipped, scratch);
  }
  if (threadIdx.x != 0) return;
  sums[kSumLoss] += static_cast<float>(loss);
  sums[kSumZLoss] += static_cast<float>(z_loss);
  sums[kSumTokens] += static_cast<float>(tokens);
  sums[kSumCorrect] += static_cast<float>(correct);
  sums[kSumWeights] += static_cast<float>(terms != nullptr ? weights : tokens);
  sums[kSumKl] += static_cast<float>(kl);
  sums[kSumMarked] += static_cast<float>(clipped);
}

/// The workspace of a loss: of every row, and with values of targets of every row besides.
struct LossMemory {
  RowLoss* rows;
  RowTermSums* terms;

  LossMemory(Context& ctx, const char* op, const LossRows& operands) {
    const Dim N = operands.logits.shape()[0];
    const auto has_terms = static_cast<bool>(operands.terms.values);
    rows = static_cast<RowLoss*>(ctx.workspace(op, loss_workspace(N, has_terms)));
    terms = has_terms ? reinterpret_cast<RowTermSums*>(rows + N) : nullptr;
  }
};

/// Adds the rows of a loss to sums and writes `scores`, if that is there: see LossRows.
void add_rows(Context& ctx, const char* op, const LossMemory& memory, Dim count, View sums,
              View scores) {
  float* of_rows = scores ? scores.data<float>() : nullptr;
  launch_waiting(ctx, op, count, sum_losses_kernel, {1, 1024}, memory.rows, memory.terms, count,
                 sums.data<float>(), of_rows);
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

/// True if rows come and go in a stream (loss_streamed.cuh): gradients are asked for, no teacher's
/// tokens are changed besides, and two
/// blocks of a multiprocessor have room for a row each. Rows begin at multiples of 16 bytes.
template <class T>
bool is_streamed(const LossCall<T>& call) {
  const Dim row_bytes = call.columns.stride * static_cast<Dim>(sizeof(T));
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(call.logits) % 16 == 0 && row_bytes % 16 == 0;
  return call.gradient && !call.terms.loss.has_teacher() && call.columns.count > kWarpWidth &&
         aligned && row_bytes <= StreamCut::kSharedBytes && compute_capability() >= 90;
}

template <bool kTerms, class T>
void launch_streamed(Context& ctx, const char* op, const LossCall<T>& call) {
  constexpr auto kKernel = streamed_loss_kernel<kTerms, T>;
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

template <bool kTerms, class T>
void launch_loss(Context& ctx, const char* op, const LossCall<T>& call) {
  if constexpr (sizeof(T) == 2) {
    if (is_streamed(call)) return launch_streamed<kTerms>(ctx, op, call);
  }
  launch_rows(ctx, op, call.rows, call.columns.count, loss_kernel<kTerms, false, T>,
              loss_kernel<kTerms, true, T>, call);
}

template <class T>
void launch_statistics(Context& ctx, const char* op, const StatisticsCall<T>& call) {
  launch_rows(ctx, op, call.rows, call.columns.count, statistics_kernel<false, T>,
              statistics_kernel<true, T>, call);
}

template <bool kTerms, class T>
void launch_vocabulary_loss(Context& ctx, const char* op, const LossCall<T>& call, CView gathered) {
  // Without a gradient the logits are not read.
  launch_rows(ctx, op, call.rows, call.gradient ? call.columns.count : 0,
              vocabulary_loss_kernel<kTerms, false, T>, vocabulary_loss_kernel<kTerms, true, T>,
              call, gathered.data<float>(), gathered.shape()[0], gathered.shape()[2]);
}

TermsCall terms_of(const TokenTerms& terms, RowTermSums* out) {
  if (!terms.values) return {};
  return {terms.values.data<float>(), static_cast<int>(terms.values.shape()[1]),
          terms.loss.has_teacher() ? terms.teacher_ids.data<std::int32_t>() : nullptr, terms.loss,
          out};
}

template <class T>
LossCall<T> call_of(const LossRows& operands, const StepState* state, WithGradient gradient,
                    const LossMemory& memory) {
  return {operands.logits.shape()[0],
          {operands.logits, operands.shard},
          operands.logits.data<T>(),
          operands.targets.data<std::int32_t>(),
          state,
          gradient == WithGradient::yes,
          operands.z_loss,
          memory.rows,
          terms_of(operands.terms, memory.terms)};
}

}  // namespace

void softmax_cross_entropy(Context& ctx, const LossRows& operands, const StepState* state,
                           WithGradient gradient, View sums) {
  constexpr const char* kName = "softmax_cross_entropy";
  const Dim N = operands.logits.shape()[0];
  if (N == 0) return;
  const LossMemory memory(ctx, kName, operands);
  with_element(operands.logits.dtype(), kName, [&]<class T>(T) {
    const auto call = call_of<T>(operands, state, gradient, memory);
    memory.terms != nullptr ? launch_loss<true>(ctx, kName, call)
                            : launch_loss<false>(ctx, kName, call);
  });
  add_rows(ctx, kName, memory, N, sums, operands.scores);
}

void softmax_statistics(Context& ctx, const LossRows& operands, View statistics) {
  constexpr const char* kName = "softmax_statistics";
  const Dim N = operands.logits.shape()[0];
  if (N == 0) return;
  with_element(operands.logits.dtype(), kName, [&]<class T>(T) {
    const StatisticsCall<T> call = {N,
                                    {operands.logits, operands.shard},
                                    operands.logits.data<T>(),
                                    operands.targets.data<std::int32_t>(),
                                    statistics.data<float>(),
                                    statistics.shape()[1],
                                    terms_of(operands.terms, nullptr)};
    launch_statistics(ctx, kName, call);
  });
}

void vocabulary_cross_entropy(Context& ctx, const LossRows& operands, CView gathered,
                              const StepState* state, WithGradient gradient, View sums) {
  constexpr const char* kName = "vocabulary_cross_entropy";
  const Dim N = operands.logits.shape()[0];
  if (N == 0) return;
  const LossMemory memory(ctx, kName, operands);
  with_element(operands.logits.dtype(), kName, [&]<class T>(T) {
    const auto call = call_of<T>(operands, state, gradient, memory);
    memory.terms != nullptr ? launch_vocabulary_loss<true>(ctx, kName, call, gathered)
                            : launch_vocabulary_loss<false>(ctx, kName, call, gathered);
  });
  add_rows(ctx, kName, memory, N, sums, operands.scores);
}

}  // namespace hyperslab::ops::cuda
