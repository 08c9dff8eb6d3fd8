// SPDX-License-Identifier: Apache-2.0
#include "fuzz/token_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  hyperslab::fuzz::read_token_file("tokens.npy", hyperslab::fuzz::text_of(data, size), false);
  return 0;
}
