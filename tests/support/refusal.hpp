// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "hyperslab/core/error.hpp"

namespace hyperslab::test {

/// The message of the Error that `work` must throw, with this code.
template <class Work>
std::string refusal(ExitCode code, Work work) {
  try {
    work();
  } catch (const Error& error) {
    std::string message = error.what();
    EXPECT_EQ(error.code(), code) << message;
    return message;
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

/// EXPECTs an Error with this code whose message is one line with all these parts.
template <class Work>
void expect_error(ExitCode code, std::initializer_list<std::string> parts, Work work) {
  const std::string message = refusal(code, work);
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
  }
}

}  // namespace hyperslab::test
