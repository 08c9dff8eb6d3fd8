// SPDX-License-Identifier: Apache-2.0
#include "token_cut.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
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
  for (const auto view : {&Batch::token_values, &Batch::teacher_ids}) {
    if (!(part.*view)) continue;
    const auto [B, T, columns] = (part.*view).dims<3>("values of a part");
    whole.*view = View(nullptr, (part.*view).dtype(), Device::cpu, {B, T * parts, columns});
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
    const Dim B = to.shape()[0];
    for (Dim b = 0; b < B; ++b) {
      const std::size_t bytes = to.slice(b, 1).bytes();
      const auto* row = static_cast<const std::byte*>(from.slice(b, 1).raw());
      std::memcpy(to.slice(b, 1).raw(), row + static_cast<std::size_t>(part_.part) * bytes, bytes);
    }
  };
  take(whole.tokens, out.tokens);
  take(whole.targets, out.targets);
  take(whole.first_keys, out.own_first_keys);
  take(whole.token_values, out.token_values);
  take(whole.teacher_ids, out.teacher_ids);
  Context host(Device::cpu);
  Batch uncut = whole;
  uncut.tokens = uncut.targets = uncut.token_values = uncut.teacher_ids = View();
  copy_batch(host, uncut, out);
  if (!out.token_sort_index) return;
  scratch_.resize(static_cast<std::size_t>(out.tokens.numel()));
  io::sort_tokens(out.tokens.span<std::int32_t>(), out.token_sort_index.span<std::int32_t>(),
                  scratch_);
}

}  // namespace hyperslab::train
