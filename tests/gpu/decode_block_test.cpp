// SPDX-License-Identifier: Apache-2.0
// A transformer block in one kernel against its ops, one by one, in double.
#include "hyperslab/ops/decode_block.hpp"

#include "gpu/gpu_test.hpp"
#include "hyperslab/ops/elementwise.hpp"
#include "support/rope_frequencies.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;

class GpuDecodeBlock : public GpuTest {};

struct Case {
  Dim C, F;
  HeadLayout heads;
  Activation activation;
  NormKind norm;
  bool bias;
  Dim half;  // 0: no rope
  Dim past, room;
  bool delta = true;
  bool sinks = false;
  Dim window = 0;
};

const std::vector<Case> kCases = {
    // A token that follows none, and the first block of a model.
    {256, 704, {4, 4, 64}, Activation::swiglu, NormKind::rmsnorm, false, 32, 0, 3, false},
    {512, 1536, {8, 2, 64}, Activation::swiglu, NormKind::rmsnorm, false, 32, 130, 3},
    // Widths that end within a piece and a tile; more tiles than blocks; splits without keys.
    {520, 2400, {4, 1, 128}, Activation::geglu, NormKind::rmsnorm, true, 64, 300, 700},
    {768, 3072, {12, 12, 64}, Activation::gelu_tanh, NormKind::layernorm, true, 0, 700, 5},
    {1024, 4608, {8, 2, 128}, Activation::swiglu, NormKind::rmsnorm, false, 64, 1500, 548},
    {512, 1040, {8, 8, 64}, Activation::relu_squared, NormKind::layernorm, false, 16, 65, 70},
    {512,
     1024,
     {4, 2, 128},
     Activation::swiglu,
     NormKind::rmsnorm,
     false,
     64,
     900,
     10,
     true,
     true,
     200},
    // More heads than there are multiprocessors.
    {512, 1024, {160, 32, 64}, Activation::gelu, NormKind::rmsnorm, true, 32, 40, 8}};

/// Numbers of the operands.
enum Operand : std::size_t {
  residual,
  delta,
  attention_sum,
  mlp_sum,
  qkv,
  activated,
  out,
  keys,
  values,
  norm1,
  norm1_bias,
  norm2,
  norm2_bias,
  position,
  cosines,
  sines,
  sinks,
  normed,
  mean,
  rstd,
  attended,
  pre,
  weights  ///< from here on: matrix, scales and bias of qkv, output, up and down
};

struct Format {
  std::optional<WeightFormat> codes;
  Dim group = 0;
};

Dim pre_width(const Case& size) { return is_gated(size.activation) ? 2 * size.F : size.F; }

std::vector<Shape> shapes_of(const Case& size) {
  const Dim attended_width = size.heads.heads * size.heads.head_width;
  return {{size.heads.packed_width(), size.C},
          {size.C, attended_width},
          {pre_width(size), size.C},
          {size.C, size.F}};
}

/// A matrix, its scales or none, and a bias or none.
void add_weights(Problem& problem, const Case& size, const Format& format, DType dtype,
                 std::uint64_t seed, const Shape& shape) {
  const double spread = 1 / std::sqrt(static_cast<double>(shape[1]));
  if (!format.codes) {
    problem.input(random_tensor(dtype, shape, seed, spread)).absent();
  } else {
    const bool is_int8 = *format.codes == WeightFormat::int8;
    const Dim group = is_int8 ? shape[1] : format.group;
    Tensor codes(Device::cpu, DType::u8, {shape[0], is_int8 ? shape[1] : shape[1] / 2});
    Tensor scales(Device::cpu, is_int8 ? DType::f32 : DType::f16, {shape[0], shape[1] / group});
    Context cpu(Device::cpu);
    const Tensor values = random_tensor(DType::f32, shape, seed, spread);
    quantize(cpu, values.view(), {*format.codes, group, shape, codes.view(), scales.view(), {}});
    problem.fixed(std::move(codes)).fixed(std::move(scales));
  }
  if (size.bias) {
    problem.input(random_tensor(dtype, {shape[0]}, seed + 1, 0.1));
  } else {
    problem.absent();
  }
}

BlockWeights weights_at(const Problem::Views& v, int layer, const Format& format,
                        const Shape& shape) {
  const std::size_t first = weights + 3 * static_cast<std::size_t>(layer);
  BlockWeights out;
  out.bias = v[first + 2];
  if (!format.codes) {
    out.weight = v[first];
  } else {
    const Dim group = *format.codes == WeightFormat::int8 ? shape[1] : format.group;
    out.codes = CQuantizedMatrix{*format.codes, group, shape, v[first], v[first + 1], {}};
  }
  return out;
}

void multiply(Context& ctx, CView x, const BlockWeights& by, View y) {
  if (!by.codes) return linear_forward(ctx, x, by.weight, by.bias, y);
  quantized_linear_forward(ctx, x, *by.codes, by.bias, ActivationFormat::none, y);
}

