// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hyperslab/deck/reference.hpp"

namespace hyperslab::deck {

/// Keys without a default; `train.global_batch` is one only for training.
inline constexpr std::array<std::string_view, 4> kRequiredKeys = {
    "model.layers", "model.width", "model.heads", "train.global_batch"};
/// Likewise, of models of text and of images.
inline constexpr std::array<std::string_view, 2> kRequiredOfText = {"model.vocabulary",
                                                                    "model.context"};
inline constexpr std::array<std::string_view, 3> kRequiredOfImages = {"model.image", "model.patch",
                                                                      "model.classes"};

struct KnownSection {
  std::string_view name;
  std::vector<std::string_view> keys;
};

[[nodiscard]] std::span<const KnownSection> known_sections();
[[nodiscard]] const KnownSection* find_section(std::string_view name);
/// "run", "model", ...
[[nodiscard]] std::span<const std::string_view> section_names();
/// "run.name", ...: every key with its section.
[[nodiscard]] std::span<const std::string_view> full_keys();

/// "`a`, `b` or `c`" with a mark around each word.
[[nodiscard]] std::string listed(std::span<const std::string_view> words, std::string_view mark);

}  // namespace hyperslab::deck
