// SPDX-License-Identifier: Apache-2.0
// Every kernel of products of experts' rows on a GPU, against the CPU's. What of a matrix no expert
// has holds NaNs.
#include "cuda/experts/product_table.hpp"
#include "devices/experts_problem.hpp"
#include "gpu/gpu_test.hpp"
#include "hyperslab/core/graph.hpp"

namespace hyperslab::ops {
namespace {

using namespace hyperslab::test;
using namespace hyperslab::ops::test;

class GpuExperts : public GpuTest {};

/// Counts which rows of a table were launched.
template <class Table>
class Launches {
 public:
  explicit Launches(const Table& table) : table_(table), launched_(table.size()) {}
  [[nodiscard]] bool suits(std::size_t row, const cuda::ExpertsProblem& problem) const {
    return cuda::reason_against(table_.at(row), problem, cuda::features_of_kernels()).empty();
  }
  /// Enqueues the kernel of a row on a GPU; false elsewhere, and if it does not suit views that
  /// begin anywhere.
  template <class... Operands>
  bool launch(std::size_t row, const cuda::ExpertsProblem& problem, Context& ctx,
              const Operands&... operands) {
    if (ctx.device() != Device::cuda || !suits(row, problem)) return false;
    ++launched_[row];
    table_.at(row).launch(ctx, operands...);
    return true;
  }
  /// A kernel that this GPU has and that no problem took is not tested.
  void expect_all() const {
    for (std::size_t row = 0; row < launched_.size(); ++row) {
      if (!cuda::features_of_kernels().has(table_.at(row).needs)) continue;
      EXPECT_GT(launched_[row], 0) << table_.at(row).name;
    }
  }

 private:
  const Table& table_;
  std::vector<int> launched_;
};

/// Widths that end a tile or do not, and for each product one with enough tiles for the widest.
std::vector<ExpertsCase> cases() {
  std::vector<ExpertsCase> out;
  for (const std::vector<std::int32_t>& rows : rows_of_experts()) {
    for (const auto& [in, out_width] : std::vector<std::array<Dim, 2>>{
             {64, 64}, {8, 8}, {320, 200}, {136, 264}, {24, 392}, {13, 24}}) {
      out.push_back({rows, in, out_width, 9});
    }
  }
  const std::vector<std::int32_t> rows = {700, 0, 513, 1, 430, 256};
  out.push_back({rows, 72, 2056, 64});
  out.push_back({rows, 2056, 72, 64});
  out.push_back({{30, 0, 65}, 1544, 1032});
  return out;
}

/// The kernels of one product, for every operand whose rows may be gathered.
template <class Table>
void expect_products(const Table& table, const auto& expect, const auto& problem_of) {
  Launches launches(table);
  for (const DType dtype : kGpuTypes) {
    for (const ExpertsCase& sizes : cases()) {
      // They take long on the CPU.
      if (std::max(sizes.in, sizes.out) > 1000 && dtype != DType::bf16) continue;
      for (const auto gathers : {cuda::Gathers::none, cuda::Gathers::left, cuda::Gathers::right}) {
        cuda::ExpertsProblem problem = problem_of(sizes, dtype);
        problem.gathers = gathers;
        for (std::size_t row = 0; row < table.size(); ++row) {
          if (launches.suits(row, problem)) expect(sizes, dtype, row, gathers, launches);
        }
      }
    }
  }
  launches.expect_all();
}

cuda::ExpertsProblem problem_of(const ExpertsCase& sizes, DType dtype, Dim depth, Dim columns) {
  return {sizes.experts(), sizes.all(), depth, columns, dtype, true};
}

/// Calls op with the rows as they are, or on a GPU with gathered ones.
template <class Op>
void with_rows(Context& ctx, const ExpertsCase& sizes, CView rows, bool gathered, const Op& op) {
  if (!gathered || ctx.device() != Device::cuda) return op(GatheredRows(rows));
  GatheredCopy copy(ctx, rows, sizes.used());
  op(copy.rows());
}

TEST_F(GpuExperts, EveryKernelOfForwardMatchesTheOracle) {
  expect_products(
      cuda::kExpertsForward,
      [](const ExpertsCase& sizes, DType dtype, std::size_t row, cuda::Gathers gathers,
         auto& launches) {
        expect_forward(
            sizes, dtype,
            [&](Context& ctx, CView x, CView w, CView first, View y) {
              with_rows(ctx, sizes, x, gathers == cuda::Gathers::left, [&](const auto& rows) {
                const auto problem = cuda::experts_problem(first, rows, sizes.out, w, y);
                if (launches.launch(row, problem, ctx, rows, w, first, y)) return;
                experts_forward(ctx, rows, w, first, y);
              });
            },
            std::string(cuda::kExpertsForward.at(row).name));
      },
      [](const ExpertsCase& sizes, DType dtype) {
        return problem_of(sizes, dtype, sizes.in, sizes.out);
      });
}

TEST_F(GpuExperts, EveryKernelOfInputsGradientsMatchesTheOracle) {
  expect_products(
      cuda::kExpertsBackwardInput,
      [](const ExpertsCase& sizes, DType dtype, std::size_t row, cuda::Gathers gathers,
         auto& launches) {
        expect_backward_input(
            sizes, dtype,
            [&](Context& ctx, CView dy, CView w, CView first, View dx) {
              with_rows(ctx, sizes, dy, gathers == cuda::Gathers::left, [&](const auto& rows) {
                const auto problem = cuda::experts_problem(first, rows, sizes.in, w, dx);
                if (launches.launch(row, problem, ctx, rows, w, first, dx)) return;
                experts_backward_input(ctx, rows, w, first, dx);
              });
            },
            std::string(cuda::kExpertsBackwardInput.at(row).name));
      },
      [](const ExpertsCase& sizes, DType dtype) {
        return problem_of(sizes, dtype, sizes.out, sizes.in);
      });
}

TEST_F(GpuExperts, EveryKernelOfWeightsGradientsMatchesTheOracle) {
  expect_products(
      cuda::kExpertsBackwardWeight,
      [](const ExpertsCase& sizes, DType dtype, std::size_t row, cuda::Gathers gathers,
         auto& launches) {
        const auto product = [&](Context& ctx, const GatheredRows& dy, const GatheredRows& x,
                                 CView first, Accumulate accumulate, View dw) {
          const auto problem = cuda::weights_problem(first, dy, x, dw);
          if (launches.launch(row, problem, ctx, dy, x, first, accumulate, dw)) return;
          experts_backward_weight(ctx, dy, x, first, accumulate, dw);
        };
        expect_backward_weight(
            sizes, dtype,
            [&](Context& ctx, CView dy, CView x, CView first, Accumulate accumulate, View dw) {
              with_rows(ctx, sizes, dy, gathers == cuda::Gathers::left, [&](const auto& dys) {
                with_rows(ctx, sizes, x, gathers == cuda::Gathers::right,
                          [&](const auto& xs) { product(ctx, dys, xs, first, accumulate, dw); });
              });
            },
            std::string(cuda::kExpertsBackwardWeight.at(row).name));
      },
      [](const ExpertsCase& sizes, DType dtype) {
        return problem_of(sizes, dtype, sizes.out, sizes.in);
      });
}

/// Tokens on their way to experts, by logits that change between calls.
class WayToExperts {
 public:
  explicit WayToExperts(const RouterRule& rule)
      : rule_(rule), logits_(Device::cuda, DType::f32, {kTokens, rule.count}) {
    copy(ctx_, random_tensor(DType::bf16, {kTokens, kWidth}, 1).view(), x_.view());
    copy(ctx_, random_tensor(DType::bf16, {rule.count * kWidth, kWidth}, 2, 0.1).view(),
         matrices_.view());
    synchronize(ctx_);
  }
  /// The rows of products after a call with other logits.
  Tensor run(std::uint64_t seed, GraphSegment& segment, bool as_graph) {
    const Tensor logits = random_tensor(DType::f32, logits_.view().shape(), seed);
    copy(ctx_, logits.view(), logits_.view());
    segment.run(ctx_, as_graph, [this] { enqueue(); });
    Tensor out(Device::cpu, DType::bf16, products_.view().shape());
    copy(ctx_, products_.view(), out.view());
    synchronize(ctx_);
    return out;
  }

