// SPDX-License-Identifier: Apache-2.0
#include "dataset/document_view.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "dataset/fingerprint.hpp"
#include "files/crc32c.hpp"
#include "hyperslab/core/error.hpp"

namespace hyperslab::io {

DocumentView::DocumentView(std::shared_ptr<const TokenSource> all, std::string name)
    : all_(std::move(all)), name_(std::move(name)) {}

void DocumentView::append(std::int64_t begin, std::int64_t end) {
  require(begin < end, "an empty range of documents");
  const bool goes_on =
      !begins_.empty() &&
      begins_.back() + ends_.back() - (ends_.size() > 1 ? *(ends_.end() - 2) : 0) == begin;
  const std::int64_t size_then = size() + end - begin;
  if (goes_on) {
    ends_.back() = size_then;
  } else {
    begins_.push_back(begin);
    ends_.push_back(size_then);
  }
}

template <class T, class Action>
void DocumentView::for_each_part(std::int64_t first, std::span<T> out, std::int64_t columns,
                                 Action action) const {
  require(first >= 0 && first + std::ssize(out) / columns <= size(),
          "tokens beyond the end of the source");
  auto range = static_cast<std::size_t>(std::ranges::upper_bound(ends_, first) - ends_.begin());
  for (; !out.empty(); ++range) {
    const std::int64_t range_first = range == 0 ? 0 : ends_[range - 1];
    const auto count = std::min(std::ssize(out) / columns, ends_[range] - first);
    const auto here = out.first(static_cast<std::size_t>(count * columns));
    action(begins_[range] + first - range_first, here);
    out = out.subspan(here.size());
    first += count;
  }
}

void DocumentView::read(std::int64_t first, std::span<std::int32_t> out) const {
  for_each_part(first, out, 1, [this](std::int64_t index, auto part) { all_->read(index, part); });
}

void DocumentView::read_mask(std::int64_t first, std::span<std::uint8_t> out) const {
  for_each_part(first, out, 1,
                [this](std::int64_t index, auto part) { all_->read_mask(index, part); });
}

void DocumentView::read_values(std::int64_t first, std::span<float> out) const {
  for_each_part(first, out, columns().count(),
                [this](std::int64_t index, auto part) { all_->read_values(index, part); });
}

void DocumentView::read_teacher_ids(std::int64_t first, std::span<std::int32_t> out) const {
  for_each_part(first, out, columns().teachers,
                [this](std::int64_t index, auto part) { all_->read_teacher_ids(index, part); });
}

std::vector<std::int64_t> DocumentView::documents(std::int32_t end_token) const {
  const std::vector<std::int64_t> all = all_->documents(end_token);
  std::vector<std::int64_t> starts;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < begins_.size(); ++i) {
    starts.push_back(first);
    const std::int64_t end = begins_[i] + ends_[i] - first;
    auto start = std::ranges::upper_bound(all, begins_[i]);
    for (; start != all.end() && *start < end; ++start) {
      starts.push_back(first + *start - begins_[i]);
    }
    first = ends_[i];
  }
  return starts;
}

std::vector<std::int64_t> DocumentView::segments() const {
  const std::vector<std::int64_t> of_all = all_->segments();
  std::vector<std::int64_t> starts;
  std::int64_t first = 0;
  auto last = of_all.end();  // the segment that the run before ended in
  for (std::size_t i = 0; i < begins_.size(); ++i) {
    const std::int64_t end = begins_[i] + ends_[i] - first;
    auto segment = std::ranges::upper_bound(of_all, begins_[i]) - 1;
    if (segment != last) starts.push_back(first);
    for (last = segment++; segment != of_all.end() && *segment < end; last = segment++) {
      starts.push_back(first + *segment - begins_[i]);
    }
    first = ends_[i];
  }
  return starts;
}

std::string DocumentView::description() const {
  return fmt::format("{} tokens for {} out of {}", size(), name_, all_->description());
}

std::uint64_t DocumentView::fingerprint() const {
  const std::size_t bytes = ends_.size() * sizeof(std::int64_t);
  return mixed(mixed(all_->fingerprint(), crc32c(begins_.data(), bytes)),
               crc32c(ends_.data(), bytes));
}

}  // namespace hyperslab::io
