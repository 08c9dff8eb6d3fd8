// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "hyperslab/core/transfer.hpp"
#include "ops/ops_test.hpp"

namespace hyperslab::test {

/// Cases that run on every device that is here: the CPU, and a GPU if there is one. With
/// HYPERSLAB_REQUIRE_GPU=1 it is a failure if there is none.
class DevicesTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* required = std::getenv("HYPERSLAB_REQUIRE_GPU");
    if (required != nullptr && std::string_view(required) == "1" && cuda_device_count() == 0) {
      FAIL() << "HYPERSLAB_REQUIRE_GPU=1, and there is no GPU";
    }
  }
};

/// The dtypes that numbers are stored in.
inline const std::vector<DType> kStoredTypes = {DType::f32, DType::bf16, DType::f16};

/// Those that a device here computes in: GPUs in all, CPUs in f32 and bf16.
[[nodiscard]] inline std::vector<DType> compute_types() {
  if (cuda_device_count() > 0) return kStoredTypes;
  return {DType::f32, DType::bf16};
}

[[nodiscard]] inline bool is_floating(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
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

using Views = std::vector<View>;
using Results = std::vector<Tensor>;

/// One call of an op: its operands in the dtypes that devices compute in. It runs on a device, with
/// the workspace that a plan on `meta` found, and in double on the CPU from the same numbers. If it
/// takes a workspace on a CPU, it takes no less than that.
class Problem {
 public:
  using Views = test::Views;
  using Call = std::function<void(Context&, const Views&)>;

  static constexpr double kFloor = 1e-30;
  static inline bool with_cpu = true;  ///< false in tests of what GPUs alone have

  explicit Problem(DType compute) : compute_(compute) {}

  Problem& input(Tensor value) { return append({std::move(value), false, false, true}); }
  Problem& output(DType dtype, const Shape& shape) { return in_out(poisoned(dtype, shape)); }
  /// `floor`: differences are relative to at least this magnitude, for results that cancel to zero.
  Problem& in_out(Tensor value, double floor = kFloor) {
    return append({std::move(value), true, false, true, floor});
  }
  /// An operand that keeps its dtype for the oracle: tokens, positions, structs, tables in f32.
  Problem& fixed(Tensor value) { return append({std::move(value), false, true, true}); }
  Problem& fixed_output(Tensor value) { return append({std::move(value), true, true, true}); }
  Problem& absent() { return append({Tensor(), false, true, false}); }

  /// For what one device alone has, and for sizes that are about its kernels.
  Problem& only_on(Device device) {
    only_ = device;
    return *this;
  }

  /// Those that are here and compute in the problem's dtype.
  [[nodiscard]] std::vector<Device> devices() const;
  /// The operands after the call on a device. Floating operands begin `offset` elements after a
  /// 256-byte boundary. Fails if something beside an operand was written.
  [[nodiscard]] Results on(Device device, const Call& call, Dim offset = 0) const {
    return run(device, false, call, offset);
  }
  [[nodiscard]] Results on_gpu(const Call& call, Dim offset = 0) const {
    return on(Device::cuda, call, offset);
  }
  /// Calls check(operands) with those after the call on every device, at every offset.
  template <class Check>
  void on_each(const Call& call, const Check& check,
               const std::vector<Dim>& offsets = {0, 1}) const {
    for (const Device device : devices()) {
      for (const Dim offset : offsets) {
        SCOPED_TRACE(where(device) + ", offset " + std::to_string(offset));
        check(on(device, call, offset));
      }
    }
  }
  /// The operands after the call in double.
  [[nodiscard]] Results on_oracle(const Call& call) const {
    return run(Device::cpu, true, call, 0);
  }
  /// EXPECTs the outputs on every device to match the oracle's, aligned and not, and two runs to
  /// give the same bits. The tolerance is that of the compute dtype or the result's, whichever is
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
  [[nodiscard]] std::string where(Device device) const {
    return std::string(name_of(compute_)) + " on " + std::string(name_of(device));
  }
  /// The dtype in which an operand lies on a device.
  [[nodiscard]] static DType dtype_of(const Operand& operand, bool in_double) {
    const DType dtype = operand.value.view().dtype();
    return in_double && !operand.fixed && is_floating(dtype) ? DType::f64 : dtype;
  }
  /// The operand between guards, flat.
  [[nodiscard]] static Tensor guarded(const Operand& operand, DType dtype, Dim offset);
  /// The operand out of its guards, which must be as they were.
  [[nodiscard]] static Tensor unguarded(CView after, CView before, const Shape& shape);
  [[nodiscard]] std::size_t planned_workspace(const Call& call, Device device,
                                              bool in_double) const;
  [[nodiscard]] Results run(Device device, bool in_double, const Call& call, Dim offset) const;
  void expect_close_to(const Results& oracle, const Results& found, const std::string& what,
                       double slack) const;

  DType compute_;
  std::optional<Device> only_;
  std::vector<Operand> operands_;
};

inline std::vector<Device> Problem::devices() const {
  std::vector<Device> here;
  if (with_cpu && compute_ != DType::f16) here.push_back(Device::cpu);
  if (cuda_device_count() > 0) here.push_back(Device::cuda);
  std::erase_if(here, [&](Device device) { return only_.value_or(device) != device; });
  return here;
}

inline Tensor Problem::guarded(const Operand& operand, DType dtype, Dim offset) {
  const CView value = operand.value.view();
  const Dim count = value.numel();
  Tensor out(Device::cpu, dtype, {offset + count + kGuard});
  const auto put = [&](Dim first, CView view) {
    if (view.bytes() == 0) return;
    std::memcpy(out.view().slice(first, view.numel()).raw(), view.raw(), view.bytes());
  };
  const double guard = is_floating(dtype) ? 77.0 : 7.0;
  put(0, filled_tensor(dtype, {offset}, guard).view());
  put(offset, dtype == value.dtype() ? value : CView(converted(value, dtype).view()));
  put(offset + count, filled_tensor(dtype, {kGuard}, guard).view());
  return out;
}

inline Tensor Problem::unguarded(CView after, CView before, const Shape& shape) {
  const Dim count = shape.numel();
  const Dim first = before.numel() - kGuard - count;
  EXPECT_TRUE(same_bits(after.slice(0, first), before.slice(0, first)))
      << "written before its begin";
  EXPECT_TRUE(same_bits(after.slice(first + count, kGuard), before.slice(first + count, kGuard)))
      << "written after its end";
  Tensor out(Device::cpu, before.dtype(), shape);
  const CView inside = after.slice(first, count);
  if (inside.bytes() > 0) std::memcpy(out.view().raw(), inside.raw(), inside.bytes());
  return out;
}

inline std::size_t Problem::planned_workspace(const Call& call, Device device,
                                              bool in_double) const {
  Context meta(Device::meta, 0, device);
  meta.set_deterministic(device == Device::cuda);
  Views views;
  for (const Operand& operand : operands_) {
    views.emplace_back();
    if (!operand.present) continue;
    views.back() =
        View(nullptr, dtype_of(operand, in_double), Device::meta, operand.value.view().shape());
  }
  call(meta, views);
  return meta.workspace_high_water();
}

inline Results Problem::run(Device device, bool in_double, const Call& call, Dim offset) const {
  const std::size_t planned = planned_workspace(call, device, in_double);
  Context ctx(device, planned);
  ctx.set_deterministic(device == Device::cuda);  // CPUs repeat their bits without
  std::vector<Tensor> sources(operands_.size());
  std::vector<Tensor> tensors(operands_.size());
  Views views;
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    const Operand& operand = operands_[i];
    views.emplace_back();
    if (!operand.present) continue;
    const CView value = operand.value.view();
    const Dim first = operand.fixed ? 0 : offset;
    sources[i] = guarded(operand, dtype_of(operand, in_double), first);
    tensors[i] = Tensor(device, sources[i].view().dtype(), sources[i].view().shape());
    copy(ctx, sources[i].view(), tensors[i].view());
    views.back() = tensors[i].view().slice(first, value.numel()).reshaped(value.shape());
  }
  call(ctx, views);
  if (device == Device::cpu && ctx.workspace_high_water() > 0) {
    EXPECT_EQ(ctx.workspace_high_water(), planned);
  }
  std::vector<Tensor> out(operands_.size());
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    if (!operands_[i].present) continue;
    SCOPED_TRACE("operand " + std::to_string(i) + " on " + std::string(name_of(device)));
    Tensor after(Device::cpu, sources[i].view().dtype(), sources[i].view().shape());
    copy(ctx, tensors[i].view(), after.view());
    synchronize(ctx);
    out[i] = unguarded(after.view(), sources[i].view(), operands_[i].value.view().shape());
  }
  return out;
}

inline void Problem::expect_close_to(const Results& oracle, const Results& found,
                                     const std::string& what, double slack) const {
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    if (!operands_[i].compared || oracle[i].view().numel() == 0) continue;
    const DType dtype = found[i].view().dtype();
    const double expected = slack * std::max(tolerance(dtype), tolerance(compute_));
    EXPECT_LE(relative_difference(found[i].view(), oracle[i].view(), operands_[i].floor), expected)
        << what << ", operand " << i << " " << oracle[i].view().shape().str();
  }
}

inline void Problem::expect_match(const Call& call, const std::string& what, double slack) const {
  if (devices().empty()) return;
  const auto oracle = on_oracle(call);
  for (const Device device : devices()) {
    const std::string here = what + " in " + where(device);
    const auto first = on(device, call);
    const auto second = on(device, call);
    expect_close_to(oracle, first, here, slack);
    expect_close_to(oracle, on(device, call, 1), here + ", misaligned", slack);
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      if (!operands_[i].compared) continue;
      EXPECT_TRUE(same_bits(first[i].view(), second[i].view()))
          << here << ", operand " << i << ": two runs differ";
    }
  }
}

}  // namespace hyperslab::test
