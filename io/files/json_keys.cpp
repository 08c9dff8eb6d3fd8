// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/io/json_keys.hpp"

#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>
#include <vector>

namespace hyperslab::io {
namespace {

using nlohmann::json;

/// Collects the keys of the objects that are open, and ends at the first that is there already.
class Keys final : public nlohmann::json_sax<json> {
 public:
  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t /*value*/) override { return true; }
  bool number_float(number_float_t /*value*/, const string_t& /*digits*/) override { return true; }
  bool string(string_t& /*value*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool start_array(std::size_t /*size*/) override { return true; }
  bool end_array() override { return true; }
  bool start_object(std::size_t /*size*/) override {
    open_.emplace_back();
    return true;
  }
  bool end_object() override {
    open_.pop_back();
    return true;
  }
  bool key(string_t& name) override {
    if (open_.back().insert(name).second) return true;
    repeated_ = std::move(name);
    return false;
  }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return false;
  }

  [[nodiscard]] std::optional<std::string> repeated() { return std::move(repeated_); }

 private:
  std::vector<std::unordered_set<std::string>> open_;
  std::optional<std::string> repeated_;
};

}  // namespace

std::optional<std::string> repeated_key(std::string_view text) {
  Keys keys;
  json::sax_parse(text.data(), text.data() + text.size(), &keys);
  return keys.repeated();
}

}  // namespace hyperslab::io
