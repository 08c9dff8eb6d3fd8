// SPDX-License-Identifier: Apache-2.0
// Two runs must not write into one directory.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace hyperslab::run {

/// Holds `<directory>/lock`, by flock: the system lets go of it however the process ends, so there
/// is no stale lock. The file says who holds it: "process 123 on host n1 (job 77) since ...", and
/// is empty if no one does or did until a clean end. If the file system has no flock, this
/// warns and holds nothing; if flock does not reach other hosts, another host's entry in the file
/// is reported as a warning.
class RunLock {
 public:
  /// Makes the directory if it is not there. `key`: of the deck, that chooses it. Throws
  /// Error(storage): someone else holds it, or the directory cannot be made or written.
  RunLock(std::string directory, const std::string& host, std::string key);
  /// Lets go. If keep() was not called the directories and the file that this made go too.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  RunLock(RunLock&&) = delete;
  RunLock& operator=(RunLock&&) = delete;

  /// The start went well: its files stay.
  void keep() { kept_ = true; }
  /// False if the file system has no flock.
  [[nodiscard]] bool is_held() const { return held_; }
  /// True if the file that this holds is still the one in the directory.
  [[nodiscard]] bool is_in_place() const;

 private:
  void make_directory();
  void open_file();
  [[nodiscard]] bool try_to_hold();
  [[nodiscard]] std::string text() const;
  void write(const std::string& text) const;
  void remove_what_was_made() const;
  [[noreturn]] void fail(const std::string& what, int error) const;

  std::string directory_;
  std::string path_;
  std::string key_;
  std::vector<std::string> made_;  ///< directories, outermost first
  int file_ = -1;
  bool made_file_ = false;
  bool held_ = false;
  bool kept_ = false;
};

/// True if `path` is `directory` or in it, links resolved as far as they exist.
[[nodiscard]] bool is_inside(const std::string& path, const std::string& directory);

/// Throws Error(storage) if `directory` cannot be made or a file in it cannot be created,
/// synced, renamed and removed. `label` tells the files of processes on several hosts apart.
void probe_directory(const std::string& directory, const std::string& label = "");

/// Removes files of probe_directory() that killed starts left in a directory that this process
/// holds.
void remove_stale_probes(const std::string& directory);

}  // namespace hyperslab::run
