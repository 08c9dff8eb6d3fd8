// SPDX-License-Identifier: Apache-2.0
#include "gemm.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/tools/check.hpp"
#include "gemm_plans.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::ops::cuda {
namespace {

constexpr int kCandidates = 12;              // algorithms that are timed
constexpr int kRepetitions = 3;              // timed runs of an algorithm that may win, at least
constexpr int kMostRepetitions = 32;         // timed runs of a short one, at most
constexpr float kTimedMilliseconds = 0.2F;   // time that a round of a short one aims at
constexpr int kRounds = 3;                   // rounds of a short one, of which the best counts
constexpr float kHopeless = 1.3F;            // times the best: not run again,
constexpr float kShortMilliseconds = 0.05F;  // unless a run is so short that its launch counts
constexpr float kWorthChanging = 0.98F;      // times the heuristic's own order

using Preference =
    std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Closer<&cublasLtMatmulPreferenceDestroy>>;
using Event = std::unique_ptr<CUevent_st, Closer<&cudaEventDestroy>>;

/// log2 of the alignment of an address, up to the 256 bytes that cuBLASLt makes use of.
int alignment(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer) | 256U;
  return std::countr_zero(address);
}

/// A number of each pair of scalings that fp8_matmul takes: its own if alike, 3 of groups beside
/// blocks and 4 of blocks beside groups. The numbers of files that knew no groups are as they were.
int number_of(Fp8Scaling a, Fp8Scaling b) { return static_cast<int>(a) + (a == b ? 0 : 1); }

/// The alignment of aux, or a mark that tells products of 8-bit floats apart, which have none.
std::int64_t last_part(const Gemm& p) {
  if (!p.fp8.present) return alignment(p.aux);
  return 64 | number_of(p.fp8.a_scaling, p.fp8.b_scaling) << 3 |
         static_cast<int>(p.fp8.a_format) << 2 | static_cast<int>(p.fp8.b_format) << 1 |
         static_cast<int>(p.fp8.sums);
}

/// These numbers are kept in files: whatever changes their meaning raises AlgorithmCache::kFormat.
Kind kind_of(Context& ctx, const Gemm& p) {
  std::int64_t flags = 0;
  const auto add = [&](std::int64_t value, int bits) { flags = flags << bits | value; };
  add(static_cast<int>(p.in), 4);
  add(static_cast<int>(p.out), 4);
  add(static_cast<int>(p.epilogue), 4);
  add(p.a.trans == Trans::yes, 1);
  add(p.b.trans == Trans::yes, 1);
  add(p.accumulate, 1);
  add(ctx.tf32(), 1);
  add(ctx.deterministic(), 1);
  for (const void* pointer : {p.a.data, p.b.data, static_cast<const void*>(p.c)}) {
    add(alignment(pointer), 4);
  }
  return {p.M,        p.N,        p.K,        p.a.ld,  p.b.ld, p.ldc,
          p.a.stride, p.b.stride, p.stride_c, p.batch, flags,  last_part(p)};
}

bool is_int8(const Gemm& p) { return p.in == DType::u8 && !p.fp8.present; }

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return CUDA_R_32F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::f16: return CUDA_R_16F;
    case DType::u8: return CUDA_R_8I;
    case DType::i32: return CUDA_R_32I;
    default:
      throw Error(ExitCode::internal,
                  "gemms on a GPU take f32, bf16, f16 or u8, found " + std::string(name_of(dtype)));
  }
}

cudaDataType_t cuda_type(Fp8Format format) {
  return format == Fp8Format::e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

cublasLtEpilogue_t lt_epilogue(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::none: return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::bias: return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::gelu: return CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::gelu_bias: return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::dgelu: return CUBLASLT_EPILOGUE_DGELU;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

bool has_bias(Epilogue e) { return e == Epilogue::bias || e == Epilogue::gelu_bias; }
bool has_aux(Epilogue e) {
  return e == Epilogue::gelu || e == Epilogue::gelu_bias || e == Epilogue::dgelu;
}

template <class T>
void set(const Desc& desc, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  require_ok(cublasLtMatmulDescSetAttribute(desc.get(), attribute, &value, sizeof value),
             "cublasLtMatmulDescSetAttribute");
}

template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const T& value) {
  require_ok(
      cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
      "cublasLtMatmulPreferenceSetAttribute");
}

/// Sets the pointers of the epilogue and the scales; the only part of a descriptor that changes
/// from call to call.
void set_pointers(const Desc& desc, const Gemm& p, void* aux) {
  if (has_bias(p.epilogue)) set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  if (has_aux(p.epilogue)) set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
  if (!p.fp8.present) return;
  set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.fp8.b_scales);
  set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.fp8.a_scales);
}

