// SPDX-License-Identifier: Apache-2.0
#include "control_groups.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>

namespace hyperslab::comm {
namespace {

bool has_word(const std::string& list, const std::string& word) {
  return std::ranges::count(split_text(list, ','), word) > 0;
}

/// A hierarchy of control groups that can hold limits of a controller.
struct Hierarchy {
  bool second_version = false;
  std::string root;    ///< path of the mount within the hierarchy
  std::string folder;  ///< path of the mount in the file system
};

std::vector<Hierarchy> hierarchies(const std::string& controller,
                                   const std::string& process_folder) {
  std::vector<Hierarchy> found;
  std::ifstream file(process_folder + "/mountinfo");
  for (std::string line; std::getline(file, line);) {
    // id parent device root folder options [tags] - type source super-options
    const std::vector<std::string> words = split_text(line, ' ');
    const auto dash = std::ranges::find(words, "-");
    if (words.size() < 6 || std::distance(dash, words.end()) < 4) continue;
    const bool second = dash[1] == "cgroup2";
    if (second || (dash[1] == "cgroup" && has_word(dash[3], controller))) {
      found.push_back({second, words[3], words[4]});
    }
  }
  return found;
}

/// The group of the process in a hierarchy, as a path within it; none if it is in none.
std::optional<std::string> group_in(const Hierarchy& hierarchy, const std::string& controller,
                                    const std::string& process_folder) {
  std::ifstream file(process_folder + "/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (hierarchy.second_version ? controllers.empty() : has_word(controllers, controller)) {
      return line.substr(second + 1);
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> split_text(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

std::vector<ControlGroup> control_groups(const std::string& controller,
                                         const std::string& process_folder) {
  std::vector<ControlGroup> groups;
  for (const Hierarchy& hierarchy : hierarchies(controller, process_folder)) {
    const std::optional<std::string> group = group_in(hierarchy, controller, process_folder);
    if (!group) continue;
    // A mount may show a part of the hierarchy only, as in containers.
    const bool below = hierarchy.root != "/" && group->starts_with(hierarchy.root);
    std::string path = below ? group->substr(hierarchy.root.size()) : *group;
    for (;;) {
      while (path.ends_with('/')) path.pop_back();
      groups.push_back({hierarchy.folder + path, hierarchy.second_version});
      if (path.empty()) break;
      path.erase(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  }
  return groups;
}

}  // namespace hyperslab::comm
