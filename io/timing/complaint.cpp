// SPDX-License-Identifier: Apache-2.0
#include "timing/complaint.hpp"

#include "hyperslab/core/log.hpp"
#include "hyperslab/core/recorder.hpp"

namespace hyperslab::io {
namespace {

constexpr double kSilentSeconds = 600;

}  // namespace

void Complaint::warn(const std::string& text) {
  const double now = now_seconds();
  if (warned_ && now - *warned_ < kSilentSeconds) return;
  log::warn(text);
  warned_ = now;
}

void Complaint::resolve(const std::string& text) {
  if (!warned_) return;
  log::info(text);
  warned_.reset();
}

}  // namespace hyperslab::io
