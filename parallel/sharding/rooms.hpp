// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "hyperslab/param/store.hpp"

namespace hyperslab::sharding {

/// Memory for few of these items at a time, of so many elements: they take turns in `count` rooms,
/// each of the size of the largest in it. By item; absent if it has none.
[[nodiscard]] std::vector<View> take_rooms(std::span<const Dim> sizes, int count, Arena& arena,
                                           DType dtype, const std::string& label);

/// Memory for few buckets at a time, of so many elements, by bucket; absent if it has none. Buckets
/// of experts take turns in `count` rooms of their own, as a unit uses one beside another bucket.
[[nodiscard]] std::vector<View> take_rooms(const param::ParamGroup& group,
                                           std::span<const Dim> sizes, int count, Arena& arena,
                                           DType dtype, const std::string& label);

/// Memory for few buckets at a time, by bucket: those of parameters that no other tensor or
/// pipeline rank holds take turns in `count` rooms. The others, which stay in use from the
/// embedding to the head, have rooms of their own. Absent for buckets that are not `taken`.
[[nodiscard]] std::vector<View> take_rooms(
    const param::ParamGroup& group, int count, Arena& arena, DType dtype, const std::string& label,
    const std::function<bool(const param::Bucket&)>& taken = [](const param::Bucket&) {
      return true;
    });

/// Experts that no other rank has shards of are present where they rest, in `values`. They have no
/// room.
void keep_own_experts(const param::ParamGroup& group, const param::StateView& values,
                      std::vector<View>& present);

}  // namespace hyperslab::sharding
