// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <utility>

#include "hyperslab/comm/world.hpp"
#include "hyperslab/io/dataset.hpp"

namespace hyperslab::train {

/// A source and the key of the deck that names it; null: the deck names none.
using NamedSource = std::pair<const char*, const io::DataSource*>;

/// Throws Error(data) on every rank if the fingerprints of the sources are not equal on all ranks:
/// hosts may have copies of files of which one is older or damaged, and their ranks would train on
/// other data. The message names the ranks, their hosts, and the first file that differs with size,
/// tokens and fingerprint. Collective.
void require_same_data(comm::World& world, std::initializer_list<NamedSource> parts);

}  // namespace hyperslab::train
