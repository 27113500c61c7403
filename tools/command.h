// Command: a command of the program, its flags and what they fill, without the parser's headers, which take
// longer to compile than what is said with them here. Values and commands outlive the parsing.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace terrace {

// A flag, or a word in its place, that was added; each call says one more thing of it.
class Flag {
 public:
  explicit Flag(CLI::Option& option) : option_(option) {}

  // The headline of --help under which it is.
  Flag& group(const std::string& name);
  // How --help writes its value: "SIZE".
  Flag& type_name(const std::string& name);
  Flag& required();
  // Each time that it is given it has one value more.
  Flag& repeated();
  // May be given several times, with several values each time.
  Flag& take_all();

 private:
  CLI::Option& option_;
};

// One that is known to the parser, which owns it.
class Command {
 public:
  explicit Command(CLI::App& app) : app_(&app) {}

  CLI::App& app() const { return *app_; }
  Command add_subcommand(const std::string& name, const std::string& description);
  // One of its subcommands has to be given.
  void require_subcommand();
  // The one that was given.
  std::string chosen_subcommand() const;

  // A name without dashes is that of a word in its place.
  Flag add_option(const std::string& name, std::string& value, const std::string& help);
  Flag add_option(const std::string& name, std::vector<std::string>& values, const std::string& help);
  // `take` is called with its value.
  Flag add_option_function(const std::string& name, std::function<void(const std::string&)> take,
                           const std::string& help);
  Flag add_flag(const std::string& name, bool& value, const std::string& help);
  // One that was added before.
  Flag flag(const std::string& name);
  // What --help ends with.
  void footer(const std::string& text);

 private:
  CLI::App* app_;
};

}  // namespace terrace
