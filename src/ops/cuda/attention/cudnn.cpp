// SPDX-License-Identifier: Apache-2.0
// The only file that knows cudnn-frontend. Its headers call cuDNN and the CUDA driver through
// addresses found at run time, so that no object here names those libraries.
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#include "cudnn.hpp"

#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <tuple>

#include "cuda/tools/handles.hpp"
#include "cuda/tools/library_workspace.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/log.hpp"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // declared by the frontend, opened by open_cudnn()
}

namespace hyperslab::ops::cuda {
namespace {

namespace fe = cudnn_frontend;
using TensorPtr = std::shared_ptr<fe::graph::Tensor_attributes>;

enum class Direction : std::uint8_t { forward, backward };
/// The problem that a graph solves: B, T, H, H_kv, Dh, mask, window, scale, dtype, direction,
/// deterministic.
using Key =
    std::tuple<Dim, Dim, Dim, Dim, Dim, AttentionMask::Kind, Dim, float, DType, Direction, bool>;

/// Names of a graph's operands.
enum Uid : std::int64_t { kQ = 1, kK, kV, kOut, kLogSumExp, kDout, kDq, kDk, kDv };
using Pointers = std::unordered_map<std::int64_t, void*>;

/// A finished graph, and the table of addresses that its calls fill in.
struct Plan {
  fe::graph::Graph graph;
  std::size_t workspace_bytes = 0;
  Pointers pointers;
};

[[noreturn]] void throw_cudnn(const std::string& what) {
  throw Error(ExitCode::device, "cuDNN: " + what);
}

void require_good(fe::error_t status, const char* call) {
  if (status.is_bad()) throw_cudnn(std::string(call) + ": " + status.get_message());
}

void require_good(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS) {
    throw_cudnn(std::string(call) + ": " + fe::detail::get_error_string(status));
  }
}

/// Opens the cuDNN that the loader finds, else the one that this was built with.
void open_cudnn() {
  if (fe::cudnn_dlhandle != nullptr) return;
  // The frontend must use the runtime that we are linked with, not the first one it meets.
  const std::string runtime = "libcudart.so." + std::to_string(CUDART_VERSION / 1000);
  setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", runtime.c_str(), 0);
  for (const char* name : {"libcudnn.so.9", HYPERSLAB_CUDNN_LIBRARY}) {
    fe::cudnn_dlhandle = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (fe::cudnn_dlhandle != nullptr) return;
  }
  throw Error(ExitCode::device,
              "libcudnn.so.9 was not found: add its folder to LD_LIBRARY_PATH, or set "
              "model.attention: reference");
}

fe::DataType_t type_of(DType dtype) {
  return dtype == DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF;
}

/// Sizes of one problem, and its tensors as cuDNN wants them: (B, heads, T, Dh) by strides.
struct Problem {
  Dim B, T;
  HeadLayout layout;
  AttentionScores scores;
  DType dtype;

