// SPDX-License-Identifier: Apache-2.0
// The part of Boost.Program_options that commands need to declare their options, under its names.
// Boost's headers take a compiler a second and a half: command.cpp, options.cpp and usage.cpp alone
// include them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace boost::program_options {
class options_description;
}

namespace hyperslab::cli::po {

/// The value that an option takes. T: int, std::int64_t, std::uint64_t, double, std::string or, for
/// an option with several values, std::vector<std::string>.
template <class T>
class Value {
 public:
  Value* operator->() { return this; }
  Value& default_value(T value)
    requires(!std::is_same_v<T, std::vector<std::string>>)
  {
    default_ = std::move(value);
    return *this;
  }
  /// The option may be repeated; its values are joined.
  Value& composing() {
    composing_ = true;
    return *this;
  }
  /// The option takes all arguments that follow it.
  Value& multitoken() {
    multitoken_ = true;
    return *this;
  }
  Value& required() {
    required_ = true;
    return *this;
  }

 private:
  friend class OptionAdder;
  std::optional<T> default_;
  bool composing_ = false;
  bool multitoken_ = false;
  bool required_ = false;
};

template <class T>
[[nodiscard]] Value<T> value() {
  return {};
}

/// add()("name", po::value<int>(), "help")("flag", "help"): each call adds an option.
class OptionAdder {
 public:
  explicit OptionAdder(boost::program_options::options_description& options) : options_(options) {}
  OptionAdder& operator()(const char* name, const char* help);
  template <class T>
  OptionAdder& operator()(const char* name, const Value<T>& value, const char* help);

 private:
  boost::program_options::options_description& options_;
};

}  // namespace hyperslab::cli::po
