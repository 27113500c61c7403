// `terrace help` and `terrace completion`: all commands and flags that the parser knows, as help, as a manual
// page, and as completion for shells.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include <terrace/base/error.h>

#include "command_line.h"
#include "version.h"
#include "wrapped_text.h"

namespace terrace {
namespace {

const CLI::App& root_of(const CLI::App& app) {
  return app.get_parent() == nullptr ? app : root_of(*app.get_parent());
}

std::vector<const CLI::App*> subcommands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// Calls `visit` with the command and all below it.
void for_each_command(const CLI::App& app, FunctionRef<void(const CLI::App&)> visit) {
  visit(app);
  for (const CLI::App* sub : subcommands_of(app)) for_each_command(*sub, visit);
}

std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  if (names.empty()) names.push_back(option.get_name());
  return names;
}

// Returns the values that a flag or a positional word may have: the lower-case parts of a type such as
// "none|cpu|nvme".
std::vector<std::string> values_of(const CLI::Option& option) {
  const std::string type = option.get_type_name() + "|";
  std::vector<std::string> values;
  if (option.get_expected_max() == 0 || type.find('|') + 1 == type.size()) return values;
  for (size_t begin = 0, end = 0; (end = type.find('|', begin)) != std::string::npos; begin = end + 1) {
    const std::string value = type.substr(begin, end - begin);
    if (std::any_of(value.begin(), value.end(), [](char c) { return c >= 'a' && c <= 'z'; }))
      values.push_back(value);
  }
  return values;
}

// Returns true if the value may be a file as well.
bool takes_files(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return values_of(option).empty() || type.find("DIR") != std::string::npos ||
         type.find("FILE") != std::string::npos;
}

// --- A manual page (man(7)) ---

// Escapes characters that roff would interpret.
std::string roff(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else if ((c == '.' || c == '\'') && (escaped.empty() || escaped.back() == '\n')) {
      escaped += std::string("\\&") + c;
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string roff_options(const CLI::App& app) {
  std::string text;
  for (const CLI::Option* option : app.get_options()) {
    const std::string type =
        option->get_expected_max() == 0 ? "" : " \\fI" + roff(option->get_type_name()) + "\\fR";
    text += fmt::format(".TP\n\\fB{}\\fR{}\n{}\n", roff(joined(names_of(*option), ", ")), type,
                        roff(option->get_description()));
  }
  return text;
}

std::string man_page(const CLI::App& root) {
  std::string text = fmt::format(
      ".TH TERRACE 1 \"\" \"terrace {}\" \"User Commands\"\n.SH NAME\nterrace \\- trains models that do not "
      "fit\n.SH SYNOPSIS\n\\fBterrace\\fR \\fICOMMAND\\fR [\\fIFLAG\\fR ...]\n.SH DESCRIPTION\n{}\n.SH "
      "COMMANDS\n",
      TERRACE_VERSION, roff(root.get_description()));
  for_each_command(root, [&](const CLI::App& app) {
    if (&app == &root) return;
    text +=
        fmt::format(".SS {}\n{}\n", roff(full_name(app)), roff(app.get_description())) + roff_options(app);
  });
  return text + fmt::format(".SH EXAMPLES\n.nf\n{}\n.fi\n", roff(root.get_footer()));
}

// --- Completion ---

std::string bash_completion(const CLI::App& root) {
  std::string cases, values;
  for_each_command(root, [&](const CLI::App& app) {
    std::vector<std::string> words;
    for (const CLI::App* sub : subcommands_of(app)) words.push_back(sub->get_name());
    for (const CLI::Option* option : app.get_options()) {
      const std::vector<std::string> of_option = values_of(*option);
      if (option->get_positional()) {
        words.insert(words.end(), of_option.begin(), of_option.end());
        continue;
      }
      words.push_back(names_of(*option).back());
      if (of_option.empty()) continue;
      values +=
          fmt::format("    \"{} {}\") words=\"{}\" files={} ;;\n", full_name(app), names_of(*option).back(),
                      joined(of_option, " "), takes_files(*option) ? "1" : "");
    }
    if (app.get_name() == "help") {
      for (const CLI::App* sub : subcommands_of(root)) words.push_back(sub->get_name());
    }
    cases += fmt::format("    \"{}\") words=\"{}\" ;;\n", full_name(app), joined(words, " "));
  });
  std::string names;
  for_each_command(root, [&](const CLI::App& app) { names += fmt::format(" \"{}\"", full_name(app)); });
  return fmt::format(R"(# Words of terrace for bash: source <(terrace completion bash)
_terrace() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}}
  local command=terrace word next words files=1 i
  local known=({})
  for ((i = 1; i < COMP_CWORD; i++)); do
    next="$command ${{COMP_WORDS[i]}}"
    for word in "${{known[@]}}"; do [ "$word" = "$next" ] && command=$next; done
  done
  case $command in
{}  esac
  case "$command $before" in
{}  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  if [[ -n $files && $current != -* ]]; then COMPREPLY+=($(compgen -f -- "$current")); fi
}}
complete -o filenames -F _terrace terrace
)",
                     names.substr(1), cases, values.empty() ? "    *) ;;\n" : values);
}

std::string zsh_quoted(const std::string& text) {
  std::string quoted;
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else if (c == '[' || c == ']' || c == ':') {
      quoted += std::string("\\") + c;
    } else {
      quoted += c;
    }
  }
  return quoted;
}