cublasLtMatmulMatrixScale_t scale_mode(Fp8Scaling scaling) {
  switch (scaling) {
    case Fp8Scaling::tensor: return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    case Fp8Scaling::row: return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    case Fp8Scaling::group: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case Fp8Scaling::block: return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  }
  return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
}

/// Sets how FP8 values are scaled and added up.
void set_fp8(const Desc& desc, const Fp8Operands& fp8) {
  set(desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{fp8.sums == Fp8Sums::fast});
  set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(fp8.b_scaling));
  set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(fp8.a_scaling));
}

/// The type of sums, and the type of alpha and beta.
std::pair<cublasComputeType_t, cudaDataType_t> arithmetic_of(Context& ctx, const Gemm& p) {
  if (is_int8(p)) return {CUBLAS_COMPUTE_32I, CUDA_R_32I};
  const bool tf32 = p.in == DType::f32 && ctx.tf32();
  return {tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F};
}

Desc make_desc(Context& ctx, const Gemm& p) {
  cublasLtMatmulDesc_t raw = nullptr;
  const auto [compute, scalars] = arithmetic_of(ctx, p);
  require_ok(cublasLtMatmulDescCreate(&raw, compute, scalars), "cublasLtMatmulDescCreate");
  Desc desc(raw);
  // Row-major c = a b is column-major c^T = b^T a^T: b goes first, and nothing else changes.
  const auto operation = [](Trans trans) {
    return trans == Trans::yes ? CUBLAS_OP_T : CUBLAS_OP_N;
  };
  set(desc, CUBLASLT_MATMUL_DESC_TRANSA, operation(p.b.trans));
  set(desc, CUBLASLT_MATMUL_DESC_TRANSB, operation(p.a.trans));
  set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, lt_epilogue(p.epilogue));
  if (has_bias(p.epilogue)) {
    set(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(p.fp8.present ? p.out : p.in));
  }
  if (has_aux(p.epilogue)) {
    set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, std::int64_t{p.N});
    set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, cuda_type(p.in));
  }
  if (p.fp8.present) set_fp8(desc, p.fp8);
  set_pointers(desc, p, p.aux);
  return desc;
}

/// The column-major layout of a row-major (rows, columns) matrix as it is stored.
MatrixLayout make_layout(cudaDataType_t type, Dim rows, Dim columns, Dim ld, int batch,
                         Dim stride) {
  cublasLtMatrixLayout_t raw = nullptr;
  require_ok(cublasLtMatrixLayoutCreate(&raw, type, static_cast<std::uint64_t>(columns),
                                        static_cast<std::uint64_t>(rows), ld),
             "cublasLtMatrixLayoutCreate");
  MatrixLayout layout(raw);
  const std::int64_t offset = stride;
  require_ok(cublasLtMatrixLayoutSetAttribute(raw, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch,
                                              sizeof batch),
             "cublasLtMatrixLayoutSetAttribute");
  require_ok(cublasLtMatrixLayoutSetAttribute(raw, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                              &offset, sizeof offset),
             "cublasLtMatrixLayoutSetAttribute");
  return layout;
}

MatrixLayout operand_layout(const Gemm& p, const Operand& operand, Fp8Format format, Dim rows,
                            Dim columns) {
  if (operand.trans == Trans::yes) std::swap(rows, columns);
  const cudaDataType_t type = p.fp8.present ? cuda_type(format) : cuda_type(p.in);
  return make_layout(type, rows, columns, operand.ld, p.batch, operand.stride);
}

