// SPDX-License-Identifier: Apache-2.0
#include "host_id.hpp"

#include <filesystem>
#include <fstream>
#include <system_error>

namespace hyperslab::comm {

std::string machine_id(const std::string& host) {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  return std::getline(file, id) ? id : host;
}

std::string neighbourhood_id(const std::string& host) {
  std::string id = machine_id(host);
  for (const char* kind : {"pid", "net"}) {
    std::error_code unknown;
    id +=
        " " + std::filesystem::read_symlink(std::string("/proc/self/ns/") + kind, unknown).string();
  }
  return id;
}

}  // namespace hyperslab::comm