void normalize(Context& ctx, const BlockNorm& norm, CView x, CView added, View sum,
               const Problem::Views& v) {
  add_norm_forward(ctx, norm.kind, {x, added, norm.weight, norm.bias, norm.eps},
                   {added ? sum : View(), v[normed],
                    norm.kind == NormKind::layernorm ? v[mean] : View(), v[rstd]});
}

/// What decode_block_forward is documented to do.
void one_by_one(Context& ctx, const DecodeBlock& block, const DecodeStream& stream,
                const Problem::Views& v) {
  normalize(ctx, block.attention_norm, stream.residual, stream.delta, stream.attention_sum, v);
  multiply(ctx, v[normed], block.qkv, stream.qkv);
  attention_cached_forward(ctx, block.heads, block.scores, block.tables, stream.qkv, block.cache,
                           v[attended]);
  multiply(ctx, v[attended], block.output, stream.out);
  const CView sum = stream.delta ? CView(stream.attention_sum) : stream.residual;
  normalize(ctx, block.mlp_norm, sum, stream.out, stream.mlp_sum, v);
  multiply(ctx, v[normed], block.up, v[pre]);
  if (is_gated(block.activation)) {
    gated_forward(ctx, block.activation, v[pre], stream.activated);
  } else {
    activation_forward(ctx, block.activation, v[pre], stream.activated);
  }
  multiply(ctx, stream.activated, block.down, stream.out);
}

Problem problem_of(const Case& size, const Format& format, DType dtype) {
  const Shape stream = {1, 1, size.C};
  const Shape cache = {1, size.past + 1 + size.room, size.heads.kv_heads * size.heads.head_width};
  const Shape table = {size.past + 1 + size.room, std::max<Dim>(1, size.half)};
  const bool centered = size.norm == NormKind::layernorm;
  Problem problem(dtype);
  problem.input(random_tensor(dtype, stream, 1));
  if (size.delta) {
    problem.input(random_tensor(dtype, stream, 2)).output(dtype, stream);
  } else {
    problem.absent().absent();
  }
  problem.output(dtype, stream)
      .input(poisoned(dtype, {1, 1, size.heads.packed_width()}))
      .output(dtype, {1, 1, size.F})
      .output(dtype, stream)
      .in_out(random_tensor(dtype, cache, 3))
      .in_out(random_tensor(dtype, cache, 4));
  for (const std::uint64_t seed : {5, 7}) {
    problem.input(random_tensor(dtype, {size.C}, seed));
    if (centered) {
      problem.input(random_tensor(dtype, {size.C}, seed + 1));
    } else {
      problem.absent();
    }
  }
  problem.fixed(int_tensor({1}, {static_cast<std::int32_t>(size.past)}))
      .input(Tensor(Device::cpu, DType::f32, table))
      .input(Tensor(Device::cpu, DType::f32, table));
  if (size.sinks) {
    problem.input(random_tensor(dtype, {size.heads.heads}, 9));
  } else {
    problem.absent();
  }
  problem.input(poisoned(dtype, stream))
      .input(poisoned(DType::f32, {1, 1}))
      .input(poisoned(DType::f32, {1, 1}))
      .input(poisoned(dtype, {1, 1, size.heads.heads * size.heads.head_width}))
      .input(poisoned(dtype, {1, 1, pre_width(size)}));
  std::uint64_t seed = 11;
  for (const Shape& shape : shapes_of(size)) {
    add_weights(problem, size, format, dtype, seed, shape);
    seed += 2;
  }
  return problem;
}

DecodeBlock block_of(Context& ctx, const Case& size, const Format& format,
                     const Problem::Views& v) {
  const TokenPosition here = ctx.device() == Device::cuda ? TokenPosition(size.past, v[position])
                                                          : TokenPosition(size.past);
  const std::vector<Shape> shapes = shapes_of(size);
  DecodeBlock block;
  block.attention_norm = {size.norm, v[norm1], v[norm1_bias], 1e-5F};
  block.mlp_norm = {size.norm, v[norm2], v[norm2_bias], 1e-5F};
  block.heads = size.heads;
  block.scores = AttentionScores(AttentionMask{AttentionMask::Kind::causal, size.window});
  block.scores.sinks.logits = v[sinks];
  if (size.half > 0) {
    rope_table(ctx, rope_frequencies(1e4, size.half), 1, v[cosines], v[sines]);
    block.tables = {v[cosines], v[sines]};
  }
  block.cache = {v[keys], v[values], here};
  block.activation = size.activation;
  block.qkv = weights_at(v, 0, format, shapes[0]);
  block.output = weights_at(v, 1, format, shapes[1]);
  block.up = weights_at(v, 2, format, shapes[2]);
  block.down = weights_at(v, 3, format, shapes[3]);
  return block;
}