std::string zsh_function(const CLI::App& app) {
  std::string name = full_name(app);
  std::replace(name.begin(), name.end(), ' ', '_');
  std::string commands, arguments, positionals;
  for (const CLI::App* sub : subcommands_of(app))
    commands += fmt::format(" '{}:{}'", sub->get_name(), zsh_quoted(sub->get_description()));
  for (const CLI::Option* option : app.get_options()) {
    const std::vector<std::string> values = values_of(*option);
    if (option->get_positional()) {
      if (!values.empty())
        positionals += fmt::format(" \\\n    '1:{}:({})'", option->get_name(), joined(values, " "));
      continue;
    }
    const std::string words = joined(values, " ");
    const std::string value = option->get_expected_max() == 0 ? ""
                              : values.empty()                ? ":value:_files"
                              : takes_files(*option)
                                  ? fmt::format(":value:{{ compadd -- {}; _files }}", words)
                                  : fmt::format(":value:({})", words);
    arguments += fmt::format(" \\\n    '*{}[{}]{}'", names_of(*option).back(),
                             zsh_quoted(option->get_description()), value);
  }
  if (app.get_name() == "help") {
    for (const CLI::App* sub : subcommands_of(root_of(app))) commands += " " + sub->get_name();
    return fmt::format("_{}() {{\n  _arguments{} \\\n    '*:command:({})'\n}}\n", name, arguments,
                       commands.substr(1));
  }
  if (commands.empty())
    return fmt::format("_{}() {{\n  _arguments{}{} \\\n    '*:file:_files'\n}}\n", name, arguments,
                       positionals);
  return fmt::format(
      "_{0}() {{\n  local -a commands=({1})\n  if (( CURRENT == 2 )); then\n    _describe command commands\n "
      "   "
      "_arguments{2}\n  else\n    local next=_{0}_$words[2]\n    shift words\n    (( CURRENT-- ))\n    "
      "(( $+functions[$next] )) && $next\n  fi\n}}\n",
      name, commands.substr(1), arguments);
}

std::string zsh_completion(const CLI::App& root) {
  std::string text =
      "#compdef terrace\n# Words of terrace for zsh: source <(terrace completion zsh) behind compinit, or "
      "this as _terrace in a folder of $fpath\n";
  for_each_command(root, [&](const CLI::App& app) { text += zsh_function(app); });
  return text +
         "if [ \"$funcstack[1]\" = \"_terrace\" ]; then\n  _terrace \"$@\"\nelse\n  compdef _terrace "
         "terrace\nfi\n";
}

class Help final : public Subcommand {
 public:
  explicit Help(Command& app)
      : Subcommand(app, "help", "What a command does and takes, or the manual page of all"),
        root_(root_of(app.app())) {
    const FlagGroup group(command_);
    group.text("command", "TEXT", words_, "Which: `terrace help bench io`");
    group.yes("--man", man_, "The manual page, for man -l -");
  }
  int run() override {
    if (man_) {
      print_result(man_page(root_));
      return kDone;
    }
    const CLI::App* app = &root_;
    for (const std::string& word : words_) {
      const CLI::App* below = nullptr;
      for (const CLI::App* sub : subcommands_of(*app)) {
        if (sub->get_name() == word) below = sub;
      }
      if (below == nullptr)
        throw Error(ErrorKind::config, {"cannot help with", joined(words_, " "), "there is no such command",
                                        "`terrace help` lists them"});
      app = below;
    }
    // App::help() would print the help of the command that was given, so the formatter is called for this
    // one.
    print_result(app->get_formatter()->make_help(app, full_name(*app), CLI::AppFormatMode::Normal));
    return kDone;
  }

 private:
  const CLI::App& root_;
  std::vector<std::string> words_;
  bool man_ = false;
};

class Completion final : public Subcommand {
 public:
  explicit Completion(Command& app)
      : Subcommand(app, "completion", "What a shell needs to complete commands and flags"),
        root_(root_of(app.app())) {
    FlagGroup(command_).text("shell", "bash|zsh", shell_, "The shell").required();
    command_.footer(
        "To install it, add a line to the file that the shell reads first:\n"
        "  ~/.bashrc                    source <(terrace completion bash)\n"
        "  ~/.zshrc, behind compinit    source <(terrace completion zsh)\n"
        "zsh also takes it from a file _terrace in a folder of $fpath:\n"
        "  terrace completion zsh > ~/.zfunc/_terrace\n");
  }
  int run() override {
    if (shell_ != "bash" && shell_ != "zsh")
      throw Error(ErrorKind::config, {"cannot complete for", shell_, "it is neither bash nor zsh",
                                      "complete in bash or zsh; `terrace help --man` lists every flag"});
    print_result(shell_ == "bash" ? bash_completion(root_) : zsh_completion(root_));
    return kDone;
  }

 private:
  const CLI::App& root_;
  std::string shell_;
};

class Version final : public Subcommand {
 public:
  explicit Version(Command& app) : Subcommand(app, "version", "The version, as --version prints it") {}
  int run() override {
    print_result(version_text() + "\n");
    return kDone;
  }
};

}  // namespace

std::unique_ptr<Subcommand> add_version(Command& app) {
  return std::make_unique<Version>(app);
}

std::unique_ptr<Subcommand> add_help(Command& app) {
  return std::make_unique<Help>(app);
}

std::unique_ptr<Subcommand> add_completion(Command& app) {
  return std::make_unique<Completion>(app);
}

}  // namespace terrace
