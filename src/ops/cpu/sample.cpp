// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <vector>

#include "../backend.hpp"
#include "parallel.hpp"

namespace hyperslab::ops::cpu {

void sample(Context& ctx, CView logits, Dim V, CView choices, View index) {
  with_real(logits.dtype(), "sample", [&]<class T>(T) {
    const auto [rows, columns] = logits.dims<2>("sample logits");
    const T* from = logits.data<T>();
    const auto* stored = static_cast<const std::byte*>(choices.raw());
    auto* to = index.data<std::int32_t>();
    parallel_chunks(ctx.threads(), rows, V, [=, columns = columns](int, Dim begin, Dim end) {
      // Every thread keeps these between calls: they take memory for the whole vocabulary.
      thread_local TokenChooser chooser;
      thread_local std::vector<float> row;
      row.resize(static_cast<std::size_t>(V));
      for (Dim i = begin; i < end; ++i) {
        std::copy(from + i * columns, from + i * columns + V, row.begin());
        TokenChoice choice;
        std::memcpy(&choice, stored + i * static_cast<Dim>(sizeof choice), sizeof choice);
        to[i] = chooser.choose(row, choice);
      }
    });
  });
}

}  // namespace hyperslab::ops::cpu
