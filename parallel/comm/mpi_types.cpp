// SPDX-License-Identifier: Apache-2.0
#include "mpi_types.hpp"

#include <bit>
#include <cstdint>

#include "mpi_check.hpp"

namespace hyperslab::comm {
namespace {

// The conversions of core/dtype without branches, so that the loops below vectorize.
struct Bf16 {
  static float widen(std::uint16_t half) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
  }
  static std::uint16_t narrow(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
    const std::uint32_t nan = (bits >> 16) | 0x40U;
    return static_cast<std::uint16_t>((bits & 0x7FFFFFFFU) > 0x7F800000U ? nan : rounded);
  }
};

struct F16 {
  static float widen(std::uint16_t half) {
    const std::uint32_t magnitude = half & 0x7FFFU;
    const std::uint32_t sign = (half & 0x8000U) << 16;
    // Subnormals become right by the scaling; infinity and NaN need the full exponent.
    const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
    const std::uint32_t special = magnitude >= 0x7C00U ? 0x7F800000U : 0U;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special | sign);
  }
  static std::uint16_t narrow(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000U;
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    const std::uint32_t normal =
        (magnitude + 0xFFFU + ((magnitude >> 13) & 1U) - 0x38000000U) >> 13;
    const std::uint32_t subnormal =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U;
    std::uint32_t half = magnitude < 0x38800000U ? subnormal : normal;
    half = magnitude >= 0x477FF000U ? 0x7C00U : half;
    half = magnitude > 0x7F800000U ? 0x7E00U : half;
    return static_cast<std::uint16_t>(sign | half);
  }
};

template <class BackwardPart, ReduceOp op>
void combine(void* in, void* inout, int* count, MPI_Datatype* /*type*/) {
  const auto* __restrict a = static_cast<const std::uint16_t*>(in);
  auto* __restrict b = static_cast<std::uint16_t*>(inout);
  const int n = *count;
  for (int i = 0; i < n; ++i) {
    const float x = BackwardPart::widen(a[i]);
    const float y = BackwardPart::widen(b[i]);
    b[i] = op == ReduceOp::sum ? BackwardPart::narrow(x + y) : (x > y ? a[i] : b[i]);
  }
}

constexpr const char* kOwner = "datatypes";

MPI_Datatype make_half(const char* name) {
  MPI_Datatype type = MPI_DATATYPE_NULL;
  HS_MPI(kOwner, MPI_Type_contiguous(2, MPI_BYTE, &type));
  HS_MPI(kOwner, MPI_Type_commit(&type));
  HS_MPI(kOwner, MPI_Type_set_name(type, name));
  return type;
}

template <class BackwardPart>
std::array<MPI_Op, 2> make_ops() {
  std::array<MPI_Op, 2> ops{MPI_OP_NULL, MPI_OP_NULL};
  constexpr int kCommutes = 1;
  HS_MPI(kOwner, MPI_Op_create(&combine<BackwardPart, ReduceOp::sum>, kCommutes, &ops[0]));
  HS_MPI(kOwner, MPI_Op_create(&combine<BackwardPart, ReduceOp::max>, kCommutes, &ops[1]));
  return ops;
}

}  // namespace

MpiTypes::MpiTypes()
    : bf16_(make_half("bf16")),
      f16_(make_half("f16")),
      bf16_ops_(make_ops<Bf16>()),
      f16_ops_(make_ops<F16>()) {}

MpiTypes::~MpiTypes() {
  if (!may_free_mpi_handles()) return;
  for (MPI_Op& op : bf16_ops_) MPI_Op_free(&op);
  for (MPI_Op& op : f16_ops_) MPI_Op_free(&op);
  MPI_Type_free(&bf16_);
  MPI_Type_free(&f16_);
}

MPI_Datatype MpiTypes::type(DType dtype) const {
  switch (dtype) {
    case DType::f64: return MPI_DOUBLE;
    case DType::f32: return MPI_FLOAT;
    case DType::bf16: return bf16_;
    case DType::f16: return f16_;
    case DType::i64: return MPI_INT64_T;
    case DType::i32: return MPI_INT32_T;
    case DType::u16: return MPI_UINT16_T;
    case DType::u8: return MPI_UINT8_T;
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op MpiTypes::op(DType dtype, ReduceOp op) const {
  if (dtype == DType::bf16) return bf16_ops_[static_cast<std::size_t>(op)];
  if (dtype == DType::f16) return f16_ops_[static_cast<std::size_t>(op)];
  return op == ReduceOp::sum ? MPI_SUM : MPI_MAX;
}

}  // namespace hyperslab::comm