  /// Heads inside rows of `row` elements.
  TensorPtr input(fe::graph::Graph& graph, const char* name, Uid uid, Dim heads, Dim row) const {
    return graph.tensor(fe::graph::Tensor_attributes()
                            .set_name(name)
                            .set_uid(uid)
                            .set_dim({B, heads, T, layout.head_width})
                            .set_stride({T * row, layout.head_width, row, 1}));
  }
  void output(const TensorPtr& tensor, Uid uid, Dim heads, Dim row) const {
    tensor->set_output(true)
        .set_uid(uid)
        .set_dim({B, heads, T, layout.head_width})
        .set_stride({T * row, layout.head_width, row, 1});
  }
  [[nodiscard]] std::vector<Dim> statistic_dim() const { return {B, layout.heads, T, 1}; }
  [[nodiscard]] std::vector<Dim> statistic_stride() const { return {layout.heads * T, T, 1, 1}; }
  [[nodiscard]] Dim packed() const { return layout.packed_width(); }
  [[nodiscard]] Dim out_row() const { return layout.heads * layout.head_width; }
  [[nodiscard]] float scale() const { return static_cast<float>(scores.scale_of(layout)); }
};

/// Key j is seen by queries i >= j, as positions begin at the upper left corner of the scores, and
/// with a window by those with i - j < window.
template <class Options>
void set_mask(Options& options, const AttentionMask& mask) {
  if (mask.kind == AttentionMask::Kind::none) return;
  options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
      .set_diagonal_band_right_bound(0);
  if (mask.window > 0) options.set_diagonal_band_left_bound(mask.window);
}

void describe_forward(fe::graph::Graph& graph, const Problem& p) {
  const auto q = p.input(graph, "q", kQ, p.layout.heads, p.packed());
  const auto k = p.input(graph, "k", kK, p.layout.kv_heads, p.packed());
  const auto v = p.input(graph, "v", kV, p.layout.kv_heads, p.packed());
  auto options = fe::graph::SDPA_attributes()
                     .set_name("attention_forward")
                     .set_generate_stats(true)
                     .set_attn_scale(p.scale());
  set_mask(options, p.scores.mask);
  const auto [out, statistics] = graph.sdpa(q, k, v, std::move(options));
  p.output(out, kOut, p.layout.heads, p.out_row());
  statistics->set_output(true)
      .set_uid(kLogSumExp)
      .set_data_type(fe::DataType_t::FLOAT)
      .set_dim(p.statistic_dim())
      .set_stride(p.statistic_stride());
}

void describe_backward(fe::graph::Graph& graph, const Problem& p, bool deterministic) {
  const Dim H = p.layout.heads;
  const Dim H_kv = p.layout.kv_heads;
  const auto q = p.input(graph, "q", kQ, H, p.packed());
  const auto k = p.input(graph, "k", kK, H_kv, p.packed());
  const auto v = p.input(graph, "v", kV, H_kv, p.packed());
  const auto out = p.input(graph, "out", kOut, H, p.out_row());
  const auto dout = p.input(graph, "dout", kDout, H, p.out_row());
  const auto statistics = graph.tensor(fe::graph::Tensor_attributes()
                                           .set_name("log_sum_exp")
                                           .set_uid(kLogSumExp)
                                           .set_data_type(fe::DataType_t::FLOAT)
                                           .set_dim(p.statistic_dim())
                                           .set_stride(p.statistic_stride()));
  auto options = fe::graph::SDPA_backward_attributes()
                     .set_name("attention_backward")
                     .set_attn_scale(p.scale())
                     .set_deterministic_algorithm(deterministic);
  set_mask(options, p.scores.mask);
  const auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, out, dout, statistics, std::move(options));
  p.output(dq, kDq, H, p.packed());
  p.output(dk, kDk, H_kv, p.packed());
  p.output(dv, kDv, H_kv, p.packed());
}

}  // namespace

/// cuDNN's handle and the graphs built so far.
struct AttentionPlans {
  explicit AttentionPlans(CUstream_st* stream) {
    open_cudnn();
    require_good(fe::detail::create_handle(&handle), "cudnnCreate");
    const cudnnStatus_t status = fe::detail::set_stream(handle, stream);
    if (status != CUDNN_STATUS_SUCCESS) (void)fe::detail::destroy_handle(handle);
    require_good(status, "cudnnSetStream");
  }
  AttentionPlans(const AttentionPlans&) = delete;
  AttentionPlans& operator=(const AttentionPlans&) = delete;
  AttentionPlans(AttentionPlans&&) = delete;
  AttentionPlans& operator=(AttentionPlans&&) = delete;
  ~AttentionPlans() {
    const cudnnStatus_t status = fe::detail::destroy_handle(handle);
    if (status == CUDNN_STATUS_SUCCESS) return;
    log::failed_close("cuDNN", "cudnnDestroy", fe::detail::get_error_string(status));
  }

  cudnnHandle_t handle = nullptr;
  std::map<Key, std::unique_ptr<Plan>> plans;
};

