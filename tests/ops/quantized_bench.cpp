// SPDX-License-Identifier: Apache-2.0
// quantized_bench [repetitions]: times products with quantized weights on the CPU beside oneDNN's
// int8 products, linear_forward and OpenBLAS in f32, for the matrices of GPT-2 124M.

#include <cblas.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "cpu/quantized_linear.hpp"
#include "hyperslab/ops/matmul.hpp"
#include "support/tensors.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

/// The fewest microseconds of a call: the machine may be shared.
double microseconds(int repetitions, const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  for (int i = 0; i < 3; ++i) call();
  double fewest = 1e30;
  for (int i = 0; i < repetitions; ++i) {
    const auto begin = Clock::now();
    call();
    const std::chrono::duration<double, std::micro> time = Clock::now() - begin;
    fewest = std::min(fewest, time.count());
  }
  return fewest;
}

/// A quantized matrix and the memory that it lies in.
struct Stored {
  Stored(WeightFormat format, Dim group, Dim M, Dim K)
      : codes(Device::cpu, DType::u8, {M, format == WeightFormat::int8 ? K : K / 2}),
        scales(Device::cpu, format == WeightFormat::int8 ? DType::f32 : DType::f16,
               {M * (K / group)}),
        matrix{format, group, {M, K}, codes.view(), scales.view(), {}} {}
  Tensor codes;
  Tensor scales;
  QuantizedMatrix matrix;
};

/// oneDNN's product of int8 rows with packed int8 weights, to f32. `source` is s8 or u8.
class Peer {
 public:
  Peer(dnnl::memory::data_type source, Dim rows, Dim M, Dim K) {
    using dnnl::memory;
    using Type = memory::data_type;
    using Tag = memory::format_tag;
    const memory::desc x({rows, K}, source, Tag::ab);
    const memory::desc weights({K, M}, Type::s8, Tag::any);
    const memory::desc y({rows, M}, Type::f32, Tag::ab);
    dnnl::primitive_attr attributes;
    attributes.set_output_scales(2, std::vector<float>(static_cast<std::size_t>(M), 0.01F));
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(x, weights, y), attributes,
                                                   engine_);
    product_ = dnnl::matmul(description);
    arguments_ = {{DNNL_ARG_SRC, filled(x)},
                  {DNNL_ARG_WEIGHTS, filled(description.weights_desc())},
                  {DNNL_ARG_DST, filled(y)}};
  }
  void run() {
    product_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  [[nodiscard]] dnnl::memory filled(const dnnl::memory::desc& description) const {
    dnnl::memory out(description, engine_);
    std::fill_n(static_cast<unsigned char*>(out.get_data_handle()), description.get_size(), 1);
    return out;
  }
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::matmul product_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

/// One matrix and number of rows.
class Case {
 public:
  Case(Context& ctx, int repetitions, Dim rows, Dim M, Dim K)
      : ctx_(ctx),
        repetitions_(repetitions),
        x_(random_tensor(DType::f32, {rows, K}, 1)),
        weight_(random_tensor(DType::f32, {M, K}, 2)),
        y_(Device::cpu, DType::f32, {rows, M}) {}

  void print() {
    const Dim rows = x_.view().shape()[0];
    const auto [M, K] = weight_.view().dims<2>("weight");
    std::printf("%4ld %6ld %5ld", static_cast<long>(rows), static_cast<long>(M),
                static_cast<long>(K));
    const double f32 = microseconds(
        repetitions_, [&] { linear_forward(ctx_, x_.view(), weight_.view(), {}, y_.view()); });
    const double blas = rows == 1 ? matrix_vector() : f32;
    std::printf(" %9.1f %9.1f |", f32, blas);
    double best = 0;
    for (const InstructionSet set :
         {InstructionSet::avx2, InstructionSet::avx512_vnni, InstructionSet::amx}) {
      best = cpu::has(set) ? int8(set) : 0;
      std::printf(" %8.1f", best);
    }
    const double none = widened(WeightFormat::int8, K, ActivationFormat::none);
    std::printf(" | %9.1f %9.1f |", none, widened(WeightFormat::int4, 64, ActivationFormat::none));
    const double ours = widened(WeightFormat::int8, K, ActivationFormat::dynamic_int8);
    const double s8 = peer(dnnl::memory::data_type::s8);
    const double u8 = peer(dnnl::memory::data_type::u8);
    std::printf(" %8.1f %8.1f | %6.2f %6.2f\n", s8, u8, std::min(f32, blas) / ours,
                std::min(s8, u8) / ours);
  }

 private:
  using InstructionSet = cpu::InstructionSet;

  double matrix_vector() {
    const auto [M, K] = weight_.view().dims<2>("weight");
    return microseconds(repetitions_, [&, M = M, K = K] {
      cblas_sgemv(CblasRowMajor, CblasNoTrans, static_cast<blasint>(M), static_cast<blasint>(K),
                  1.0F, weight_.view().data<float>(), static_cast<blasint>(K),
                  x_.view().data<float>(), 1, 0.0F, y_.view().data<float>(), 1);
    });
  }
  double int8(InstructionSet set) {
    const auto [M, K] = weight_.view().dims<2>("weight");
    const Stored stored(WeightFormat::int8, K, M, K);
    quantize(ctx_, weight_.view(), stored.matrix);
    return microseconds(repetitions_, [&] {
      cpu::int8_linear(ctx_, set, {x_.view(), as_const(stored.matrix), {}, y_.view()});
    });
  }
  double widened(WeightFormat format, Dim group, ActivationFormat activations) {
    const auto [M, K] = weight_.view().dims<2>("weight");
    const Stored stored(format, group, M, K);
    quantize(ctx_, weight_.view(), stored.matrix);
    return microseconds(repetitions_, [&] {
      quantized_linear_forward(ctx_, x_.view(), as_const(stored.matrix), {}, activations,
                               y_.view());
    });
  }
  double peer(dnnl::memory::data_type source) {
    const auto [M, K] = weight_.view().dims<2>("weight");
    Peer peer(source, x_.view().shape()[0], M, K);
    return microseconds(repetitions_, [&] { peer.run(); });
  }

  Context& ctx_;
  int repetitions_;
  Tensor x_;
  Tensor weight_;
  Tensor y_;
};

void print_table(int repetitions) {
  Context ctx(Device::cpu, std::size_t{64} << 20U);
  std::printf(
      "microseconds, fewest of %d calls, %d threads; int8: rows are rounded in the call, oneDNN "
      "is\n"
      "given int8 rows and weights that it packed before. Ratios are of the faster of each two.\n"
      "rows      M     K   f32 own  f32 BLAS |     AVX2     VNNI      AMX | int8 none int4 none |"
      "  dnn s8   dnn u8 | f32/i8 dnn/i8\n",
      repetitions, ctx.threads());
  for (const Dim rows : {1, 16, 256}) {
    for (const auto& [M, K] :
         {std::pair<Dim, Dim>{768, 768}, {2304, 768}, {3072, 768}, {768, 3072}, {50304, 768}}) {
      const bool large = M * rows > 1'000'000;
      Case(ctx, std::max(large ? repetitions / 10 : repetitions, 3), rows, M, K).print();
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace hyperslab::ops

int main(int argc, char** argv) {
  hyperslab::ops::print_table(argc > 1 ? std::atoi(argv[1]) : 100);
  return 0;
}