std::vector<cublasLtMatmulHeuristicResult_t> candidates_of(Context& ctx, const Backend& backend,
                                                           const Gemm& p, const GemmPlan& plan) {
  cublasLtMatmulPreference_t raw = nullptr;
  require_ok(cublasLtMatmulPreferenceCreate(&raw), "cublasLtMatmulPreferenceCreate");
  const Preference preference(raw);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
      std::uint64_t{backend.lt_workspace.bytes()});
  const auto bytes = [](const void* pointer) { return std::uint32_t{1} << alignment(pointer); };
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, bytes(p.b.data));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, bytes(p.a.data));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, bytes(p.c));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, bytes(p.c));
  // Split sums may be added in a changing order; results of 16 bits are rounded once, at the end.
  const bool narrow = size_of(p.out) == 2;
  if (ctx.deterministic() || narrow) {
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        std::uint32_t{ctx.deterministic() ? CUBLASLT_REDUCTION_SCHEME_NONE
                                          : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  }
  std::vector<cublasLtMatmulHeuristicResult_t> found(kCandidates);
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      backend.lt.get(), plan.desc.get(), plan.a.get(), plan.b.get(), plan.c.get(), plan.c.get(),
      raw, kCandidates, found.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
    count = 0;
  } else {
    require_ok(status, "cublasLtMatmulAlgoGetHeuristic");
  }
  found.resize(static_cast<std::size_t>(count));
  std::erase_if(found, [](const auto& result) { return result.state != CUBLAS_STATUS_SUCCESS; });
  return found;
}

cublasStatus_t enqueue(const Backend& backend, const Gemm& p, const GemmPlan& plan, void* c,
                       const cublasLtMatmulAlgo_t& algorithm) {
  const float beta = p.accumulate ? p.beta : 0.0F;
  const void* const addend = p.addend != nullptr ? p.addend : c;
  constexpr std::int32_t kOne = 1;
  constexpr std::int32_t kZero = 0;
  const void* const alpha_of = is_int8(p) ? static_cast<const void*>(&kOne) : &p.alpha;
  const void* const beta_of = is_int8(p) ? static_cast<const void*>(&kZero) : &beta;
  return cublasLtMatmul(backend.lt.get(), plan.desc.get(), alpha_of, p.b.data, plan.a.get(),
                        p.a.data, plan.b.get(), beta_of, addend, plan.c.get(), c, plan.c.get(),
                        &algorithm, backend.lt_workspace.data(), backend.lt_workspace.bytes(),
                        backend.stream);
}

Event make_event() {
  cudaEvent_t raw = nullptr;
  check_cuda(cudaEventCreate(&raw), "timing of GEMMs", "cudaEventCreate");
  return Event(raw);
}

/// Times algorithms on the real operands, writing into scratch memory.
class Stopwatch {
 public:
  Stopwatch(Backend& backend, const Gemm& p, const GemmPlan& plan)
      : backend_(backend), gemm_(p), plan_(plan), start_(make_event()), stop_(make_event()) {
    const Dim last = (p.batch - 1) * p.stride_c + (p.M - 1) * p.ldc + p.N;
    c_ = Buffer(Device::cuda, static_cast<std::size_t>(last) * size_of(p.out));
    void* aux = p.aux;
    if (p.epilogue == Epilogue::gelu || p.epilogue == Epilogue::gelu_bias) {
      aux_ = Buffer(Device::cuda, static_cast<std::size_t>(p.M * p.N) * size_of(p.in));
      aux = aux_.data();
    }
    set_pointers(plan.desc, p, aux);
  }

  /// Milliseconds of one run, or infinity if it fails or cannot be better than `best`.
  float milliseconds(const cublasLtMatmulAlgo_t& algorithm, float best) {
    constexpr float kNever = std::numeric_limits<float>::infinity();
    // The first run loads the kernel.
    if (!run(algorithm, 1)) return kNever;
    const std::optional<float> once = run(algorithm, 1);
    if (!once || (*once > kHopeless * best && *once > kShortMilliseconds)) return kNever;
    const auto repetitions = static_cast<int>(
        std::clamp<float>(kTimedMilliseconds / *once, kRepetitions, kMostRepetitions));
    const int rounds = repetitions > kRepetitions ? kRounds : 1;
    float least = kNever;
    for (int round = 0; round < rounds; ++round) {
      least = std::min(least, run(algorithm, repetitions).value_or(kNever));
    }
    return least;
  }

