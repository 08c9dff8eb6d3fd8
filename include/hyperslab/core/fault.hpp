// SPDX-License-Identifier: Apache-2.0
// Named points of the program at which a fault can be made on purpose: by HYPERSLAB_FAULT in the
// whole program, by an Injection in a test. If none is set, a point costs one relaxed atomic load.
//
//   HYPERSLAB_FAULT=POINT[@PATH][#N]:RANK:STEP:ACTION[,...]
//
// POINT is a name of points(), or * for every call on a file or folder; @PATH only where the path
// contains this text; #N only the N-th time (from 1) that all else matches; RANK and STEP a number
// or * for any. STEP is set_step()'s, 0 before the first. ACTION is one of actions().
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace hyperslab::fault {

enum class Action : std::uint8_t { kill, stop, delay, error, no_space, short_write, nan, flip };

struct ActionText {
  Action action;
  std::string_view name;  ///< as in HYPERSLAB_FAULT; of a delay without its seconds
  std::string_view text;
};

enum class Kind : std::uint8_t {
  place,    ///< in the program; an error there ends the run as one of storage
  records,  ///< a place where an error of storage is only warned of: let the file's calls fail
  call,     ///< on a file or folder: it can fail as the system's call does
  write,    ///< a call that can be cut short
  numbers,  ///< a place whose numbers can become NaN
  bits,     ///< a place where a bit can flip
};

struct Point {
  std::string_view name;
  std::string_view text;
  Kind kind = Kind::place;

  [[nodiscard]] bool is_call() const { return kind == Kind::call || kind == Kind::write; }
};

/// All points, in the order in which a run comes to them.
[[nodiscard]] std::span<const Point> points();
[[nodiscard]] std::span<const ActionText> actions();
/// True if the action means something at that point.
[[nodiscard]] bool fits(Action action, const Point& point);
/// The text of `hyperslab --faults`.
[[nodiscard]] std::string description();

/// Takes a value of HYPERSLAB_FAULT in place of earlier faults; an empty one sets nothing. Throws
/// Error(usage) that says what is wrong with it. Before other threads come to points.
void set(const std::string& value);
/// "HYPERSLAB_FAULT is set: ..." for a warning; empty if nothing is set.
[[nodiscard]] std::string warning();
/// Who and where this process is, for RANK and STEP.
void set_rank(int rank);
void set_step(std::int64_t step);

/// Answer of an injection to a write: let it write about half of its bytes.
inline constexpr int kShortWrite = -1;

namespace detail {
inline std::atomic<int> sources{0};  ///< HYPERSLAB_FAULT and injections
[[nodiscard]] int ask(const char* point, const std::string& subject);
void reach(const char* point);
[[nodiscard]] bool corrupts(const char* point);
}  // namespace detail

/// Asks before the call at `point` ("file.write") on `subject` (a path): 0 lets the call happen, an
/// errno makes it fail with that, kShortWrite cuts a write. From any thread.
[[nodiscard]] inline int at(const char* point, const std::string& subject) {
  if (detail::sources.load(std::memory_order_relaxed) == 0) return 0;
  return detail::ask(point, subject);
}

/// A point that is no call: it may kill, stop or delay this process. Throws Error(storage) if the
/// fault is an error. From any thread.
inline void reach(const char* point) {
  if (detail::sources.load(std::memory_order_relaxed) != 0) detail::reach(point);
}

/// A point with numbers: true if the caller makes them NaN (`nan`) or flips a bit (`flip`). It is
/// reach() as well.
[[nodiscard]] inline bool corrupts(const char* point) {
  return detail::sources.load(std::memory_order_relaxed) != 0 && detail::corrupts(point);
}

/// Answers at(), as long as it lives, on the threads that ask. Only one may live at a time, and no
/// thread may ask while it is destroyed.
class Injection {
 public:
  using Answer = std::function<int(std::string_view point, const std::string& subject)>;
  explicit Injection(Answer answer);
  ~Injection();
  Injection(const Injection&) = delete;
  Injection& operator=(const Injection&) = delete;
  Injection(Injection&&) = delete;
  Injection& operator=(Injection&&) = delete;

 private:
  Answer answer_;
};

}  // namespace hyperslab::fault
