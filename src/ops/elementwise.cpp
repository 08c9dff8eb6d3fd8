// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/elementwise.hpp"

#include "backend.hpp"
#include "checks.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::ops {
namespace {

void require_floating(CView view, const char* message) {
  const DType dtype = view.dtype();
  require(dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16,
          message);
}

}  // namespace

void add(Context& ctx, CView a, CView b, View y) {
  require_here(ctx, a, "add a");
  require_operand(ctx, b, a.shape(), a.dtype(), "add b");
  require_operand(ctx, y, a.shape(), a.dtype(), "add y");
  if (on_meta(ctx, "add", static_cast<double>(y.numel()), {a, b, y})) return;
  dispatch<cuda::add, cpu::add>(ctx, a, b, y);
}

void scale(Context& ctx, float scale, CView x, View y) {
  require_here(ctx, x, "scale x");
  const DType dtype = y.dtype() == x.dtype() ? x.dtype() : statistic_dtype(x.dtype());
  require_operand(ctx, y, x.shape(), dtype, "scale y");
  if (on_meta(ctx, "scale", static_cast<double>(x.numel()), {x, y})) return;
  dispatch<cuda::scale, cpu::scale>(ctx, scale, x, y);
}

void softcap(Context& ctx, float cap, CView x, View y) {
  require(cap > 0, "softcap cap: expected more than 0");
  require_here(ctx, x, "softcap x");
  require_operand(ctx, y, x.shape(), x.dtype(), "softcap y");
  if (on_meta(ctx, "softcap", 3.0 * static_cast<double>(x.numel()), {x, y})) return;
  dispatch<cuda::softcap, cpu::softcap>(ctx, cap, x, y);
}

void softcap_backward(Context& ctx, float cap, CView y, CView dy, View dx) {
  require(cap > 0, "softcap_backward cap: expected more than 0");
  require_here(ctx, y, "softcap_backward y");
  require_operand(ctx, dy, y.shape(), y.dtype(), "softcap_backward dy");
  require_operand(ctx, dx, y.shape(), y.dtype(), "softcap_backward dx");
  if (on_meta(ctx, "softcap_backward", 4.0 * static_cast<double>(y.numel()), {y, dy, dx})) return;
  dispatch<cuda::softcap_backward, cpu::softcap_backward>(ctx, cap, y, dy, dx);
}

void fill(Context& ctx, float value, View y) {
  require_here(ctx, y, "fill y");
  require(value == 0 || y.dtype() == DType::f32 || y.dtype() == DType::f64,
          "fill y: a value other than zero needs f32 or f64");
  if (on_meta(ctx, "fill", 0, {y})) return;
  dispatch<cuda::fill, cpu::fill>(ctx, value, y);
}

void fill_normal(Context& ctx, const NormalSpec& spec, std::uint64_t first, std::uint64_t pitch,
                 View y) {
  require_here(ctx, y, "fill_normal y");
  (void)y.dims<2>("fill_normal y");
  if (on_meta(ctx, "fill_normal", 0, {y})) return;
  dispatch<cuda::fill_normal, cpu::fill_normal>(ctx, spec, first, pitch, y);
}

void cast(Context& ctx, CView x, View y) {
  require_here(ctx, x, "cast x");
  require_here(ctx, y, "cast y");
  require_shape(y, x.shape(), "cast y");
  require_floating(x, "cast x: expected f64, f32, bf16 or f16");
  require_floating(y, "cast y: expected f64, f32, bf16 or f16");
  if (on_meta(ctx, "cast", static_cast<double>(x.numel()), {x, y})) return;
  dispatch<cuda::cast, cpu::cast>(ctx, x, y);
}

void root_mean_square(Context& ctx, CView x, View out) {
  require_here(ctx, x, "root_mean_square x");
  require_operand(ctx, out, {1}, DType::f32, "root_mean_square out");
  if (on_meta(ctx, "root_mean_square", 2.0 * static_cast<double>(x.numel()), {x, out},
              workspace_for(ctx, cpu::sum_of_squares_workspace(x.numel()),
                            cuda::sum_of_squares_workspace(x.numel())))) {
    return;
  }
  dispatch<cuda::root_mean_square, cpu::root_mean_square>(ctx, x, out);
}

}  // namespace hyperslab::ops
