#include "command.h"

#include <CLI/CLI.hpp>
#include <utility>

namespace terrace {

Flag& Flag::group(const std::string& name) {
  option_.group(name);
  return *this;
}

Flag& Flag::type_name(const std::string& name) {
  option_.type_name(name);
  return *this;
}

Flag& Flag::required() {
  option_.required();
  return *this;
}

Flag& Flag::repeated() {
  option_.allow_extra_args(false);
  return *this;
}

Flag& Flag::take_all() {
  option_.take_all();
  return *this;
}

Command Command::add_subcommand(const std::string& name, const std::string& description) {
  return Command(*app_->add_subcommand(name, description));
}

void Command::require_subcommand() {
  app_->require_subcommand(1);
}

std::string Command::chosen_subcommand() const {
  return app_->get_subcommands().front()->get_name();
}

Flag Command::add_option(const std::string& name, std::string& value, const std::string& help) {
  return Flag(*app_->add_option(name, value, help));
}

Flag Command::add_option(const std::string& name, std::vector<std::string>& values, const std::string& help) {
  return Flag(*app_->add_option(name, values, help));
}

Flag Command::add_option_function(const std::string& name, std::function<void(const std::string&)> take,
                                  const std::string& help) {
  return Flag(*app_->add_option_function<std::string>(name, std::move(take), help));
}

Flag Command::add_flag(const std::string& name, bool& value, const std::string& help) {
  return Flag(*app_->add_flag(name, value, help));
}

Flag Command::flag(const std::string& name) {
  return Flag(*app_->get_option(name));
}

void Command::footer(const std::string& text) {
  app_->footer(text);
}

}  // namespace terrace
