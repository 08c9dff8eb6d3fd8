// SPDX-License-Identifier: Apache-2.0
#include "chat/row_json.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdlib>

#include "hyperslab/core/error.hpp"
#include "hyperslab/io/json_depth.hpp"

namespace hyperslab::io {
namespace {

using RowJson = nlohmann::ordered_json;

constexpr std::size_t kMostRowKeys = 1024;  // each is compared with all before it

[[noreturn]] void fail_json(const std::string& problem) { throw Error(ExitCode::data, problem); }

/// Builds the value of a text of JSON, and refuses what a reader might take in two ways.
class RowBuilder final : public nlohmann::json_sax<RowJson> {
 public:
  /// `root`: gets the value, and must outlive this.
  explicit RowBuilder(RowJson& root) : root_(root) {}

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t& digits) override {
    const bool is_whole = digits.find_first_of(".eE") == digits.npos;
    if (is_whole) fail_json("holds a whole number beyond 64 bits");
    return put(value);
  }
  bool string(string_t& text) override { return put(std::move(text)); }
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_object(std::size_t /*size*/) override { return open(RowJson::object()); }
  bool start_array(std::size_t /*size*/) override { return open(RowJson::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (open_.back()->size() >= kMostRowKeys) {
      fail_json(fmt::format("has an object of more than {} keys", kMostRowKeys));
    }
    if (open_.back()->contains(name)) fail_json(fmt::format("the key '{:.40}' stands twice", name));
    next_ = &(*open_.back())[name];
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    constexpr int kNumberOutOfRange = 406;
    if (error.id == kNumberOutOfRange) fail_json("holds a number that is too large");
    fail_json(fmt::format("is no JSON in UTF-8 from byte {} on", position));
  }

 private:
  bool put(RowJson value) {
    place(std::move(value));
    return true;
  }
  /// The place of the next value: the outermost, that of a key, or the end of a list.
  RowJson* place(RowJson value) {
    RowJson* at = next_;
    if (at == nullptr && open_.empty()) at = &root_;
    if (at == nullptr) {
      open_.back()->push_back(std::move(value));
      return &open_.back()->back();
    }
    next_ = nullptr;
    *at = std::move(value);
    return at;
  }
  bool open(RowJson value) {
    if (open_.size() >= static_cast<std::size_t>(kDeepestJson)) {
      fail_json("its JSON is nested too deep");
    }
    open_.push_back(place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  RowJson& root_;
  std::vector<RowJson*> open_;  ///< lists and objects within each other
  RowJson* next_ = nullptr;     ///< place of a key's value
};

/// repr() of a float: the fewest digits that read back, without an exponent from 1e-4 to 1e16.
std::string python_float(double value) {
  std::array<char, 32> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                          std::chars_format::scientific);
  const std::string_view all(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  const std::size_t mark = all.find('e');
  const int exponent = std::atoi(buffer.data() + mark + 1);
  if (value != 0 && (exponent < -4 || exponent >= 16)) return std::string(all);
  const auto [fixed_end, fixed_error] =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed);
  const std::string fixed(buffer.data(), fixed_end);
  return fixed.find('.') == fixed.npos ? fixed + ".0" : fixed;
}

void append_python(const RowJson& value, std::string& out) {
  if (!value.is_structured()) {
    out += value.is_number_float() ? python_float(value.get<double>()) : value.dump();
    return;
  }
  out += value.is_object() ? '{' : '[';
  bool is_first = true;
  for (const auto& [name, each] : value.items()) {
    if (!is_first) out += ", ";
    is_first = false;
    if (value.is_object()) out += RowJson(name).dump() + ": ";
    append_python(each, out);
  }
  out += value.is_object() ? '}' : ']';
}

}  // namespace

RowJson read_row(std::string_view line) {
  RowJson row;
  RowBuilder builder(row);
  RowJson::sax_parse(line.data(), line.data() + line.size(), &builder);
  if (!row.is_object()) {
    fail_json(fmt::format("expected an object of JSON, found {}", row.type_name()));
  }
  return row;
}

std::string python_json(const RowJson& value) {
  std::string out;
  append_python(value, out);
  return out;
}

}  // namespace hyperslab::io
