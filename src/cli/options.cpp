// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <boost/program_options.hpp>
#include <type_traits>

namespace hyperslab::cli::po {

OptionAdder& OptionAdder::operator()(const char* name, const char* help) {
  options_.add_options()(name, help);
  return *this;
}

template <class T>
OptionAdder& OptionAdder::operator()(const char* name, const Value<T>& value, const char* help) {
  auto* semantic = boost::program_options::value<T>();  // which the description comes to own
  if constexpr (!std::is_same_v<T, std::vector<std::string>>) {  // Boost can print no list
    if (value.default_) semantic->default_value(*value.default_);
  }
  if (value.composing_) semantic->composing();
  if (value.multitoken_) semantic->multitoken();
  if (value.required_) semantic->required();
  options_.add_options()(name, semantic, help);
  return *this;
}

template OptionAdder& OptionAdder::operator()(const char*, const Value<int>&, const char*);
template OptionAdder& OptionAdder::operator()(const char*, const Value<std::int64_t>&, const char*);
template OptionAdder& OptionAdder::operator()(const char*, const Value<std::uint64_t>&,
                                              const char*);
template OptionAdder& OptionAdder::operator()(const char*, const Value<double>&, const char*);
template OptionAdder& OptionAdder::operator()(const char*, const Value<std::string>&, const char*);
template OptionAdder& OptionAdder::operator()(const char*, const Value<std::vector<std::string>>&,
                                              const char*);

}  // namespace hyperslab::cli::po
