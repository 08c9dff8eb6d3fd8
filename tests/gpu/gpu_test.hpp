// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "hyperslab/core/transfer.hpp"
#include "support/tensors.hpp"

namespace hyperslab::test {

/// Skips without a GPU; with HYPERSLAB_REQUIRE_GPU=1 that is a failure.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() > 0) return;
    const char* required = std::getenv("HYPERSLAB_REQUIRE_GPU");
    if (required != nullptr && std::string(required) == "1") {
      FAIL() << "HYPERSLAB_REQUIRE_GPU=1, and there is no GPU";
    }
    GTEST_SKIP() << "no GPU here";
  }
};

/// The dtypes that a GPU computes in.
inline const std::vector<DType> kGpuTypes = {DType::f32, DType::bf16, DType::f16};

/// An output that shows every element that an op forgets.
[[nodiscard]] inline Tensor poisoned(DType dtype, const Shape& shape) {
  return filled_tensor(dtype, shape, std::numeric_limits<double>::quiet_NaN());
}
[[nodiscard]] inline bool is_floating(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}
[[nodiscard]] inline bool same_bits(CView a, CView b) {
  return a.bytes() == b.bytes() &&
         (a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
}

/// A struct as bytes, for operands that ops take by pointer.
template <class Struct>
[[nodiscard]] Tensor bytes_of(const Struct& value) {
  Tensor out(Device::cpu, DType::u8, {static_cast<Dim>(sizeof(Struct))});
  std::memcpy(out.view().raw(), &value, sizeof(Struct));
  return out;
}
template <class Struct>
[[nodiscard]] Struct from_bytes(CView bytes) {
  Struct out{};
  std::memcpy(&out, bytes.raw(), sizeof(Struct));
  return out;
}
template <class Struct>
[[nodiscard]] Struct* struct_at(View bytes) {
  return static_cast<Struct*>(bytes.raw());
}

/// One call of an op: its operands on the CPU in the dtypes of the GPU. It runs on the GPU, with
/// the workspace that a plan on `meta` found, and in double on the CPU from the same numbers.
class Problem {
 public:
  using Views = std::vector<View>;
  using Call = std::function<void(Context&, const Views&)>;

  static constexpr double kFloor = 1e-30;

  explicit Problem(DType compute) : compute_(compute) {}

  Problem& input(Tensor value) { return append({std::move(value), false, false, true}); }
  Problem& output(DType dtype, const Shape& shape) { return in_out(poisoned(dtype, shape)); }
  /// `floor`: differences are relative to at least this magnitude, for results that cancel to zero.
  Problem& in_out(Tensor value, double floor = kFloor) {
    return append({std::move(value), true, false, true, floor});
  }
  /// Of the same dtype for the oracle: tokens, positions, structs, tables in f32.
  Problem& fixed(Tensor value) { return append({std::move(value), false, true, true}); }
  Problem& fixed_output(Tensor value) { return append({std::move(value), true, true, true}); }
  Problem& absent() { return append({Tensor(), false, true, false}); }

  /// The operands after the call on the GPU. Floating operands begin `offset` elements after a
  /// 256-byte boundary. Fails if something beside an operand was written.
  [[nodiscard]] std::vector<Tensor> on_gpu(const Call& call, Dim offset = 0) const;
  /// The operands after the call in double.
  [[nodiscard]] std::vector<Tensor> on_oracle(const Call& call) const;
  /// EXPECTs the outputs on the GPU to match the oracle's, aligned and not, and two runs to give
  /// the same bits. The tolerance is that of the compute dtype or the result's, whichever is
  /// larger.
  void expect_match(const Call& call, const std::string& what, double slack = 1.0) const;

 private:
  struct Operand {
    Tensor value;
    bool compared;
    bool fixed;
    bool present;
    double floor = kFloor;
  };
  static constexpr Dim kGuard = 16;  // elements after an operand

  Problem& append(Operand operand) {
    operands_.push_back(std::move(operand));
    return *this;
  }
  [[nodiscard]] Dim offset_of(const Operand& operand, Dim offset) const {
    return operand.fixed ? 0 : offset;
  }
  /// The operand between guards, flat.
  [[nodiscard]] Tensor guarded(const Operand& operand, Dim offset) const;
  [[nodiscard]] std::size_t planned_workspace(const Call& call, Device device, bool oracle) const;
  void expect_close_to(const std::vector<Tensor>& oracle, const std::vector<Tensor>& found,
                       const std::string& what, double slack) const;

  DType compute_;
  std::vector<Operand> operands_;
};

inline Tensor Problem::guarded(const Operand& operand, Dim offset) const {
  const CView value = operand.value.view();
  const double guard = is_floating(value.dtype()) ? 77.0 : 7.0;
  Tensor out = filled_tensor(value.dtype(), {offset + value.numel() + kGuard}, guard);
  if (value.bytes() > 0) {
    std::memcpy(out.view().slice(offset, value.numel()).raw(), value.raw(), value.bytes());
  }
  return out;
}

inline std::size_t Problem::planned_workspace(const Call& call, Device device, bool oracle) const {
  Context meta(Device::meta, 0, device);
  meta.set_deterministic(true);
  std::vector<Tensor> tensors;
  Views views;
  for (const Operand& operand : operands_) {
    if (!operand.present) {
      views.emplace_back();
      continue;
    }
    const CView value = operand.value.view();
    const bool doubled = oracle && !operand.fixed && is_floating(value.dtype());
    tensors.emplace_back(Device::meta, doubled ? DType::f64 : value.dtype(), value.shape());
    views.push_back(tensors.back().view());
  }
  call(meta, views);
  return meta.workspace_high_water();
}

inline std::vector<Tensor> Problem::on_gpu(const Call& call, Dim offset) const {
  Context ctx(Device::cuda, planned_workspace(call, Device::cuda, false));
  ctx.set_deterministic(true);
  std::vector<Tensor> sources;
  std::vector<Tensor> devices;
  Views views;
  for (const Operand& operand : operands_) {
    if (!operand.present) {
      sources.emplace_back();
      devices.emplace_back();
      views.emplace_back();
      continue;
    }
    const CView value = operand.value.view();
    const Dim first = offset_of(operand, offset);
    sources.push_back(guarded(operand, first));
    devices.emplace_back(Device::cuda, value.dtype(), sources.back().view().shape());
    copy(ctx, sources.back().view(), devices.back().view());
    views.push_back(devices.back().view().slice(first, value.numel()).reshaped(value.shape()));
  }
  call(ctx, views);
  std::vector<Tensor> out;
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    out.emplace_back();
    if (!operands_[i].present) continue;
    const CView before = operands_[i].value.view();
    const Dim first = offset_of(operands_[i], offset);
    Tensor after(Device::cpu, before.dtype(), sources[i].view().shape());
    copy(ctx, devices[i].view(), after.view());
    synchronize(ctx);
    const Dim count = before.numel();
    EXPECT_TRUE(same_bits(after.view().slice(0, first), sources[i].view().slice(0, first)))
        << "operand " << i << ": written before its begin";
    EXPECT_TRUE(same_bits(after.view().slice(first + count, kGuard),
                          sources[i].view().slice(first + count, kGuard)))
        << "operand " << i << ": written after its end";
    out.back() = Tensor(Device::cpu, before.dtype(), before.shape());
    if (before.bytes() == 0) continue;
    std::memcpy(out.back().view().raw(), after.view().slice(first, count).raw(), before.bytes());
  }
  return out;
}

