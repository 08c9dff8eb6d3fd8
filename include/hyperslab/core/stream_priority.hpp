// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace hyperslab {

/// On a GPU, blocks of kernels on the streams that this thread makes from now on start before those
/// that other streams have waiting: for short work beside long work that must not wait for it.
void prefer_streams_of_this_thread() noexcept;

/// While it lives, streams that this thread makes are for long work beside which other streams do
/// side work: their blocks start before blocks of streams made without it, and after blocks of
/// streams that a thread prefers.
class MainStreams {
 public:
  MainStreams() noexcept;
  ~MainStreams();
  MainStreams(const MainStreams&) = delete;
  MainStreams& operator=(const MainStreams&) = delete;
  MainStreams(MainStreams&&) = delete;
  MainStreams& operator=(MainStreams&&) = delete;
};

}  // namespace hyperslab
