// SPDX-License-Identifier: Apache-2.0
#include "host_rule.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/beast/core/string.hpp>

namespace hyperslab::serve {
namespace {

bool is_port(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

/// The host of `host:port`.
std::string_view without_port(std::string_view authority) {
  const std::size_t colon = authority.rfind(':');
  const bool has_port = colon != std::string_view::npos && is_port(authority.substr(colon + 1)) &&
                        !authority.substr(0, colon).empty();
  return has_port ? authority.substr(0, colon) : authority;
}

}  // namespace

HostRule::HostRule(const std::string& address) : names_({"localhost", "127.0.0.1", "[::1]"}) {
  const bool is_v6 = address.find(':') != std::string::npos;
  std::string own = is_v6 ? "[" + address + "]" : address;
  if (std::ranges::find(names_, own) == names_.end()) names_.push_back(std::move(own));
}

bool HostRule::allows_authority(std::string_view authority) const {
  const std::string_view host = without_port(authority);
  return std::ranges::any_of(names_, [&](const std::string& name) {
    return boost::beast::iequals({name.data(), name.size()}, {host.data(), host.size()});
  });
}

bool HostRule::allows(const HttpRequest& request) const {
  if (names_.empty()) return true;
  if (!request.host.empty() && !allows_authority(request.host)) return false;
  if (request.origin.empty()) return true;
  constexpr std::string_view kScheme = "://";
  const std::string_view origin = request.origin;
  const std::size_t scheme = origin.find(kScheme);
  return scheme != std::string_view::npos &&
         allows_authority(origin.substr(scheme + kScheme.size()));
}

std::string HostRule::names() const { return fmt::format("{}", fmt::join(names_, ", ")); }

}  // namespace hyperslab::serve
