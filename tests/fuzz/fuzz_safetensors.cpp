// SPDX-License-Identifier: Apache-2.0
// One .safetensors file, whose tensors of up to 4096 elements are read.
#include "fuzz/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hyperslab::fuzz;
  static const Folder folder;
  read_safetensors(folder.write("model.safetensors", text_of(data, size)));
  return 0;
}
