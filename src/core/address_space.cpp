// SPDX-License-Identifier: Apache-2.0
// Nothing here may need a constructor: it runs before the libraries' constructors.
#include "hyperslab/core/address_space.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace hyperslab {
namespace {

constexpr std::size_t kMebibyte = std::size_t{1} << 20;

/// Bytes that are mapped; 0 if the system does not report it.
std::size_t used_bytes() {
  std::array<char, 64> text{};
  const int file = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t got = ::read(file, text.data(), text.size() - 1);
  ::close(file);
  if (got <= 0) return 0;
  return std::strtoull(text.data(), nullptr, 10) * static_cast<std::size_t>(::getpagesize());
}

std::string mebibytes(std::size_t bytes) { return std::to_string(bytes / kMebibyte) + " MiB"; }

}  // namespace

std::optional<AddressSpace> address_space() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  const std::size_t used = used_bytes();
  if (used == 0) return std::nullopt;
  const auto allowed = static_cast<std::size_t>(limit.rlim_cur);
  return AddressSpace{allowed, allowed - std::min(allowed, used)};
}

std::string address_space_shortage(const AddressSpace& space, std::size_t needed_bytes,
                                   int threads) {
  return mebibytes(space.limit_bytes) + " of address space are allowed (ulimit -v) and " +
         mebibytes(space.left_bytes) + " of them are left, but a start with " +
         std::to_string(threads) + (threads == 1 ? " thread" : " threads") + " takes " +
         mebibytes(needed_bytes) + " more; ask for more (ulimit -v unlimited)" +
         (threads > 1 ? " or compute with fewer threads (OMP_NUM_THREADS=1)" : "");
}

}  // namespace hyperslab
