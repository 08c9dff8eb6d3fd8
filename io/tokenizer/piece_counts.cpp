// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/piece_counts.hpp"

#include <omp.h>

#include <cstring>
#include <memory>

#include "hyperslab/core/error.hpp"
#include "run_jobs.hpp"
#include "tokenizer/cuts.hpp"
#include "tokenizer/document_reader.hpp"
#include "tokenizer/idle_workers.hpp"
#include "tokenizer/json_lines.hpp"
#include "tokenizer/markers.hpp"
#include "tokenizer/merge_table.hpp"
#include "tokenizer/pattern.hpp"

namespace hyperslab::io {
namespace {

constexpr std::size_t kBlockBytes = 8 << 20;

std::uint32_t hash_of(std::string_view piece) {
  std::uint64_t hash = piece.size();
  while (piece.size() > sizeof hash) {
    std::uint64_t word = 0;
    std::memcpy(&word, piece.data(), sizeof word);
    hash = mix(hash ^ word);
    piece.remove_prefix(sizeof word);
  }
  std::uint64_t word = 0;
  std::memcpy(&word, piece.data(), piece.size());
  return static_cast<std::uint32_t>(mix(hash ^ word));
}

/// Splitter and counts of one thread.
struct Counter {
  explicit Counter(const Pattern& pattern) : splitter(pattern) {}

  void count(std::string_view text, const std::vector<std::string>& specials) {
    MarkerSearch search(specials, text);
    for (bool more = true; more;) {
      const MarkerSearch::Part part = search.next();
      more = part.marker >= 0;
      splitter.start(part.before);
      for (auto piece = splitter.next(); !piece.empty(); piece = splitter.next()) {
        if (piece.size() > 1) counts.add(piece, 1);
      }
    }
  }

  Splitter splitter;
  PieceCounts counts;
};

/// A counter for each thread that asks.
class Counters {
 public:
  void count(std::string_view text, const std::vector<std::string>& specials) {
    auto loan = counters_.lend([this] { return std::make_unique<Counter>(pattern_); });
    loan.worker().count(text, specials);
  }

  PieceCounts total() {
    PieceCounts all;
    for (const auto& counter : counters_.idle()) {
      if (all.entries().empty()) {
        all = std::move(counter->counts);
      } else {
        all.add_all(counter->counts);
      }
      counter->counts = {};
    }
    return all;
  }

 private:
  Pattern pattern_{std::string(kGpt2Pattern), "vocabulary to train"};
  IdleWorkers<Counter> counters_;
};

/// Counts a file block by block. Each block ends beside white space, so that no special is cut.
void count_file(const std::string& path, const std::vector<std::string>& specials,
                Counters& counters) {
  TextFile file(path);
  std::string buffer;
  std::size_t expected = kBlockBytes;
  for (bool ended = false; !ended;) {
    ended = file.fill(buffer, expected);
    const std::size_t cut = ended ? buffer.size() : last_cut(buffer, 2);
    if (cut == buffer.npos) {
      expected = 2 * buffer.size();
      continue;
    }
    const auto parts = cut_into_parts(std::string_view(buffer).substr(0, cut), kPartBytes);
    run_jobs(parts.size(), omp_get_max_threads(),
             [&](std::size_t i) { counters.count(parts[i], specials); });
    buffer.erase(0, cut);
    expected = kBlockBytes;
  }
}

void count_json_lines(const std::string& path, const JsonLines& format,
                      const std::vector<std::string>& specials, Counters& counters) {
  JsonLinesReader reader(path, format);
  std::vector<std::string> texts;
  while (reader.next(texts)) {
    std::vector<std::string_view> parts;
    for (const std::string& text : texts) {
      for (const std::string_view part : cut_into_parts(text, kPartBytes)) parts.push_back(part);
    }
    run_jobs(parts.size(), omp_get_max_threads(),
             [&](std::size_t i) { counters.count(parts[i], specials); });
  }
}

}  // namespace

void PieceCounts::add(std::string_view piece, std::uint64_t count) {
  const std::uint32_t hash = hash_of(piece);
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = hash & mask;
  for (; slots_[i] != kEmpty; i = (i + 1) & mask) {
    Entry& entry = entries_[slots_[i]];
    if (entry.hash == hash && text(entry) == piece) {
      entry.count += count;
      return;
    }
  }
  slots_[i] = static_cast<std::uint32_t>(entries_.size());
  entries_.push_back({bytes_.size(), count, static_cast<std::uint32_t>(piece.size()), hash});
  bytes_ += piece;
  if (2 * entries_.size() > slots_.size()) grow();
}

void PieceCounts::grow() {
  slots_.assign(2 * slots_.size(), kEmpty);
  const std::size_t mask = slots_.size() - 1;
  for (std::uint32_t entry = 0; entry < entries_.size(); ++entry) {
    std::size_t i = entries_[entry].hash & mask;
    while (slots_[i] != kEmpty) i = (i + 1) & mask;
    slots_[i] = entry;
  }
}

void PieceCounts::add_all(const PieceCounts& other) {
  for (const Entry& entry : other.entries_) add(other.text(entry), entry.count);
}

PieceCounts count_pieces(std::span<const std::string> inputs,
                         const std::vector<std::string>& specials, const JsonLines& format) {
  Counters counters;
  for (const std::string& path : inputs) {
    if (is_json_lines(path, format)) {
      count_json_lines(path, format, specials, counters);
    } else {
      count_file(path, specials, counters);
    }
  }
  return counters.total();
}

}  // namespace hyperslab::io
