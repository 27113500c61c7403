#include "help_format.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "console.h"
#include "wrapped_text.h"

namespace terrace {
namespace {

constexpr size_t kColumns = 80;  // if no terminal says another number
constexpr size_t kLeastColumns = 50;

class HelpFormatter final : public CLI::Formatter {
 public:
  HelpFormatter() {
    const size_t columns = terminal_columns(STDOUT_FILENO);
    columns_ = columns == 0 ? kColumns : std::max(columns, kLeastColumns);
  }

  // A flag that may be repeated with one value each time is shown with one value.
  std::string make_option_opts(const CLI::Option* option) const override {
    constexpr std::string_view kMore = " ...";
    std::string text = CLI::Formatter::make_option_opts(option);
    if (option->get_allow_extra_args()) return text;
    if (const size_t at = text.find(kMore); at != std::string::npos) text.erase(at, kMore.size());
    return text;
  }
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    return entry(make_option_name(option, is_positional) + make_option_opts(option),
                 make_option_desc(option));
  }
  std::string make_subcommand(const CLI::App* sub) const override {
    return entry(sub->get_name(), sub->get_description());
  }
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    std::string text = CLI::Formatter::make_help(app, std::move(name), mode);
    for (size_t at = 0; (at = text.find("\n\n\n", at)) != std::string::npos;) text.erase(at, 1);
    return text;
  }
  std::string make_description(const CLI::App* app) const override {
    return wrapped(app->get_description(), 0, 0, columns_) + "\n";
  }
  std::string make_footer(const CLI::App* app) const override {
    return wrapped(app->get_footer(), 0, 0, columns_) + "\n";
  }

 private:
  std::string entry(const std::string& name, const std::string& description) const {
    const size_t indent = get_column_width();
    std::string text = "  " + name;
    if (description.empty()) return text + "\n";
    text += text.size() >= indent ? "\n" + std::string(indent, ' ') : std::string(indent - text.size(), ' ');
    return text + wrapped(description, indent, indent, columns_) + "\n";
  }

  size_t columns_ = kColumns;
};

}  // namespace

std::shared_ptr<CLI::Formatter> help_formatter() {
  return std::make_shared<HelpFormatter>();
}

}  // namespace terrace
