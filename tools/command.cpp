#include "command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <string_view>

#include "command_line.h"

namespace terrace {
namespace {

// Returns a suggestion for a whole number that is written as 1e3 or 12.0; empty for other text.
std::string whole_number_meant(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  constexpr double kLargest = 1e15;
  const bool whole = error == std::errc() && end == text.data() + text.size() && value >= 1 &&
                     value <= kLargest && value == std::floor(value);
  return whole ? fmt::format(": write {}", static_cast<uint64_t>(value)) : "";
}

uint64_t whole_number(const std::string& name, const std::string& text, uint64_t least, uint64_t most) {
  if (text.empty()) refuse_empty(name);
  const std::string given = name + " " + text;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string advice = most < UINT32_MAX ? fmt::format("give a whole number from {} to {}", least, most)
                                               : fmt::format("give a whole number from {} on", least);
  if (error == std::errc::result_out_of_range) refuse(given, "it is larger than 2^64 - 1", advice);
  if (error != std::errc() || end != text.data() + text.size()) {
    const bool negative = text.starts_with('-');
    refuse(given, negative ? "it is less than 0" : "it is not written as a whole number",
           advice + whole_number_meant(text));
  }
  if (value < least) refuse(given, fmt::format("it is less than {}", least), advice);
  if (value > most && most == UINT32_MAX)
    refuse(given, "it is larger than 2^32 - 1", "give a smaller number");
  if (value > most) refuse(given, fmt::format("it is more than {}", most), advice);
  return value;
}

double number_of(const std::string& name, const std::string& text, double least, double most) {
  if (text.empty()) refuse_empty(name);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole_text = error == std::errc() && end == text.data() + text.size();
  if (whole_text && number >= least && number <= most) return number;
  refuse(name + " " + text, whole_text && !std::isnan(number) ? "it is out of range" : "it is not a number",
         fmt::format("give a number from {} to {}", least, most));
}

}  // namespace

Command Command::add_subcommand(const std::string& name, const std::string& description) {
  return Command(*app_->add_subcommand(name, description));
}

void Command::require_subcommand() {
  app_->require_subcommand(1);
}

std::string Command::chosen_subcommand() const {
  return app_->get_subcommands().front()->get_name();
}

void Command::footer(const std::string& text) {
  app_->footer(text);
}

Flag& Flag::required() {
  option_.required();
  return *this;
}

Flag& Flag::take_all() {
  option_.take_all();
  return *this;
}

Flag FlagGroup::text(const std::string& name, const std::string& type, std::string& value,
                     const std::string& help) const {
  return Flag(*app_.add_option(name, value, help)->type_name(type)->group(headline_));
}

Flag FlagGroup::text(const std::string& name, const std::string& type, std::vector<std::string>& values,
                     const std::string& help) const {
  return Flag(*app_.add_option(name, values, help)->type_name(type)->group(headline_));
}

void FlagGroup::texts(const std::string& name, const std::string& type, std::vector<std::string>& values,
                      const std::string& help) const {
  app_.add_option(name, values, help)->allow_extra_args(false)->type_name(type)->group(headline_);
}

void FlagGroup::yes(const std::string& name, bool& value, const std::string& help) const {
  app_.add_flag(name, value, help)->group(headline_);
}

void FlagGroup::add(const std::string& name, const char* type, std::function<void(const std::string&)> take,
                    const std::string& help) const {
  app_.add_option_function<std::string>(name, std::move(take), help)->type_name(type)->group(headline_);
}

void FlagGroup::count(const std::string& name, uint64_t least, std::function<void(uint64_t)> take,
                      const std::string& help, uint64_t most) const {
  add(
      name, "N",
      [name, least, most, take = std::move(take)](const std::string& text) {
        take(whole_number(name, text, least, most));
      },
      help);
}

void FlagGroup::count(const std::string& name, uint64_t least, uint64_t& value, const std::string& help,
                      uint64_t most) const {
  count(
      name, least, [&value](uint64_t number) { value = number; }, help, most);
}

void FlagGroup::count(const std::string& name, uint64_t least, uint32_t& value, const std::string& help,
                      uint64_t most) const {
  count(
      name, least, [&value](uint64_t number) { value = static_cast<uint32_t>(number); }, help, most);
}

void FlagGroup::count(const std::string& name, uint64_t least, std::optional<uint64_t>& value,
                      const std::string& help) const {
  count(
      name, least, [&value](uint64_t number) { value = number; }, help);
}

void FlagGroup::count(const std::string& name, uint64_t least, std::optional<uint32_t>& value,
                      const std::string& help) const {
  count(
      name, least, [&value](uint64_t number) { value = static_cast<uint32_t>(number); }, help, UINT32_MAX);
}

void FlagGroup::number(const std::string& name, double least, double most, double& value,
                       const std::string& help) const {
  add(
      name, "X",
      [name, least, most, &value](const std::string& text) { value = number_of(name, text, least, most); },
      help);
}

uint64_t parse_count(const std::string& text, const char* flag) {
  struct Suffix {
    const char* text;
    double factor;
  };
  constexpr Suffix kSuffixes[] = {{"", 1},        {"K", 1e3},     {"M", 1e6},     {"G", 1e9},    {"T", 1e12},
                                  {"Ki", 0x1p10}, {"Mi", 0x1p20}, {"Gi", 0x1p30}, {"Ti", 0x1p40}};
  if (text.empty()) refuse_empty(flag);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view rest(end, static_cast<size_t>(text.data() + text.size() - end));
  for (const Suffix& suffix : kSuffixes) {
    const double count = value * suffix.factor;
    if (error == std::errc() && rest == suffix.text && count >= 0 && count <= 0x1p53 &&
        count == std::floor(count))
      return static_cast<uint64_t>(count);
  }
  throw Error(ErrorKind::config,
              {"cannot use", fmt::format("{} {}", flag, text), "it is no whole number from 0 to 2^53",
               "give for example 400M, 1Mi or 4096"});
}

void refuse_empty(const std::string& flag) {
  refuse(flag, "its value is empty",
         "give a value, or leave the flag out; a variable of the shell may be unset");
}

}  // namespace terrace
