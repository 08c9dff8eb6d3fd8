// SPDX-License-Identifier: Apache-2.0
#include "diff.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "hyperslab/io/checkpoint_diff.hpp"
#include "hyperslab/run/deck_changes.hpp"

namespace hyperslab::cli {
namespace {

constexpr std::size_t kUsuallyShown = 20;

/// A line if the two values differ; whether they do.
template <class T>
bool differs(const char* name, const T& a, const T& b) {
  if (a == b) return false;
  fmt::print("{:<16} {} -> {}\n", name, a, b);
  return true;
}

/// Step, layout and version differ between equal runs as well, and count for nothing.
bool meta_differs(const io::CheckpointMeta& a, const io::CheckpointMeta& b) {
  differs("layout", a.layout, b.layout);
  differs("version", a.version, b.version);
  bool found = differs("step", a.step, b.step);
  found |= differs("samples", a.samples_seen, b.samples_seen);
  found |= differs("adam step", a.adam_step, b.adam_step);
  found |= differs("skipped steps", a.skipped_steps, b.skipped_steps);
  found |= differs("loss scale", a.loss_scale, b.loss_scale);
  found |= differs("model", a.model, b.model);
  found |= differs("order of samples", a.order, b.order);
  found |= differs("data fingerprint", fmt::format("{:016x}", a.data_fingerprint),
                   fmt::format("{:016x}", b.data_fingerprint));
  return found;
}

/// Keys of the decks; whether one differs that changes the training.
bool deck_differs(const io::CheckpointMeta& a, const io::CheckpointMeta& b) {
  bool found = false;
  for (const run::DeckChange& change : run::deck_changes(a.deck, b.deck)) {
    fmt::print("deck {:<24} {} -> {}\n", change.key, change.was.empty() ? "-" : change.was,
               change.is.empty() ? "-" : change.is);
    found = found || change.changes_training;
  }
  return found;
}

std::string text_of(const io::TensorDifference& difference) {
  if (!difference.problem.empty()) return difference.problem;
  std::string text = fmt::format("{} of {} elements, largest {:.3g} at {}, relative norm {:.3g}",
                                 difference.unequal, difference.elements, difference.largest,
                                 difference.where.str(), difference.relative_norm);
  if (difference.not_finite > 0) {
    text += fmt::format(", {} not finite", difference.not_finite);
  }
  return text;
}

/// Tensors that one of them lacks first, then the model's that differ most, then the optimizer's.
void print_tensors(std::vector<io::TensorDifference> tensors, std::size_t shown) {
  std::ranges::stable_sort(tensors, [](const auto& a, const auto& b) {
    const auto place = [](const io::TensorDifference& each) {
      const int kind = !each.problem.empty() ? 0 : each.tensor.starts_with("model/") ? 1 : 2;
      return std::pair(kind, -each.relative_norm);
    };
    return place(a) < place(b);
  });
  for (std::size_t i = 0; i < std::min(shown, tensors.size()); ++i) {
    fmt::print("{:<44} {}\n", tensors[i].tensor, text_of(tensors[i]));
  }
  if (tensors.size() > shown) fmt::print("... and {} more (--all)\n", tensors.size() - shown);
}

}  // namespace

void add_diff_options(Arguments& args) {
  args.add()("all", "diff: every tensor that differs, not the 20 that differ most");
}

bool diff_checkpoints(const Arguments& args) {
  const std::vector<std::string> paths = args.list("DIR");
  if (paths.size() != 2) {
    throw Error(ExitCode::usage, "checkpoint diff compares two checkpoints: diff A B");
  }
  const io::CheckpointReader first(paths[0]);
  const io::CheckpointReader second(paths[1]);
  fmt::print("{} -> {}\n", first.folder(), second.folder());
  const bool meta = meta_differs(first.meta(), second.meta());
  const bool deck = deck_differs(first.meta(), second.meta());
  const std::vector<io::TensorDifference> tensors = io::compare(first, second);
  print_tensors(tensors, args.has("all") ? tensors.size() : kUsuallyShown);
  if (tensors.empty()) {
    fmt::print("all {} tensors are equal\n", first.tensors().size());
  } else {
    fmt::print("{} of {} tensors differ\n", tensors.size(),
               std::max(first.tensors().size(), second.tensors().size()));
  }
  return !meta && !deck && tensors.empty();
}

}  // namespace hyperslab::cli
