// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/eval/predictions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <span>

#include "hyperslab/io/npy_file.hpp"
#include "hyperslab/io/text_file.hpp"
#include "hyperslab/ops/loss.hpp"

namespace hyperslab::eval {
namespace {

/// A field of a CSV file (RFC 4180).
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + '"';
}

}  // namespace

void Predictions::take(std::int64_t first, CView logits, CView labels) {
  const auto [B, columns] = logits.dims<2>("predictions logits");
  const std::span<const float> all = logits.span<float>();
  const std::span<const std::int32_t> of_images = labels.span<std::int32_t>();
  for (Dim b = 0; b < B; ++b) {
    if (of_images[static_cast<std::size_t>(2 * b)] == ops::kIgnoredTarget) continue;
    const auto row =
        all.subspan(static_cast<std::size_t>(b * columns), static_cast<std::size_t>(classes_));
    rows_.push_back({first + b, std::ranges::max_element(row) - row.begin()});
    if (keeps_logits_) logits_.insert(logits_.end(), row.begin(), row.end());
  }
}

std::string Predictions::packed() const {
  const std::int64_t count = std::ssize(rows_);
  std::string bytes(reinterpret_cast<const char*>(&count), sizeof(count));
  bytes.append(reinterpret_cast<const char*>(rows_.data()), rows_.size() * sizeof(Row));
  bytes.append(reinterpret_cast<const char*>(logits_.data()), logits_.size() * sizeof(float));
  return bytes;
}

void Predictions::unpack(const std::string& bytes) {
  std::int64_t count = 0;
  std::memcpy(&count, bytes.data(), sizeof(count));
  const char* at = bytes.data() + sizeof(count);
  const auto append = [&]<class T>(std::vector<T>& to, std::size_t size) {
    const std::size_t before = to.size();
    to.resize(before + size);
    if (size > 0) std::memcpy(to.data() + before, at, size * sizeof(T));
    at += size * sizeof(T);
  };
  append(rows_, static_cast<std::size_t>(count));
  if (keeps_logits_) append(logits_, static_cast<std::size_t>(count * classes_));
}

void Predictions::gather(comm::World& world) {
  const std::vector<std::string> all = world.gather(packed());
  rows_.clear();
  logits_.clear();
  for (const std::string& bytes : all) unpack(bytes);
  std::vector<std::size_t> order(rows_.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](std::size_t i) { return rows_[i].index; });
  std::vector<Row> rows;
  std::vector<float> logits;
  for (const std::size_t i : order) {
    rows.push_back(rows_[i]);
    if (!keeps_logits_) continue;
    const auto first = logits_.begin() + static_cast<std::ptrdiff_t>(i) * classes_;
    logits.insert(logits.end(), first, first + classes_);
  }
  rows_ = std::move(rows);
  logits_ = std::move(logits);
}

void Predictions::write_csv(const std::string& path, const io::ImageSet& images) const {
  std::string text = "index,name,label,prediction,correct\n";
  for (const Row& row : rows_) {
    const std::int32_t label = images.label(row.index);
    fmt::format_to(std::back_inserter(text), "{},{},{},{},{}\n", row.index,
                   quoted(images.name(row.index)), label, row.prediction,
                   row.prediction == label ? 1 : 0);
  }
  io::write_text_file(path, text);
}

void Predictions::write_logits(const std::string& path) const {
  io::NpyFile file(path, std::ssize(rows_), classes_);
  file.append(logits_);
  file.finish();
}

}  // namespace hyperslab::eval
