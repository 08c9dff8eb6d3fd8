// SPDX-License-Identifier: Apache-2.0
// A checkpoint's manifest, as it is and sealed again with the checksum that its content has.
#include <nlohmann/json.hpp>

#include "checkpoint/manifest.hpp"
#include "files/crc32c.hpp"
#include "fuzz/input.hpp"

namespace {

using nlohmann::json;

/// The manifest with the right checksum; empty if it is no object of JSON.
std::string sealed(std::string_view text) {
  constexpr int kDeepest = 100;  // dump() calls itself
  bool deep = false;
  const auto watch = [&](int depth, json::parse_event_t /*event*/, const json& /*parsed*/) {
    deep = deep || depth > kDeepest;
    return !deep;
  };
  json value = json::parse(text, watch, false);
  if (deep || !value.is_object()) return "";
  value.erase("crc32c");
  const std::string content = value.dump(-1, ' ', false, json::error_handler_t::replace);
  value["crc32c"] = hyperslab::io::crc32c(content.data(), content.size());
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

void read(const std::string& text) {
  using namespace hyperslab;
  fuzz::take_or_refuse({ExitCode::checkpoint}, [&] {
    const io::Manifest manifest = io::manifest_of_text(text, "manifest.json");
    (void)io::to_text(manifest);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = hyperslab::fuzz::text_of(data, size);
  read(std::string(text));
  if (const std::string again = sealed(text); !again.empty()) read(again);
  return 0;
}
