// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace hyperslab::mesh {

/// The axes of the mesh, the slowest first. Ranks along
///   replica   hold copies of the same shards of state and take other samples,
///   fold      hold other shards of state and take other samples,
///   expert    hold other experts, otherwise as fold,
///   pipeline  hold the layers one after the other,
///   context   hold other positions of the same samples,
///   tensor    share every layer.
/// parallel.data of the deck is replica x fold x expert.
enum class Axis : std::uint8_t { replica, fold, expert, pipeline, context, tensor };
inline constexpr std::array kAxes = {Axis::replica,  Axis::fold,    Axis::expert,
                                     Axis::pipeline, Axis::context, Axis::tensor};

[[nodiscard]] constexpr std::string_view name_of(Axis axis) {
  switch (axis) {
    case Axis::replica: return "replica";
    case Axis::fold: return "fold";
    case Axis::expert: return "expert";
    case Axis::pipeline: return "pipeline";
    case Axis::context: return "context";
    case Axis::tensor: return "tensor";
  }
  return "?";
}

/// Axes whose ranks together make a group.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(Axis axis) : bits_(bit(axis)) {}  // NOLINT: one axis is a set
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) bits_ = static_cast<std::uint8_t>(bits_ | bit(axis));
  }
  [[nodiscard]] constexpr bool contains(Axis axis) const { return (bits_ & bit(axis)) != 0; }
  [[nodiscard]] constexpr bool empty() const { return bits_ == 0; }
  friend constexpr AxisSet operator|(AxisSet a, AxisSet b) {
    AxisSet both;
    both.bits_ = static_cast<std::uint8_t>(a.bits_ | b.bits_);
    return both;
  }
  friend constexpr bool operator==(AxisSet, AxisSet) = default;

 private:
  static constexpr std::uint8_t bit(Axis axis) {
    return static_cast<std::uint8_t>(1U << static_cast<unsigned>(axis));
  }
  std::uint8_t bits_ = 0;
};

/// Ranks along these take other samples.
inline constexpr AxisSet kSamples = {Axis::replica, Axis::fold, Axis::expert};
/// Ranks along these have terms of the same gradients.
inline constexpr AxisSet kGradients = {Axis::replica, Axis::fold, Axis::expert, Axis::context};
/// State is cut along these.
inline constexpr AxisSet kShards = {Axis::fold, Axis::expert, Axis::context};
/// Ranks along these have terms of the gradients of the same experts.
inline constexpr AxisSet kExpertGradients = {Axis::replica, Axis::fold, Axis::context};
/// The state of experts is cut along these.
inline constexpr AxisSet kExpertShards = {Axis::fold, Axis::context};
inline constexpr AxisSet kWorld = {Axis::replica,  Axis::fold,    Axis::expert,
                                   Axis::pipeline, Axis::context, Axis::tensor};

}  // namespace hyperslab::mesh