 private:
  static constexpr Dim kTokens = 300;
  static constexpr Dim kActive = 2;
  static constexpr Dim kWidth = 128;
  static constexpr Dim kMost = 16;  // experts
  static Tensor ints(const Shape& shape) { return {Device::cuda, DType::i32, shape}; }
  static Tensor rows() { return {Device::cuda, DType::bf16, {kTokens * kActive, kWidth}}; }

  void enqueue() {
    route(ctx_, rule_, logits_.view(), {}, chosen_.view(), weights_.view());
    sort_by_expert(ctx_, chosen_.view(), 0, first_rows_.view(), pairs_.view(), places_.view());
    GatheredRows rows(x_.view());
    rows.pairs = pairs_.view();
    rows.divisor = kActive;
    rows.room = values_.view();
    experts_forward(ctx_, rows, matrices_.view(), first_rows_.view(), products_.view());
  }

  Context ctx_{Device::cuda, std::size_t{1} << 20};
  RouterRule rule_;
  Tensor logits_;
  Tensor x_{Device::cuda, DType::bf16, {kTokens, kWidth}};
  Tensor matrices_{Device::cuda, DType::bf16, {kMost * kWidth, kWidth}};
  Tensor weights_{Device::cuda, DType::f32, {kTokens, kActive}};
  Tensor chosen_ = ints({kTokens, kActive});
  Tensor first_rows_ = ints({kMost + 1});
  Tensor pairs_ = ints({kTokens * kActive});
  Tensor places_ = ints({kTokens, kActive});
  Tensor values_ = rows();
  Tensor products_ = rows();
};

/// A graph holds no counts of rows: another choice of experts gives other products.
TEST_F(GpuExperts, GraphsFollowTheRouter) {
  WayToExperts way({.count = 16, .active = 2});
  GraphSegment graph;
  GraphSegment eager;
  Tensor before;
  for (const std::uint64_t seed : {3, 4, 5, 6}) {
    const Tensor replayed = way.run(seed, graph, true);
    EXPECT_TRUE(same_bits(replayed.view(), way.run(seed, eager, false).view())) << seed;
    if (seed > 3) {
      EXPECT_FALSE(same_bits(replayed.view(), before.view())) << seed;
    }
    before = replayed.clone();
  }
}

}  // namespace
}  // namespace hyperslab::ops
