// Command: a command of the program with its flags and the values that they fill. This header leaves out the
// parser's headers, which take longer to compile than the code that uses it. Values and commands outlive the
// parsing.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace terrace {

// A flag or positional word that was added; each call sets one more property.
class Flag {
 public:
  explicit Flag(CLI::Option& option) : option_(option) {}

  // Sets the headline of --help above the flag.
  Flag& group(const std::string& name);
  // Sets the name of its value in --help: "SIZE".
  Flag& type_name(const std::string& name);
  Flag& required();
  // Allows the flag several times, with one value each time.
  Flag& repeated();
  // Allows the flag several times, with several values each time.
  Flag& take_all();

 private:
  CLI::Option& option_;
};

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

  // A name without dashes makes a positional word.
  Flag add_option(const std::string& name, std::string& value, const std::string& help);
  Flag add_option(const std::string& name, std::vector<std::string>& values, const std::string& help);
  // Calls `take` with the flag's value.
  Flag add_option_function(const std::string& name, std::function<void(const std::string&)> take,
                           const std::string& help);
  Flag add_flag(const std::string& name, bool& value, const std::string& help);
  // Returns a flag that was added before.
  Flag flag(const std::string& name);
  // Sets the end of --help.
  void footer(const std::string& text);

 private:
  CLI::App* app_;
};

}  // namespace terrace
