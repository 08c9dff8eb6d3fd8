// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hyperslab/serve/http_server.hpp"

namespace hyperslab::serve {

/// The names by which a server may be asked. A web page of another site that has its own name
/// resolved to this machine (DNS rebinding) is of the same site as the server, for a browser, but
/// its requests still have that name in Host and Origin.
class HostRule {
 public:
  /// Every name is allowed.
  HostRule() = default;
  /// `address`: of this machine, that the server listens on. That one is allowed, and localhost,
  /// 127.0.0.1 and [::1].
  explicit HostRule(const std::string& address);

  /// True if Host, and Origin where it came, have allowed names. Ports do not count: a tunnel
  /// changes them. A request of HTTP/1.0 without Host is allowed, as no browser sends it.
  [[nodiscard]] bool allows(const HttpRequest& request) const;
  /// Those that are allowed.
  [[nodiscard]] std::string names() const;

 private:
  [[nodiscard]] bool allows_authority(std::string_view authority) const;

  std::vector<std::string> names_;  ///< none: all
};

}  // namespace hyperslab::serve
