// SPDX-License-Identifier: Apache-2.0
#include "timing/complaint.hpp"

#include "hyperslab/core/log.hpp"
#include "hyperslab/core/recorder.hpp"

namespace hyperslab::io {
namespace {

constexpr double kSilentSeconds = 600;

}  // namespace

void Complaint::tell(const std::string& text) {
  const double now = now_seconds();
  if (told_ && now - *told_ < kSilentSeconds) return;
  log::warn(text);
  told_ = now;
}

void Complaint::settle(const std::string& text) {
  if (!told_) return;
  log::info(text);
  told_.reset();
}

}  // namespace hyperslab::io
