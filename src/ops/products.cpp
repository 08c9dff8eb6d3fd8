// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/ops/products.hpp"

#include <algorithm>
#include <sstream>
#include <string_view>
#include <utility>

#include "backend.hpp"
#include "hyperslab/core/error.hpp"
#include "hyperslab/core/philox.hpp"

namespace hyperslab::ops {
namespace {

constexpr std::string_view kTitle = "hyperslab products ";
constexpr std::string_view kPlace = "on ";
constexpr std::string_view kEnd = "end ";

/// The last line, behind `body` with so many entries.
std::string end_of(const std::string& body, std::size_t entries) {
  std::ostringstream line;
  line << kEnd << entries << ' ' << std::hex << name_hash(body) << '\n';
  return line.str();
}

[[noreturn]] void refuse(const std::string& where, std::size_t line, const std::string& what) {
  throw Error(ExitCode::storage,
              where + ":" + std::to_string(line) + ": " + what +
                  "; without this table the algorithms of products are chosen anew");
}

/// The entries between title and end. Empty `problem`: all is well.
struct Reading {
  ProductTable table;
  std::size_t line = 1;
  std::string problem;
};

Reading read_entries(std::istringstream& lines) {
  Reading reading;
  std::string place;
  for (std::string line; reading.problem.empty() && std::getline(lines, line);) {
    ++reading.line;
    if (line.starts_with(kPlace)) {
      place = line.substr(kPlace.size());
      continue;
    }
    std::istringstream numbers(line);
    ProductTable::Kind kind{};
    ProductTable::Algorithm algorithm{};
    for (std::int64_t& part : kind) numbers >> part;
    numbers >> std::hex;
    for (std::uint64_t& word : algorithm) numbers >> word;
    if (numbers.fail() || !(numbers >> std::ws).eof() || place.empty()) {
      reading.problem = "found no entry of " + std::to_string(kind.size()) + " numbers and " +
                        std::to_string(algorithm.size()) + " words";
    }
    reading.table.add(place, kind, algorithm);
  }
  return reading;
}

}  // namespace

void ProductTable::add(const std::string& place, const Kind& kind, const Algorithm& algorithm) {
  places_[place].emplace(kind, algorithm);
}

void ProductTable::merge(const ProductTable& other) {
  for (const auto& [place, entries] : other.places_) {
    places_[place].insert(entries.begin(), entries.end());
  }
}

const ProductTable::Algorithm* ProductTable::find(const std::string& place,
                                                  const Kind& kind) const {
  const auto entries = places_.find(place);
  if (entries == places_.end()) return nullptr;
  const auto entry = entries->second.find(kind);
  return entry == entries->second.end() ? nullptr : &entry->second;
}

std::size_t ProductTable::size() const {
  std::size_t entries = 0;
  for (const auto& place : places_) entries += place.second.size();
  return entries;
}

std::size_t ProductTable::size_at(const std::string& place) const {
  const auto entries = places_.find(place);
  return entries == places_.end() ? 0 : entries->second.size();
}

std::string ProductTable::text() const {
  std::ostringstream body;
  body << kTitle << kFormat << '\n';
  for (const auto& [place, entries] : places_) {
    body << kPlace << place << '\n';
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

ProductTable ProductTable::of_text(const std::string& text, const std::string& where) {
  const std::string title = std::string(kTitle) + std::to_string(kFormat) + '\n';
  if (!text.starts_with(title)) {
    refuse(where, 1,
           "wanted '" + title.substr(0, title.size() - 1) + "', found '" +
               text.substr(0, std::min(text.find('\n'), title.size())) + "'");
  }
  const std::size_t end = text.rfind('\n' + std::string(kEnd));
  const std::string body = text.substr(0, end == std::string::npos ? end : end + 1);
  std::istringstream lines(body.substr(title.size()));
  Reading reading = read_entries(lines);
  if (!reading.problem.empty()) refuse(where, reading.line, reading.problem);
  if (body + end_of(body, reading.table.size()) != text) {
    refuse(where, reading.line + 1, "the table was cut off or changed here or before");
  }
  return std::move(reading.table);
}

std::string product_library() {
  if constexpr (kHasCuda) return cuda::product_library();
  return {};
}

std::string product_place(Context& ctx) {
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::cuda) return cuda::product_place(ctx);
  }
  return {};
}

ProductTable products_of(Context& ctx) {
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::cuda) return cuda::products_of(ctx);
  }
  return {};
}

void adopt_products(Context& ctx, const ProductTable& table) {
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::cuda) return cuda::adopt_products(ctx, table);
  }
}

std::int64_t chosen_products(Context& ctx) {
  if constexpr (kHasCuda) {
    if (ctx.device() == Device::cuda) return cuda::chosen_products(ctx);
  }
  return 0;
}

}  // namespace hyperslab::ops
