// SPDX-License-Identifier: Apache-2.0
#include "fuzz/image_set.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hyperslab::fuzz;
  static const Folder folder;
  read_image_set(folder.write("images.tar", text_of(data, size)));
  return 0;
}
