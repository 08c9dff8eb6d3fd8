// SPDX-License-Identifier: Apache-2.0
// A deck, and after a byte of zero an override of it.
#include <vector>

#include "fuzz/input.hpp"
#include "hyperslab/deck/deck.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace hyperslab;
  const std::string_view input = fuzz::text_of(data, size);
  const std::string text(fuzz::part_of(input, 0));
  std::vector<std::string> overrides;
  if (const auto override_text = fuzz::part_of(input, 1); !override_text.empty()) {
    overrides.emplace_back(override_text);
  }
  fuzz::take_or_refuse({ExitCode::usage}, [&] {
    const auto config = deck::read_deck(text, "deck.yaml", overrides, deck::Surroundings());
    (void)deck::to_yaml(config);
  });
  return 0;
}
