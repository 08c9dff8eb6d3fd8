// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "hyperslab/io/json_depth.hpp"
#include "tokenizer/json_lines.hpp"

namespace hyperslab::io {
namespace {

using nlohmann::json;

/// Keeps the text under one key of the outermost object, and builds nothing else.
class TextUnderKey final : public nlohmann::json_sax<json> {
 public:
  explicit TextUnderKey(std::string_view key) : key_(key) {}

  bool null() override { return value("null"); }
  bool boolean(bool /*value*/) override { return value("a boolean"); }
  bool number_integer(number_integer_t /*value*/) override { return value("a number"); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return value("a number"); }
  bool number_float(number_float_t /*value*/, const string_t& /*digits*/) override {
    return value("a number");
  }
  bool binary(binary_t& /*value*/) override { return value("bytes"); }
  bool string(string_t& text) override {
    if (!expected_) return value("a text");
    expected_ = false;
    has_text_ = true;
    found_.text = std::move(text);
    return true;
  }
  bool start_object(std::size_t /*size*/) override {
    return (depth_ == 0 || value("an object")) && open();
  }
  bool start_array(std::size_t /*size*/) override { return value("a list") && open(); }
  bool end_object() override {
    if (--depth_ > 0 || has_text_) return true;
    return refuse(fmt::format("the key '{:.40}' is missing", key_));
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& name) override {
    expected_ = depth_ == 1 && name == key_;
    if (expected_ && has_text_) return refuse(fmt::format("the key '{:.40}' stands twice", key_));
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    constexpr int kNumberOutOfRange = 406;
    if (error.id == kNumberOutOfRange) return refuse("holds a number that is too large");
    return refuse(fmt::format("is no JSON in UTF-8 from byte {} on", position));
  }

  [[nodiscard]] JsonText found() { return std::move(found_); }

 private:
  bool refuse(std::string problem) {
    found_ = {{}, std::move(problem)};
    return false;
  }
  bool open() { return ++depth_ <= kDeepestJson || refuse("its JSON is nested too deep"); }
  /// A value that is not the text.
  bool value(const char* kind) {
    if (depth_ == 0) return refuse("expected an object of JSON, found " + std::string(kind));
    if (!expected_) return true;
    return refuse(fmt::format("'{:.40}' must be a text, found {}", key_, kind));
  }

  std::string_view key_;
  JsonText found_;
  int depth_ = 0;
  bool expected_ = false;  ///< the next value belongs to the key
  bool has_text_ = false;
};

}  // namespace

JsonText json_text(std::string_view line, std::string_view key) {
  TextUnderKey found(key);
  json::sax_parse(line.data(), line.data() + line.size(), &found);
  return found.found();
}

}  // namespace hyperslab::io