 private:
  std::optional<float> run(const cublasLtMatmulAlgo_t& algorithm, int repetitions) {
    check_cuda(cudaEventRecord(start_.get(), backend_.stream), "timing of GEMMs",
               "cudaEventRecord");
    for (int i = 0; i < repetitions; ++i) {
      if (enqueue(backend_, gemm_, plan_, c_.data(), algorithm) != CUBLAS_STATUS_SUCCESS) {
        return std::nullopt;
      }
    }
    check_cuda(cudaEventRecord(stop_.get(), backend_.stream), "timing of GEMMs", "cudaEventRecord");
    check_cuda(cudaEventSynchronize(stop_.get()), "timing of GEMMs", "cudaEventSynchronize");
    float elapsed = 0;
    check_cuda(cudaEventElapsedTime(&elapsed, start_.get(), stop_.get()), "timing of GEMMs",
               "cudaEventElapsedTime");
    return elapsed / static_cast<float>(repetitions);
  }

  Backend& backend_;
  const Gemm& gemm_;
  const GemmPlan& plan_;
  Buffer c_, aux_;
  Event start_, stop_;
};

/// Scratch for timing, unless the memory is not there: then cuBLASLt's own order decides.
std::unique_ptr<Stopwatch> make_stopwatch(Backend& backend, const Gemm& p, const GemmPlan& plan) {
  try {
    return std::make_unique<Stopwatch>(backend, p, plan);
  } catch (const Error&) {
    return nullptr;
  }
}

std::optional<cublasLtMatmulAlgo_t> choose(Context& ctx, Backend& backend, const Gemm& p,
                                           const GemmPlan& plan) {
  const auto candidates = candidates_of(ctx, backend, p, plan);
  if (candidates.empty()) return std::nullopt;
  if (candidates.size() == 1 || ctx.deterministic() || is_capturing(backend)) {
    return candidates.front().algo;
  }
  const auto stopwatch = make_stopwatch(backend, p, plan);
  if (!stopwatch) return candidates.front().algo;
  std::optional<cublasLtMatmulAlgo_t> chosen;
  float best = std::numeric_limits<float>::infinity();
  for (const auto& candidate : candidates) {
    const float time = stopwatch->milliseconds(candidate.algo, best);
    if (time < kWorthChanging * best) {
      best = time;
      chosen = candidate.algo;
    }
  }
  return chosen;
}

const GemmPlan& plan_of(Context& ctx, Backend& backend, const Gemm& p) {
  GemmPlans& gemms = plans_of(backend);
  const Kind kind = kind_of(ctx, p);
  const auto found = gemms.plans.find(kind);
  if (found != gemms.plans.end()) return found->second;
  GemmPlan plan;
  plan.desc = make_desc(ctx, p);
  plan.a = operand_layout(p, p.b, p.fp8.b_format, p.K, p.N);
  plan.b = operand_layout(p, p.a, p.fp8.a_format, p.M, p.K);
  plan.c = make_layout(cuda_type(p.out), p.M, p.N, p.ldc, p.batch, p.stride_c);
  plan.algorithm = kept_algorithm(backend, kind, plan);
  if (!plan.algorithm) {
    plan.algorithm = choose(ctx, backend, p, plan);
    if (plan.algorithm) ++gemms.chosen;
  }
  return gemms.plans.emplace(kind, std::move(plan)).first->second;
}

}  // namespace

bool multiply(Context& ctx, const Gemm& p) {
  if (p.M == 0 || p.N == 0 || p.batch == 0) return true;
  require(p.K > 0, "multiply: expected something to sum over");
  Backend& backend = backend_of(ctx);
  const GemmPlan& plan = plan_of(ctx, backend, p);
  if (!plan.algorithm) {
    if (p.epilogue != Epilogue::none || p.in == DType::u8) return false;
    throw Error(ExitCode::device, std::string(p.op) + ": cuBLASLt has no algorithm for " +
                                      std::to_string(p.M) + " x " + std::to_string(p.N) + " x " +
                                      std::to_string(p.K) + " of " + std::string(name_of(p.in)) +
                                      " to " + std::string(name_of(p.out)));
  }
  set_pointers(plan.desc, p, p.aux);
  require_ok(enqueue(backend, p, plan, p.c, *plan.algorithm), "cublasLtMatmul");
  return true;
}

}  // namespace hyperslab::ops::cuda
