#include "command_line.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <set>

#include <terrace/base/text/json_writer.h>
#include <terrace/base/text/shown_text.h>
#include <terrace/runtime/config/schema/schema.h>
#include <terrace/runtime/config/schema/suggestions.h>

#include "console.h"
#include "flags/flag_synonyms.h"
#include "wrapped_text.h"

namespace terrace {
namespace {

// Returns the flag of a word: "--steps" for "--steps=5"; empty if the word is no flag.
std::string flag_of(const std::string& word) {
  if (word.size() < 2 || word[0] != '-' || word == "--") return "";
  if (word[1] >= '0' && word[1] <= '9') return "";  // a negative number
  return word.substr(0, word.find('='));
}

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    for (const std::string& name : option->get_snames()) flags.push_back("-" + name);
  }
  return flags;
}

// Returns the word of `known` that is nearest to `word`; empty if none is similar.
std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  const auto distance = [&](const std::string& other) { return edit_distance(word, other); };
  const auto best = std::min_element(known.begin(), known.end(),
                                     [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
  const size_t allowed = std::max<size_t>(1, word.size() / 4);
  return best != known.end() && distance(*best) <= allowed ? *best : "";
}

// Returns true for flags that FlagGroup::texts() makes.
bool may_be_repeated(const CLI::Option& option) {
  return option.get_expected_max() > 1 && !option.get_allow_extra_args();
}

std::string with_suggestion(const std::string& what, const std::string& suggestion, const std::string& help) {
  return what + (suggestion.empty() ? "" : fmt::format("; did you mean \"{}\"?", suggestion)) + "\n  " + help;
}

}  // namespace

namespace {

std::string& command_line() {
  static std::string line;
  return line;
}

std::string shell_quoted(const std::string& word) {
  const bool is_plain = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("-_./=:,+@%").find(c) != std::string_view::npos;
  });
  if (is_plain) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace

const std::string& given_command_line() {
  return command_line();
}

std::vector<std::string> normalised_arguments(int argc, const char* const* argv) {
  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  command_line() = "terrace";
  for (const std::string& word : arguments) command_line() += " " + shell_quoted(word);
  for (std::string& word : arguments) {
    if (word == "--") break;
    if (!word.starts_with("--")) continue;
    const auto end = word.begin() + static_cast<std::ptrdiff_t>(std::min(word.find('='), word.size()));
    std::replace(word.begin(), end, '_', '-');
  }
  return arguments;
}

std::vector<std::string> words_of_program(std::vector<std::string>& arguments) {
  const auto dashes = std::ranges::find(arguments, "--");
  if (dashes == arguments.end() || arguments.front() != "launch") return {};
  std::vector<std::string> words(dashes + 1, arguments.end());
  arguments.erase(dashes, arguments.end());
  return words;
}

const CLI::App& chosen_command(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? command.get_name() : full_name(*parent) + " " + command.get_name();
}

std::string wrong_argument(CLI::App& app, const std::vector<std::string>& arguments) {
  CLI::App* command = &app;
  std::set<std::string> seen;
  for (const std::string& word : arguments) {
    if (word == "--") break;
    const std::string flag = flag_of(word);
    if (!flag.empty()) {
      const std::vector<std::string> known = flags_of(*command);
      if (std::find(known.begin(), known.end(), flag) != known.end()) {
        const bool repeated = may_be_repeated(*command->get_option_no_throw(flag));
        if (seen.insert(flag).second || repeated) continue;
        return flag + " is given more than once\n  leave one of them out";
      }
      const std::string full = full_name(*command);
      if (command == &app) {
        return fmt::format(
            "terrace has no flag \"{}\" in front of a command\n  write the command first: terrace "
            "train {} ...",
            flag, word);
      }
      if (const std::string_view meant = synonym_of(flag); !meant.empty()) {
        const bool is_here = std::find(known.begin(), known.end(), meant) != known.end();
        if (is_here || !meant.starts_with("--"))
          return fmt::format("{} has no flag \"{}\"; here it is {}\n  `{} --help` lists the flags", full,
                             flag, meant, full);
      }
      return with_suggestion(fmt::format("{} has no flag \"{}\"", full, flag), nearest(flag, known),
                             command->get_name() == "launch"
                                 ? "what the ranks run stands behind \"--\": terrace launch -n 4 -- train ..."
                                 : fmt::format("`{} --help` lists them", full));
    }
    std::vector<std::string> names;
    for (const CLI::App* sub : command->get_subcommands({})) names.push_back(sub->get_name());
    if (names.empty()) continue;  // the word is a value
    if (std::find(names.begin(), names.end(), word) == names.end()) {
      const std::string what = command == &app
                                   ? fmt::format("there is no subcommand \"{}\"", word)
                                   : fmt::format("{} has no subcommand \"{}\"", full_name(*command), word);
      return with_suggestion(what, nearest(word, names),
                             fmt::format("`{} --help` lists them", full_name(*command)));
    }
    command = command->get_subcommand(word);
  }
  return "";
}

