// SPDX-License-Identifier: Apache-2.0
// What the fuzz targets share. A target is a function LLVMFuzzerTestOneInput: libFuzzer calls it
// with bytes that it makes up, and replay_main.cpp with those of the corpus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <string_view>

#include "hyperslab/core/error.hpp"

namespace hyperslab::fuzz {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// A folder of this process, in memory where the machine has such a file system, removed at the
/// end.
class Folder {
 public:
  Folder() {
    if (::mkdtemp(path_.data()) != nullptr) return;
    path_ = "/tmp/hyperslab_fuzz_XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  Folder(Folder&&) = delete;
  Folder& operator=(Folder&&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  /// Writes a file of the folder and returns its path.
  [[nodiscard]] std::string write(const std::string& name, std::string_view bytes) const {
    std::string path = path_ + "/" + name;
    std::ofstream file(path, std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path;
  }

 private:
  std::string path_ = "/dev/shm/hyperslab_fuzz_XXXXXX";
};

/// Runs `parse`, which may take its input or refuse it with an Error of one of `codes`. Anything
/// else ends the process: an internal Error, a foreign exception (no one catches it).
template <class Parse>
void take_or_refuse(std::initializer_list<ExitCode> codes, const Parse& parse) {
  try {
    parse();
  } catch (const Error& error) {
    for (const ExitCode code : codes) {
      if (error.code() == code) return;
    }
    std::fprintf(stderr, "refused with exit code %d: %s\n", static_cast<int>(error.code()),
                 error.what());
    std::abort();
  }
}

/// Cuts `text` at bytes of zero: part `index`, empty if there are fewer.
inline std::string_view part_of(std::string_view text, int index) {
  for (; index > 0; --index) {
    const std::size_t zero = text.find('\0');
    if (zero == std::string_view::npos) return {};
    text.remove_prefix(zero + 1);
  }
  return text.substr(0, text.find('\0'));
}

}  // namespace hyperslab::fuzz