namespace {

AttentionPlans& plans_of(Context& ctx) {
  Backend& backend = backend_of(ctx);
  if (!backend.attention) backend.attention = std::make_shared<AttentionPlans>(backend.stream);
  return *backend.attention;
}

/// Builds the graph at the first use of a size; seconds, and never inside a captured graph.
Plan& plan_of(Context& ctx, const Problem& p, Direction direction) {
  AttentionPlans& all = plans_of(ctx);
  const bool deterministic = direction == Direction::backward && ctx.deterministic();
  const Key key = {p.B,
                   p.T,
                   p.layout.heads,
                   p.layout.kv_heads,
                   p.layout.head_width,
                   p.scores.mask.kind,
                   p.scores.mask.window,
                   p.scale(),
                   p.dtype,
                   direction,
                   deterministic};
  const auto found = all.plans.find(key);
  if (found != all.plans.end()) return *found->second;
  auto plan = std::make_unique<Plan>();
  plan->graph.set_io_data_type(type_of(p.dtype))
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  if (direction == Direction::forward) {
    describe_forward(plan->graph, p);
  } else {
    describe_backward(plan->graph, p, deterministic);
  }
  require_good(plan->graph.build(all.handle, {fe::HeurMode_t::A}), "building the attention graph");
  std::int64_t bytes = 0;
  require_good(plan->graph.get_workspace_size(bytes), "get_workspace_size");
  plan->workspace_bytes = static_cast<std::size_t>(bytes);
  return *all.plans.emplace(key, std::move(plan)).first->second;
}

void run(Context& ctx, const char* op, Plan& plan, std::size_t cap) {
  if (plan.workspace_bytes > cap) {
    throw Error(ExitCode::internal, std::string(op) + ": cuDNN needs a workspace of " +
                                        std::to_string(plan.workspace_bytes) +
                                        " bytes, the plan's cap is " + std::to_string(cap) +
                                        "; set model.attention: reference");
  }
  void* workspace = ctx.workspace(op, plan.workspace_bytes);
  require_good(plan.graph.execute(plans_of(ctx).handle, plan.pointers, workspace), op);
}

void* address(CView view, Dim elements = 0) {
  const auto base = reinterpret_cast<std::uintptr_t>(view.raw());
  return reinterpret_cast<void*>(base + static_cast<std::size_t>(elements) * size_of(view.dtype()));
}

/// Sets the begins of queries, keys and values inside a packed view.
void set_packed(Pointers& pointers, const HeadLayout& layout, CView packed,
                const std::array<Uid, 3>& uids) {
  const Dim keys = layout.heads * layout.head_width;
  pointers[uids[0]] = address(packed);
  pointers[uids[1]] = address(packed, keys);
  pointers[uids[2]] = address(packed, keys + layout.kv_heads * layout.head_width);
}

}  // namespace

void cudnn_attention_forward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                             CView qkv, View out, View log_sum_exp) {
  const Problem p = {qkv.shape()[0], qkv.shape()[1], layout, scores, qkv.dtype()};
  Plan& plan = plan_of(ctx, p, Direction::forward);
  set_packed(plan.pointers, layout, qkv, {kQ, kK, kV});
  plan.pointers[kOut] = address(out);
  plan.pointers[kLogSumExp] = address(log_sum_exp);
  run(ctx, "attention_forward", plan, attention_forward_workspace(layout, p.B, p.T));
}

void cudnn_attention_backward(Context& ctx, const HeadLayout& layout, const AttentionScores& scores,
                              CView dout, const AttentionSaved& saved, View dqkv) {
  const auto& [qkv, out, log_sum_exp] = saved;
  const Problem p = {qkv.shape()[0], qkv.shape()[1], layout, scores, qkv.dtype()};
  Plan& plan = plan_of(ctx, p, Direction::backward);
  set_packed(plan.pointers, layout, qkv, {kQ, kK, kV});
  set_packed(plan.pointers, layout, dqkv, {kDq, kDk, kDv});
  plan.pointers[kOut] = address(out);
  plan.pointers[kDout] = address(dout);
  plan.pointers[kLogSumExp] = address(log_sum_exp);
  run(ctx, "attention_backward", plan,
      attention_backward_workspace(layout, p.B, p.T, ctx.deterministic()));
}

}  // namespace hyperslab::ops::cuda
