// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/deck/deck.hpp"

namespace hyperslab::deck {
namespace {

constexpr std::string_view kNewest = "auto";
constexpr std::string_view kNothing = "never";
constexpr std::size_t kMostDigits = 18;  // fit into 64 bits

}  // namespace

std::optional<io::ResumeChoice> parse_resume(std::string_view text) {
  if (text == kNewest) return io::ResumeChoice{io::ResumeFrom::newest};
  if (text == kNothing) return io::ResumeChoice{io::ResumeFrom::nothing};
  const bool is_step = !text.empty() && text.size() <= kMostDigits &&
                       text.find_first_not_of("0123456789") == std::string_view::npos;
  if (!is_step) return std::nullopt;
  return io::ResumeChoice{io::ResumeFrom::step, std::stoll(std::string(text))};
}

std::string text_of(const io::ResumeChoice& choice) {
  switch (choice.from) {
    case io::ResumeFrom::newest: return std::string(kNewest);
    case io::ResumeFrom::nothing: return std::string(kNothing);
    case io::ResumeFrom::step: break;
  }
  return std::to_string(choice.step);
}

}  // namespace hyperslab::deck
