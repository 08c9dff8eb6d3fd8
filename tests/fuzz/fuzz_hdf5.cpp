// SPDX-License-Identifier: Apache-2.0
#include "fuzz/token_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hyperslab::fuzz;
  read_token_file("tokens.h5", text_of(data, size), false);
  read_token_file("tokens.h5", text_of(data, size), true);
  return 0;
}
