// SPDX-License-Identifier: Apache-2.0
// Movements of drawn tensors between drawn layouts, on the CPU: every rank finds what it would have
// if it gathered everything and took its part.
#include "hyperslab/layout/movement.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>

#include "movement_cases.hpp"
#include "support/allocations.hpp"
#include "support/mpi_world.hpp"
#include "support/refusal.hpp"
#include "support/tensors.hpp"

namespace hyperslab::test {
namespace {

using layout::flat;
using layout::Movement;
using layout::partial;
using layout::Step;

/// A view with guard bytes around it, all of them 0xa5; in 16 or 32 bits that is no number of the
/// tests.
class Guarded {
 public:
  Guarded(DType dtype, Dim elements)
      : memory_(Device::cpu, DType::u8, {elements * static_cast<Dim>(size_of(dtype)) + 2 * kGuard}),
        view_(memory_.view().data<std::uint8_t>() + kGuard, dtype, Device::cpu, {elements}) {
    std::memset(memory_.view().raw(), kByte, memory_.view().bytes());
  }
  [[nodiscard]] View view() const { return view_; }
  [[nodiscard]] bool is_intact() const {
    const auto bytes = memory_.view().span<std::uint8_t>();
    const auto is_guard = [](std::uint8_t byte) { return byte == kByte; };
    return std::ranges::all_of(bytes.first(kGuard), is_guard) &&
           std::ranges::all_of(bytes.last(kGuard), is_guard);
  }

