// Command: a command of the program. FlagGroup: its flags and the values that they fill. This header leaves
// out the parser's headers, which take longer to compile than the code that uses it. Values and commands
// outlive the parsing.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace terrace {

// A command that the parser knows and owns.
class Command {
 public:
  explicit Command(CLI::App& app) : app_(&app) {}

  CLI::App& app() const { return *app_; }
  Command add_subcommand(const std::string& name, const std::string& description);
  // Requires one of the subcommands.
  void require_subcommand();
  // Returns the name of the given subcommand.
  std::string chosen_subcommand() const;
  // Sets the end of --help.
  void footer(const std::string& text);

 private:
  CLI::App* app_;
};

// A flag or positional word that was added.
class Flag {
 public:
  explicit Flag(CLI::Option& option) : option_(option) {}
  Flag& required();
  // Allows the flag several times, with several values each time.
  Flag& take_all();

 private:
  CLI::Option& option_;
};

// The flags of a command under one headline of its --help. A name without dashes makes a positional word.
// `type` is the name of the value in --help: "SIZE". A value is changed only if its flag is given.
class FlagGroup {
 public:
  explicit FlagGroup(const Command& command, std::string headline = "Options")
      : app_(command.app()), headline_(std::move(headline)) {}

  Flag text(const std::string& name, const std::string& type, std::string& value,
            const std::string& help) const;
  Flag text(const std::string& name, const std::string& type, std::vector<std::string>& values,
            const std::string& help) const;
  // A flag that may be given several times, with one value each time.
  void texts(const std::string& name, const std::string& type, std::vector<std::string>& values,
             const std::string& help) const;
  void yes(const std::string& name, bool& value, const std::string& help) const;
  // A whole number from `least` to `most`. The flag refuses any other value with Error(config).
  void count(const std::string& name, uint64_t least, std::function<void(uint64_t)> take,
             const std::string& help, uint64_t most = UINT64_MAX) const;
  void count(const std::string& name, uint64_t least, uint64_t& value, const std::string& help,
             uint64_t most = UINT64_MAX) const;
  void count(const std::string& name, uint64_t least, uint32_t& value, const std::string& help,
             uint64_t most = UINT32_MAX) const;
  void count(const std::string& name, uint64_t least, std::optional<uint64_t>& value,
             const std::string& help) const;
  void count(const std::string& name, uint64_t least, std::optional<uint32_t>& value,
             const std::string& help) const;
  // A number from `least` to `most`, both included. The flag refuses any other value with Error(config).
  void number(const std::string& name, double least, double most, double& value,
              const std::string& help) const;

 private:
  void add(const std::string& name, const char* type, std::function<void(const std::string&)> take,
           const std::string& help) const;

  CLI::App& app_;
  const std::string headline_;
};

// Returns the count of "400M" (powers of 1000), "1Mi" (powers of 1024) or "4096". Throws Error(config) naming
// `flag`.
uint64_t parse_count(const std::string& text, const char* flag);

// Throws Error(config): "cannot use" the flag, whose value is empty.
[[noreturn]] void refuse_empty(const std::string& flag);

}  // namespace terrace
