// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hyperslab::io {

/// Writes all of a small file: under a temporary name beside it, synced and renamed, so that `path`
/// is either untouched or complete. A device, a pipe or a symbolic link is written in place. Throws
/// Error(storage) with path and reason.
void write_text_file(const std::string& path, std::string_view text);

/// Appends a line and syncs it. Processes that do so at one time wait for each other, where the
/// file system has locks; a last line that lacks its end is ended first. Throws Error(storage) with
/// path and reason; the file then has the lines that it had.
void append_line(const std::string& path, std::string_view line);

/// Throws the error that write_text_file() would throw later if the folder of `path` is not there
/// or takes no files, or if `path` is a folder; and if it is a file that may not be written, which
/// a rename would replace. Writes nothing.
void require_place_for_file(const std::string& path);

/// All of a regular file of at most `most` bytes. Throws Error(storage) with path and reason; a
/// pipe or a device is refused without waiting for it.
[[nodiscard]] std::string read_text_file(const std::string& path, std::uint64_t most);

}  // namespace hyperslab::io
