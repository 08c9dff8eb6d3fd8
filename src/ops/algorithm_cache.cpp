// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/algorithm_cache.hpp"

#include <algorithm>
#include <sstream>
#include <string_view>
#include <utility>

#include "backend.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/philox.hpp"

namespace hyperslab::ops {
namespace {

constexpr std::string_view kTitle = "hyperslab algorithms ";
constexpr std::string_view kOldTitle = "hyperslab products ";  // of earlier files
constexpr std::string_view kPlatform = "on ";
constexpr std::string_view kEnd = "end ";

/// The last line, which follows `body` and states its number of entries.
std::string end_of(const std::string& body, std::size_t entries) {
  std::ostringstream line;
  line << kEnd << entries << ' ' << std::hex << name_hash(body) << '\n';
  return line.str();
}

[[noreturn]] void refuse(const std::string& where, std::size_t line, const std::string& what) {
  throw Error(ExitCode::storage, where + ":" + std::to_string(line) + ": " + what +
                                     "; without this cache the GEMM algorithms are chosen again");
}

/// The entries between title and end. Empty `problem`: all is well.
struct Reading {
  AlgorithmCache table;
  std::size_t line = 1;
  std::string problem;
};

Reading read_entries(std::istringstream& lines) {
  Reading reading;
  std::string platform;
  for (std::string line; reading.problem.empty() && std::getline(lines, line);) {
    ++reading.line;
    if (line.starts_with(kPlatform)) {
      platform = line.substr(kPlatform.size());
      continue;
    }
    std::istringstream numbers(line);
    AlgorithmCache::Kind kind{};
    AlgorithmCache::Algorithm algorithm{};
    for (std::int64_t& part : kind) numbers >> part;
    numbers >> std::hex;
    for (std::uint64_t& word : algorithm) numbers >> word;
    if (numbers.fail() || !(numbers >> std::ws).eof() || platform.empty()) {
      reading.problem = "found no entry of " + std::to_string(kind.size()) + " numbers and " +
                        std::to_string(algorithm.size()) + " words";
    }
    reading.table.add(platform, kind, algorithm);
  }
  return reading;
}

}  // namespace

void AlgorithmCache::add(const std::string& platform, const Kind& kind,
                         const Algorithm& algorithm) {
  platforms_[platform].emplace(kind, algorithm);
}

void AlgorithmCache::merge(const AlgorithmCache& other) {
  for (const auto& [platform, entries] : other.platforms_) {
    platforms_[platform].insert(entries.begin(), entries.end());
  }
}

const AlgorithmCache::Algorithm* AlgorithmCache::find(const std::string& platform,
                                                      const Kind& kind) const {
  const auto entries = platforms_.find(platform);
  if (entries == platforms_.end()) return nullptr;
  const auto entry = entries->second.find(kind);
  return entry == entries->second.end() ? nullptr : &entry->second;
}

std::size_t AlgorithmCache::size() const {
  std::size_t entries = 0;
  for (const auto& platform : platforms_) entries += platform.second.size();
  return entries;
}

std::size_t AlgorithmCache::size_on(const std::string& platform) const {
  const auto entries = platforms_.find(platform);
  return entries == platforms_.end() ? 0 : entries->second.size();
}

std::string AlgorithmCache::text() const {
  std::ostringstream body;
  body << kTitle << kFormat << '\n';
  for (const auto& [platform, entries] : platforms_) {
    body << kPlatform << platform << '\n';
    for (const auto& [kind, algorithm] : entries) {
      body << std::dec;
      for (const std::int64_t part : kind) body << part << ' ';
      body << std::hex;
      for (const std::uint64_t word : algorithm) body << ' ' << word;
      body << '\n';
    }
  }
  return body.str() + end_of(body.str(), size());
}

AlgorithmCache AlgorithmCache::of_text(const std::string& text, const std::string& where) {
  const bool is_old = text.starts_with(kOldTitle);
  const std::string title =
      std::string(is_old ? kOldTitle : kTitle) + std::to_string(kFormat) + '\n';
  if (!text.starts_with(title)) {
    refuse(where, 1,
           "expected '" + title.substr(0, title.size() - 1) + "', found '" +
               text.substr(0, std::min(text.find('\n'), title.size())) + "'");
  }
  const std::size_t end = text.rfind('\n' + std::string(kEnd));
  const std::string body = text.substr(0, end == std::string::npos ? end : end + 1);
  std::istringstream lines(body.substr(title.size()));
  Reading reading = read_entries(lines);
  if (!reading.problem.empty()) refuse(where, reading.line, reading.problem);
  if (body + end_of(body, reading.table.size()) != text) {
    refuse(where, reading.line + 1, "the cache was cut off or changed here or before");
  }
  return std::move(reading.table);
}

std::string gemm_library() {
  if constexpr (kHasCuda) return cuda::gemm_library();
  return {};
}

std::string gemm_platform(Context& ctx) {
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::cuda) return cuda::gemm_platform(ctx);
  }
  return {};
}

AlgorithmCache algorithms_of(Context& ctx) {
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::cuda) return cuda::algorithms_of(ctx);
  }
  return {};
}

void adopt_algorithms(Context& ctx, const AlgorithmCache& table) {
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::cuda) return cuda::adopt_algorithms(ctx, table);
  }
}

std::int64_t chosen_algorithms(Context& ctx) {
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::cuda) return cuda::chosen_algorithms(ctx);
  }
  return 0;
}

}  // namespace hyperslab::ops