inline std::vector<Tensor> Problem::on_oracle(const Call& call) const {
  Context ctx(Device::cpu, planned_workspace(call, Device::cpu, true));
  std::vector<Tensor> out;
  Views views;
  for (const Operand& operand : operands_) {
    if (!operand.present) {
      out.emplace_back();
      views.emplace_back();
      continue;
    }
    const CView value = operand.value.view();
    if (!operand.fixed && is_floating(value.dtype())) {
      out.push_back(tensor_of(DType::f64, value.shape(), to_doubles(value)));
    } else {
      out.push_back(operand.value.clone());
    }
    views.push_back(out.back().view());
  }
  call(ctx, views);
  return out;
}

inline void Problem::expect_close_to(const std::vector<Tensor>& oracle,
                                     const std::vector<Tensor>& found, const std::string& what,
                                     double slack) const {
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    if (!operands_[i].compared || oracle[i].view().numel() == 0) continue;
    const DType dtype = found[i].view().dtype();
    const double expected = slack * std::max(tolerance(dtype), tolerance(compute_));
    EXPECT_LE(relative_difference(found[i].view(), oracle[i].view(), operands_[i].floor), expected)
        << what << " in " << name_of(compute_) << ", operand " << i << " "
        << oracle[i].view().shape().str();
  }
}

inline void Problem::expect_match(const Call& call, const std::string& what, double slack) const {
  const auto oracle = on_oracle(call);
  const auto first = on_gpu(call);
  const auto second = on_gpu(call);
  const auto misaligned = on_gpu(call, 1);
  expect_close_to(oracle, first, what, slack);
  expect_close_to(oracle, misaligned, what + ", misaligned", slack);
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    if (!operands_[i].compared) continue;
    EXPECT_TRUE(same_bits(first[i].view(), second[i].view()))
        << what << " in " << name_of(compute_) << ", operand " << i << ": two runs differ";
  }
}

}  // namespace hyperslab::test