 private:
  static constexpr Dim kGuard = 256;
  static constexpr std::uint8_t kByte = 0xa5;
  Tensor memory_;
  View view_;
};

void write(View view, const std::vector<double>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<float>(values[i]);
    if (view.dtype() == DType::f32) {
      view.data<float>()[i] = value;
    } else {
      view.data<bf16>()[i] = to_bf16(value);
    }
  }
}

/// Values of `to` on this rank, by definition: the numbers of a case are exact in 16 bits.
std::vector<double> expected(const MovementCase& c) {
  const AxisSet terms = c.from.axes(Placement::Kind::partial);
  AxisSet summed;
  for (const Axis axis : axes_of(c.at)) {
    if (terms.contains(axis) && !c.to[axis].is_partial()) summed = summed | axis;
  }
  std::vector<double> values;
  for (const Dim number : buffer_of(c.at, c.shapes, c.to)) {
    double sum = 0;
    for (int rank = 0; rank < c.at.size(summed); ++rank) {
      sum += term_of(number, c.at.moved(summed, rank).at(terms));
    }
    values.push_back(number == kPadding ? 0 : sum);
  }
  return values;
}

std::vector<double> written(const MovementCase& c) {
  std::vector<double> values;
  for (const Dim number : buffer_of(c.at, c.shapes, c.from)) {
    values.push_back(term_of(number, c.at.at(c.from.axes(Placement::Kind::partial))));
  }
  return values;
}

/// Moves the tensors of a case and compares all that a movement promises.
void check(Context& ctx, const mesh::Mesh& mesh, const MovementCase& c) {
  Movement movement = Movement::plan(mesh, c.shapes, c.from, c.to);
  const auto from_values = written(c);
  const auto to_values = expected(c);
  ASSERT_GE(movement.from_elements(), static_cast<Dim>(from_values.size()));
  ASSERT_GE(movement.to_elements(), static_cast<Dim>(to_values.size()));
  const Guarded from(c.from.format.dtype, movement.from_elements());
  const Guarded to(c.to.format.dtype, movement.to_elements());
  const Guarded scratch(DType::u8, static_cast<Dim>(movement.scratch_bytes()));
  std::memset(from.view().raw(), 0, from.view().bytes());
  write(from.view(), from_values);
  const Counted before(mesh);

  movement.start(ctx, from.view(), to.view(), scratch.view());
  movement.wait(ctx);

  const auto moved = to_doubles(to.view());
  ASSERT_EQ(std::vector(moved.begin(), moved.begin() + static_cast<Dim>(to_values.size())),
            to_values);
  const bool sums = std::ranges::any_of(movement.steps(), [](const Step& step) {
    return step.kind == Step::Kind::all_reduce || step.kind == Step::Kind::reduce_scatter;
  });
  if (!sums) {
    const auto left = to_doubles(from.view());
    ASSERT_EQ(std::vector(left.begin(), left.begin() + static_cast<Dim>(from_values.size())),
              from_values);
  }
  ASSERT_TRUE(from.is_intact() && to.is_intact() && scratch.is_intact());
  before.expect_added(movement);
  expect_messages_are_few(c, movement);
}

TEST(Movement, GivesEachRankItsPartOfEverything) {
  Context ctx(Device::cpu);
  std::set<Step::Kind> kinds;
  int moved = 0;
  for_drawn_meshes(world().size(), [&](const Position& first, Draw& draw) {
    const Position at = first.moved(kWorld, world().rank());
    const auto groups = groups_of(at);
    const auto mesh = mesh::Mesh::over(world(), Device::cpu, at, groups);
    const auto planned = mesh::Mesh::plan(at, groups);
    for_drawn_pairs(at, draw, [&](const MovementCase& c) {
      SCOPED_TRACE(c.describe());
      if (!c.is_possible()) {
        expect_error(ExitCode::usage, {"no movement from", describe(c.from), describe(c.to)},
                     [&] { (void)Movement::plan(mesh, c.shapes, c.from, c.to); });
        return;
      }
      check(ctx, mesh, c);
      ++moved;
      // A plan on `meta` has the steps of the real one.
      const Movement real = Movement::plan(mesh, c.shapes, c.from, c.to);
      const Movement plan = Movement::plan(planned, c.shapes, c.from, c.to);
      ASSERT_TRUE(std::ranges::equal(real.steps(), plan.steps()));
      for (const Step& step : real.steps()) kinds.insert(step.kind);
    });
  });

  EXPECT_GT(moved, 1500);
  if (world().size() > 1) {
    EXPECT_EQ(kinds.size(), 13U);  // all
  }
}

/// The axis over which the tests of one axis work.
struct OneAxis {
  Position at{{1, world().size(), 1, 1, 1, 1}, world().rank()};
  std::vector<AxisSet> groups = groups_of(at);
  mesh::Mesh mesh = mesh::Mesh::over(world(), Device::cpu, at, groups);
  Dim size = world().size();
};

/// Buckets of zero 1 lie so that nothing is copied beside the collectives.
TEST(Movement, WorksInPlace) {
  Context ctx(Device::cpu);
  const OneAxis axis;
  const std::vector<Shape> shapes = {{32 * axis.size}};
  const Layout terms = Layout{}.with(Axis::fold, partial());
  const Layout ranges = Layout{}.with(Axis::fold, flat());
  Movement reduce = Movement::plan(axis.mesh, shapes, terms, ranges);
  Movement gather = Movement::plan(axis.mesh, shapes, ranges, {});
  Movement all_reduce = Movement::plan(axis.mesh, shapes, terms, {});
  Tensor full = filled_tensor(DType::f32, shapes[0], 1 + axis.at.at(Axis::fold));
  const View mine = full.view().slice(32 * axis.at.at(Axis::fold), 32);

  reduce.start(ctx, full.view(), mine, {});
  reduce.wait(ctx);
  gather.start(ctx, mine, full.view(), {});
  gather.wait(ctx);
  all_reduce.start(ctx, full.view(), full.view(), {});
  all_reduce.wait(ctx);

  const auto sum = static_cast<double>(axis.size * axis.size * (axis.size + 1) / 2);
  EXPECT_EQ(to_doubles(full.view()), std::vector(static_cast<std::size_t>(32 * axis.size), sum));
  EXPECT_EQ(reduce.scratch_bytes() + gather.scratch_bytes() + all_reduce.scratch_bytes(), 0U);
}

/// Quantized matrices rest in ranges of their bytes.
TEST(Movement, GathersBytes) {
  Context ctx(Device::cpu);
  const OneAxis axis;
  const std::vector<Shape> shapes = {{32 * axis.size}};
  const Layout whole = {.format = {DType::u8}};
  Movement gather = Movement::plan(axis.mesh, shapes, whole.with(Axis::fold, flat()), whole);
  Tensor mine(Device::cpu, DType::u8, {32});
  std::ranges::fill(mine.view().span<std::uint8_t>(), std::uint8_t(7 + axis.at.at(Axis::fold)));
  Tensor all(Device::cpu, DType::u8, shapes[0]);

  gather.start(ctx, mine.view(), all.view(), {});
  gather.wait(ctx);

  for (Dim i = 0; i < all.view().numel(); ++i) {
    ASSERT_EQ(all.view().span<std::uint8_t>()[static_cast<std::size_t>(i)], 7 + i / 32);
  }
  EXPECT_EQ(gather.bytes(), static_cast<std::size_t>(axis.size > 1 ? 32 * axis.size : 0));
}

TEST(Movement, SeveralAreInProgressAtOnce) {
  Context ctx(Device::cpu);
  const OneAxis axis;
  const std::vector<Shape> shapes = {{2 * axis.size, 3}, {5}};
  std::vector<Movement> movements;
  std::vector<Guarded> buffers;
  for (int i = 0; i < 3; ++i) {
    movements.push_back(Movement::plan(axis.mesh, shapes, Layout{}.with(Axis::fold, partial()),
                                       Layout{}.with(Axis::fold, flat())));
    const Movement& movement = movements.back();
    for (const Dim elements : {movement.from_elements(), movement.to_elements(),
                               static_cast<Dim>(movement.scratch_bytes() / 4)}) {
      std::ranges::fill(buffers.emplace_back(DType::f32, elements).view().span<float>(),
                        static_cast<float>(i));
    }
  }

  for (std::size_t i = 0; i < 3; ++i) {
    movements[i].start(ctx, buffers[3 * i].view(), buffers[3 * i + 1].view(),
                       buffers[3 * i + 2].view());
  }
  for (std::size_t i = 3; i-- > 0;) {
    movements[i].wait(ctx);
    const View sums = buffers[3 * i + 1].view();
    EXPECT_EQ(to_doubles(sums),
              std::vector(static_cast<std::size_t>(sums.numel()),
                          static_cast<double>(axis.size) * static_cast<double>(i)));
  }
}

TEST(Movement, AllocatesNothingAfterItsPlan) {
  Context ctx(Device::meta);
  const Position at({1, 2, 2, 1, 1, 2}, 3);
  const auto mesh = mesh::Mesh::plan(at, groups_of(at));
  const std::vector<Shape> shapes = {{8, 6}, {16}};
  const Layout from = Layout{}.with(mesh::kShards, partial()).with(Axis::tensor, layout::shard(0));
  Movement movement =
      Movement::plan(mesh, shapes, from, Layout{.format = {DType::bf16}}.with(Axis::fold, flat()));
  const auto meta = [](DType dtype, Dim elements) {
    return View(nullptr, dtype, Device::meta, {elements});
  };
  const auto move = [&] {
    movement.start(ctx, meta(DType::f32, movement.from_elements()),
                   meta(DType::bf16, movement.to_elements()),
                   meta(DType::u8, static_cast<Dim>(movement.scratch_bytes())));
    movement.wait(ctx);
  };
  move();  // ledgers and communicators have seen it all

  const long before = allocations();
  move();

  EXPECT_EQ(allocations(), before);
}

}  // namespace
}  // namespace hyperslab::test
