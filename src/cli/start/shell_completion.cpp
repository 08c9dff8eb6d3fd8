// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "../command.hpp"
#include "about.hpp"
#include "hyperslab/deck/reference.hpp"

namespace hyperslab::cli {
namespace {

/// Functions that complete from lists of the program's words.
constexpr const char* kFunctions = R"sh(
_hyperslab_reply() {  # words, beginning, what stands before and after each
  local word
  for word in $1; do
    case $word in "$2"*) COMPREPLY+=("${3-}$word${4-}") ;; esac
  done
}

_hyperslab_files() {  # beginning, pattern of files besides folders
  local path
  while IFS= read -r path; do
    if [ -d "$path" ]; then path=$path/; fi
    case $path in */|$2) COMPREPLY+=("$path") ;; esac
  done < <(compgen -f -- "$1")
  _hyperslab_option filenames
}

_hyperslab_option() {
  compopt -o "$1" 2>/dev/null || true  # which zsh has not
}

_hyperslab_override() {  # the word after --set
  case $1 in
    *=*) _hyperslab_reply "$(_hyperslab_values "${1%%=*}")" "${1#*=}" "${1%%=*}=" ;;
    *) _hyperslab_reply "$_hyperslab_keys" "$1" "" "="; _hyperslab_option nospace ;;
  esac
}

_hyperslab() {
  local word=${COMP_WORDS[COMP_CWORD]} before='' command='' i
  COMPREPLY=()
  if [ "$COMP_CWORD" -gt 0 ]; then before=${COMP_WORDS[COMP_CWORD - 1]}; fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    case " $_hyperslab_commands " in *" ${COMP_WORDS[i]} "*) command=${COMP_WORDS[i]}; break ;; esac
  done
  # bash makes words of their own of key, = and value
  if [ "$word" = = ]; then word='' before='='; i=$COMP_CWORD; else i=$((COMP_CWORD - 1)); fi
  if [ "$before" = = ] && [ "$i" -ge 2 ] && [ "${COMP_WORDS[i - 2]}" = --set ]; then
    _hyperslab_reply "$(_hyperslab_values "${COMP_WORDS[i - 1]}")" "$word"
  elif [ "$before" = --set ]; then
    _hyperslab_override "$word"
  elif [ -z "$command" ]; then
    case $before in
      --keys|--rules) _hyperslab_reply "$_hyperslab_sections --markdown" "$word" ;;
      --completion) _hyperslab_reply "bash zsh" "$word" ;;
      *) _hyperslab_reply "$_hyperslab_commands --help --keys --rules --completion --faults --version" "$word" ;;
    esac
  else
    case $word in
      -*) _hyperslab_reply "$(_hyperslab_options "$command")" "$word" ;;
      *) case $before in
           -*) _hyperslab_files "$word" '*' ;;
           *) _hyperslab_first "$command" "$word" ;;
         esac ;;
    esac
  fi
}

_hyperslab_first() {  # command word
  case $1 in
    checkpoint) _hyperslab_reply "info verify diff prune export import merge quantize upcycle" "$2"; _hyperslab_files "$2" '*' ;;
    train|eval|bench|plan|parity) _hyperslab_files "$2" '*.y*ml' ;;
    *) _hyperslab_files "$2" '*' ;;
  esac
}

complete -F _hyperslab hyperslab
)sh";

/// Read from a folder of $fpath, the script is itself the function _hyperslab, whose first call
/// replaces it and has to complete.
constexpr const char* kZshBegin = "#compdef hyperslab\n";
constexpr const char* kZshStart =
    "autoload -Uz compinit bashcompinit\n"
    "(( $+functions[compdef] )) || compinit\n"
    "bashcompinit\n";
constexpr const char* kZshEnd =
    "if [ \"${funcstack[1]-}\" = _hyperslab ]; then _bash_complete -F _hyperslab; fi\n";

std::string options_function() {
  std::string text = "_hyperslab_options() {\n  case $1 in\n";
  for (const Command& command : commands()) {
    if (command.arguments == nullptr) continue;
    const Arguments arguments = command.arguments();
    std::vector<std::string> names;
    for (const auto& name : arguments.option_names()) names.push_back("--" + name);
    text += fmt::format("    {}) echo '{}' ;;\n", command.name, fmt::join(names, " "));
  }
  return text + "  esac\n}\n";
}

std::string values_function() {
  std::string text = "_hyperslab_values() {\n  case $1 in\n";
  for (const auto& section : deck::sections()) {
    for (const auto& key : section.keys) {
      if (key.choices.empty()) continue;
      text += fmt::format("    {}) echo '{}' ;;\n", key.key, fmt::join(key.choices, " "));
    }
  }
  return text + "  esac\n}\n";
}

std::string words() {
  std::vector<std::string> names;
  std::vector<std::string> keys;
  std::vector<std::string_view> sections;
  for (const Command& command : commands()) names.push_back(command.name);
  for (const auto& section : deck::sections()) {
    sections.push_back(section.name);
    for (const auto& key : section.keys) keys.push_back(key.key);
  }
  return fmt::format("_hyperslab_commands='{}'\n_hyperslab_sections='{}'\n_hyperslab_keys='{}'\n",
                     fmt::join(names, " "), fmt::join(sections, " "), fmt::join(keys, " "));
}

}  // namespace

std::string completion_script(const std::string& shell) {
  if (shell != "bash" && shell != "zsh") {
    throw Error(ExitCode::usage, "--completion is for bash or zsh, found '" + shell + "'");
  }
  const std::string body = "# Completes hyperslab's commands, options, keys of --set and files.\n";
  const std::string lists = words() + options_function() + values_function() + kFunctions;
  return shell == "zsh" ? kZshBegin + body + kZshStart + lists + kZshEnd : body + lists;
}

}  // namespace hyperslab::cli
