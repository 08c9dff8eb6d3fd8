// SPDX-License-Identifier: Apache-2.0
// A config.json of transformers, which may also be an adapter_config.json of PEFT.
#include "exchange_config.hpp"
#include "fuzz/input.hpp"
#include "peft_config.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hyperslab;
  const std::string text(fuzz::text_of(data, size));
  fuzz::take_or_refuse({ExitCode::checkpoint},
                       [&] { (void)interop::read_foreign_config(text, "config.json"); });
  fuzz::take_or_refuse({ExitCode::checkpoint}, [&] {
    interop::Complaints complaints;
    (void)interop::read_peft_config(text, "adapter_config.json", complaints);
    complaints.raise(ExitCode::checkpoint, "adapter_config.json");
  });
  return 0;
}
