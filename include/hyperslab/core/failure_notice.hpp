// SPDX-License-Identifier: Apache-2.0
// Lets a process that ends in a signal handler report it to the other ranks first, by its watchdog.
#pragma once

namespace hyperslab::failure_notice {

/// Asks the listener to report to the other ranks that this one leaves after an error, and returns
/// when it has, after two seconds at the latest, or at once if there is no listener. Safe in a
/// signal handler of any thread but the listener's.
void give() noexcept;

/// From now on give() writes to `event`, an eventfd, and waits for the answer; -1: there is no
/// listener any more. One listener at a time.
void listen(int event) noexcept;
/// The listener: true if a notice was given.
[[nodiscard]] bool is_given() noexcept;
/// The listener: the other ranks have the report.
void answer() noexcept;

}  // namespace hyperslab::failure_notice
