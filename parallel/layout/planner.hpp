// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>

#include "movement_plan.hpp"

namespace hyperslab::layout {

/// Finds the actions of a movement. Its functions append those that bring the tensors from the
/// layout that they have by now nearer to the one that they are to have.
class Planner {
 public:
  /// The layouts are possible for these tensors.
  Planner(const mesh::Mesh& mesh, std::span<const Shape> shapes, const Layout& from,
          const Layout& to);

  void bring_to_device();
  /// Sums terms. A rank leaves out of a sum what it is not to hold.
  void sum();
  /// Brings values to the ranks that are to hold them, and casts them on the side with fewer bytes.
  void move_values();
  void bring_to_host();
  [[nodiscard]] std::unique_ptr<const MovementPlan> finish();

 private:
  [[nodiscard]] Contents contents(const Layout& layout) const { return contents(at_, layout); }
  [[nodiscard]] Contents contents(const mesh::Position& at, const Layout& layout) const;
  [[nodiscard]] Contents joined(mesh::AxisSet axes, const Layout& layout) const;
  [[nodiscard]] bool can_cut(const Layout& finer) const;
  [[nodiscard]] mesh::AxisSet axes_of_messages() const;
  template <class Test>
  [[nodiscard]] bool changes_only(mesh::AxisSet axes, Test test) const;

  /// The room that holds the tensors now.
  [[nodiscard]] Room& room() { return plan_->rooms.back(); }
  Action& append(Step::Kind kind, Dim elements);
  Action& communicate(Step::Kind kind, mesh::AxisSet axes, Dim elements, Dim received);
  Action& communicate_in_place(Step::Kind kind, mesh::AxisSet axes);
  void rearrange(Step::Kind kind, const Contents& from, const Contents& to);
  void pack(const Contents& to);
  void unpack(const Contents& from);
  void cast();
  void gather(mesh::AxisSet axes);
  void broadcast(mesh::AxisSet axes);
  void exchange(mesh::AxisSet axes);

  const mesh::Mesh& mesh_;
  const mesh::Position& at_;
  std::span<const Shape> shapes_;
  Layout now_;
  Layout to_;
  bool changes_home_ = false;
  std::unique_ptr<MovementPlan> plan_;
};

}  // namespace hyperslab::layout