std::string missing_argument(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_required() || option->count() > 0) continue;
    const std::string name = option->get_positional() ? option->get_type_name() : option->get_name();
    std::string what = option->get_description();
    if (!what.empty()) what[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(what[0])));
    return fmt::format("{} is missing\n  give {}; `{} --help` shows how", name, what, full_name(command));
  }
  return "";
}

int run_chosen(const Command& command, std::span<const std::unique_ptr<Subcommand>> members) {
  const std::string chosen = command.chosen_subcommand();
  const auto is_chosen = [&](const auto& member) { return member->name() == chosen; };
  return (*std::ranges::find_if(members, is_chosen))->run();
}

void refuse(const std::string& flag, const Reason& reason, const std::string& advice) {
  throw Error(ErrorKind::config, {"cannot use", flag, reason, advice});
}

DataType type_of_flag(const std::string& flag, const std::string& name) {
  for (const DataType type : {DataType::fp32, DataType::bf16, DataType::fp16}) {
    if (name == name_of(type)) return type;
  }
  refuse(flag + " " + name, "there is no such type", "give fp32, bf16 or fp16");
}

std::string folder_list(const std::vector<std::string>& folders) {
  if (folders.empty()) return "";
  JsonWriter list;
  list.begin_list();
  for (const std::string& folder : folders) list.value(folder);
  return list.end().take();
}

void require_values(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_expected_max() == 0) continue;  // a switch takes no value
    const std::vector<std::string>& values = option->results();
    for (size_t i = 0; i < values.size(); ++i) {
      if (!values[i].empty()) continue;
      // For a word without a flag, the word before it is named.
      const bool follows = i > 0 && option->get_positional();
      refuse_empty(follows ? values[i - 1] + " ''" : option->get_name());
    }
  }
}

void refuse_missing(const std::string& flag, const std::string& advice, const Reason& reason) {
  throw Error(ErrorKind::config, {flag + " is missing", "", reason, advice});
}

void require_exists(const std::string& subject, const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) return;
  refuse(fmt::format("{} {}", subject, path.string()), system_reason(error ? error.value() : ENOENT),
         "check the path");
}

void require_folder(const std::string& subject, const std::filesystem::path& path) {
  require_exists(subject, path);
  if (!std::filesystem::is_directory(path))
    refuse(fmt::format("{} {}", subject, path.string()), system_reason(ENOTDIR), "name a folder");
}

std::string time_text(std::filesystem::file_time_type time) {
  const auto system = std::chrono::file_clock::to_sys(time);
  return fmt::format("{:%Y-%m-%d %H:%M}",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(
                         std::chrono::time_point_cast<std::chrono::system_clock::duration>(system))));
}

void print_result(const std::string& text) {
  print_as_it_is(shown_lines(text));
}

void print_as_it_is(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0) return;
  throw Error(ErrorKind::io,
              {"cannot write the result", "stdout", system_reason(errno), "write it to where there is room"});
}

void print_error(const Error& error) {
  const std::string text = "terrace: error: " + error.in(Door::program);
  std::fprintf(stderr, "%s\n", wrapped_message(text, terminal_columns(STDERR_FILENO)).c_str());
}

int print_measurement(Console& console, FunctionRef<std::string()> measure) {
  std::string result;
  try {
    result = measure();
  } catch (const Error& error) {
    console.end_progress();
    print_error(error);
    return error.kind() == ErrorKind::config ? kUsage : kFailed;
  }
  console.end_progress();
  print_result(result);
  return kDone;
}

int status_of_refusal(const Error& error) {
  return error.kind() == ErrorKind::config || error.kind() == ErrorKind::capacity ? kUsage : kFailed;
}

}  // namespace terrace
