// SPDX-License-Identifier: Apache-2.0
// The model.safetensors.index.json of a folder with one file, whose tensors are "a" and "b".
#include "fuzz/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hyperslab::fuzz;
  static const Folder folder;
  static const std::string part = [] {
    const std::string header = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                               R"("b":{"dtype":"F16","shape":[2],"data_offsets":[8,12]}})";
    std::string bytes(8, '\0');
    bytes[0] = static_cast<char>(header.size());
    return folder.write("part.safetensors", bytes + header + std::string(12, '\1'));
  }();
  (void)folder.write("model.safetensors.index.json", text_of(data, size));
  read_safetensors(folder.path());
  return 0;
}
