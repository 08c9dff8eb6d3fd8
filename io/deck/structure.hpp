// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <span>
#include <string>

#include "problems.hpp"
#include "tree.hpp"

namespace hyperslab::deck {

/// Keys, or whole sections, about which something is already wrong, so that nothing more is said
/// about them and no rule that reads them is checked.
using BadKeys = std::set<std::string, std::less<>>;

/// Gives keys and values of earlier programs the names of today (hyperslab/train/renamed_keys.hpp).
void use_current_names(Node& root);

/// Unknown and duplicate sections and keys, and sections that are no maps.
void check_structure(const Node& root, Problems& problems, BadKeys& bad);

/// Puts the values of "section.key=value" into the tree; later ones win.
void apply_overrides(std::span<const std::string> overrides, Node& root, Problems& problems,
                     BadKeys& bad);

}  // namespace hyperslab::deck
