// SPDX-License-Identifier: Apache-2.0
#include "token_cut.hpp"

#include <algorithm>
#include <span>

#include "batch_views.hpp"

namespace hyperslab::train {
namespace {

/// The views of whole samples. The sort index is of the part's tokens.
Batch whole_like(const Batch& part, int parts) {
  Batch whole = part;
  whole.token_sort_index = whole.own_first_keys = View();
  for (const auto view : {&Batch::tokens, &Batch::targets}) {
    if (!(part.*view)) continue;
    const auto [B, T] = (part.*view).dims<2>("tokens of a part");
    whole.*view = View(nullptr, DType::i32, Device::cpu, {B, T * parts});
  }
  return whole;
}

}  // namespace

TokenCut::TokenCut(const Batch& like, const TokenPart& part) : part_(part) {
  if (part.parts > 1) whole_.emplace(Device::cpu, whole_like(like, part.parts));
}

void TokenCut::cut(const Batch& out) {
  const Batch& whole = whole_->views();
  const auto take = [&](const View& from, const View& to) {
    if (!from || !to) return;
    const auto [B, T] = to.dims<2>("tokens of a part");
    for (Dim b = 0; b < B; ++b) {
      const auto row = from.slice(b, 1).span<std::int32_t>().subspan(
          static_cast<std::size_t>(part_.part * T), static_cast<std::size_t>(T));
      std::ranges::copy(row, to.slice(b, 1).span<std::int32_t>().begin());
    }
  };
  take(whole.tokens, out.tokens);
  take(whole.targets, out.targets);
  take(whole.first_keys, out.own_first_keys);
  Context host(Device::cpu);
  Batch uncut = whole;
  uncut.tokens = uncut.targets = View();
  copy_batch(host, uncut, out);
  if (!out.token_sort_index) return;
  scratch_.resize(static_cast<std::size_t>(out.tokens.numel()));
  io::sort_tokens(out.tokens.span<std::int32_t>(), out.token_sort_index.span<std::int32_t>(),
                  scratch_);
}

}  // namespace hyperslab::train
