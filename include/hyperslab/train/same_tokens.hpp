// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <utility>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/io/dataset.hpp"

namespace hyperslab::train {

/// Tokens and the key of the deck that names them; null: the deck names none.
using NamedTokens = std::pair<const char*, const io::TokenSource*>;

/// Throws Error(data) on every rank if the fingerprints of the tokens are not equal on all ranks:
/// hosts may have copies of files of which one is older or damaged, and their ranks would train on
/// other text. The message names the ranks, their hosts, and the first file that differs with size,
/// tokens and fingerprint. Collective.
void require_same_tokens(comm::World& world, std::initializer_list<NamedTokens> parts);

}  // namespace hyperslab::train