void expect_match(const Case& size, const Format& format, DType dtype, const std::string& what) {
  int at_once = 0;
  problem_of(size, format, dtype)
      .expect_match(
          [&](Context& ctx, const Problem::Views& v) {
            const DecodeBlock block = block_of(ctx, size, format, v);
            const DecodeStream stream = {
                v[residual], v[delta], v[attention_sum], v[mlp_sum], v[qkv], v[activated], v[out]};
            if (decode_block_forward(ctx, block, stream)) {
              EXPECT_EQ(ctx.device(), Device::cuda);
              ++at_once;
            } else {
              one_by_one(ctx, block, stream, v);
            }
          },
          what + " of width " + std::to_string(size.C) + " after " + std::to_string(size.past), 6);
  EXPECT_EQ(at_once, 2) << what << ": two of three runs have aligned operands";
}

TEST_F(GpuDecodeBlock, OfPlainWeights) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const Case& size : kCases) expect_match(size, {}, dtype, "plain");
  }
}

TEST_F(GpuDecodeBlock, OfCodes) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const Case& size : kCases) {
      if (size.C % 512 != 0 || size.F % 512 != 0) continue;  // scales that the copy engine takes
      expect_match(size, {WeightFormat::int8}, dtype, "int8");
      expect_match(size, {WeightFormat::int4, 64}, dtype, "int4");
    }
  }
}

/// As in a model whose layers share their memory: what enters is overwritten by mlp_sum, and delta
/// by the output.
TEST_F(GpuDecodeBlock, WritesOverWhatEntered) {
  const Case& size = kCases[1];
  const Problem apart = problem_of(size, {}, DType::bf16);
  const auto run = [&](bool over) {
    return apart.on_gpu([&](Context& ctx, const Problem::Views& v) {
      const View sum = over ? v[residual] : v[mlp_sum];
      const View end = over ? v[delta] : v[out];
      const DecodeBlock block = block_of(ctx, size, {}, v);
      const DecodeStream stream = {v[residual],  v[delta], v[attention_sum], sum, v[qkv],
                                   v[activated], end};
      if (ctx.device() == Device::meta) return one_by_one(ctx, block, stream, v);
      EXPECT_TRUE(decode_block_forward(ctx, block, stream));
    });
  };
  const auto expected = run(false);
  const auto found = run(true);
  EXPECT_TRUE(same_bits(found[residual].view(), expected[mlp_sum].view()));
  EXPECT_TRUE(same_bits(found[delta].view(), expected[out].view()));
}

/// What decode_block_forward returns on a GPU with operands that `change` spoils.
bool runs_with(const std::function<void(DecodeBlock&, DecodeStream&)>& change) {
  const Case& size = kCases[1];
  bool runs = false;
  (void)problem_of(size, {}, DType::bf16).on_gpu([&](Context& ctx, const Problem::Views& v) {
    DecodeBlock block = block_of(ctx, size, {}, v);
    DecodeStream stream = {v[residual],  v[delta], v[attention_sum], v[mlp_sum], v[qkv],
                           v[activated], v[out]};
    if (ctx.device() == Device::meta) return one_by_one(ctx, block, stream, v);
    change(block, stream);
    runs = decode_block_forward(ctx, block, stream);
  });
  return runs;
}

TEST_F(GpuDecodeBlock, RefusesWhatItCannotDo) {
  EXPECT_TRUE(runs_with([](DecodeBlock&, DecodeStream&) {}));
  EXPECT_FALSE(
      runs_with([](DecodeBlock& block, DecodeStream&) { block.mlp_norm.kind = NormKind::none; }));
  EXPECT_FALSE(runs_with([](DecodeBlock& block, DecodeStream&) {
    block.scores.mask.kind = AttentionMask::Kind::none;
  }));
  EXPECT_FALSE(
      runs_with([](DecodeBlock&, DecodeStream& stream) { stream.mlp_sum = stream.attention_sum; }));
  EXPECT_FALSE(runs_with([](DecodeBlock&, DecodeStream& stream) { stream.out = stream.mlp_sum; }));
  Context ctx(Device::cuda);
  const DecodeBlock block;
  const Tensor stream(Device::cuda, DType::f32, {1, 1, 64});
  DecodeStream through;
  through.residual = stream.view();
  EXPECT_FALSE(decode_block_forward(ctx, block, through)) << "f32";
}

/// Blocks without tiles arrive at barriers early: their warps are in no order.
TEST_F(GpuDecodeBlock, EndsAgainAndAgain) {
  const Case& size = kCases[0];
  (void)problem_of(size, {}, DType::bf16).on_gpu([&](Context& ctx, const Problem::Views& v) {
    const DecodeBlock block = block_of(ctx, size, {}, v);
    const DecodeStream stream = {v[residual],  v[delta], v[attention_sum], v[mlp_sum], v[qkv],
                                 v[activated], v[out]};
    if (ctx.device() == Device::meta) return one_by_one(ctx, block, stream, v);
    for (int i = 0; i < 3000; ++i) EXPECT_TRUE(decode_block_forward(ctx, block, stream));
    synchronize(ctx);
  });
}

}  // namespace
}  // namespace hyperslab::ops
