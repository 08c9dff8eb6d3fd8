// SPDX-License-Identifier: Apache-2.0
// Complaints about a command line, in this program's words.
#pragma once

#include <string>
#include <vector>

namespace boost::program_options {
class error;
class options_description;
}  // namespace boost::program_options

namespace hyperslab::cli {

/// Why `arguments` cannot be read as `options`, and the option that may have been meant.
[[nodiscard]] std::string explain(const boost::program_options::error& error,
                                  const boost::program_options::options_description& options,
                                  const std::vector<std::string>& arguments);

/// "--set train.steps=10" if `word`, given without an option, can be an override: it is
/// key=value, or the value of a `--set key` before it; else empty.
[[nodiscard]] std::string meant_override(const std::string& word,
                                         const std::vector<std::string>& arguments);

/// The text in lines of at most 80 columns, broken at blanks; its own ends of lines stay.
[[nodiscard]] std::string wrapped(const std::string& text);

}  // namespace hyperslab::cli
