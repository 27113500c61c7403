#include "program.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <system_error>
#include <utility>

#include <terrace/base/text/shown_text.h>
#include <terrace/base/units.h>
#include <terrace/comm/identity/rank_identity.h>

#include "command_line.h"
#include "help_format.h"
#include "train/train_ranks.h"
#include "version.h"

namespace terrace {
namespace {

constexpr const char* kDescription =
    "Terrace trains models that do not fit: parameters, gradients and optimizer states move among device "
    "memory, "
    "host memory and NVMe within budgets that are never exceeded.";
constexpr const char* kExamples =
    "Examples:\n"
    "  terrace report --nvme-path /mnt/nvme\n"
    "  terrace train --data corpus/ --model gpt2 --offload-optimizer nvme --nvme-path /mnt/nvme --steps "
    "1000\n";

// Words an error that is left: a word that no flag takes, or what the parser says.
std::string unparsed(const CLI::App& app, const std::string& reason) {
  const std::string command = full_name(chosen_command(app));
  const std::vector<std::string> extra = app.remaining(true);
  const std::string text = extra.empty() ? reason : command + " has no use for \"" + extra.front() + "\"";
  return text + "\n  `" + command + " --help` lists what it takes";
}

// What the launcher's variables are worth is for others to say.
bool is_one_of_several() {
  try {
    return !identify_rank(environment_from(environ)).alone();
  } catch (const Error&) {
    return false;
  }
}

// What is wrong with a command line that the parser does not take.
Error wrong_command_line(CLI::App& app, const std::vector<std::string>& arguments,
                         const std::string& reason) {
  try {
    require_values(chosen_command(app));
  } catch (const Error& empty_value) {
    return empty_value;
  }
  std::string text = wrong_argument(app, arguments);
  if (text.empty()) text = missing_argument(chosen_command(app));
  if (text.empty()) text = unparsed(app, reason);
  return Error(ErrorKind::config, {std::move(text), "", "", ""});
}

// The system gives one reason for two limits: a thread needs a place among the processes, and address space
// for its stack.
std::string advice_about_threads() {
  const std::string processes =
      "raise the number of processes that this user or this container may have (ulimit -u, pids.max)";
  rlimit space{};
  if (getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur == RLIM_INFINITY) return processes;
  return fmt::format("raise the address space of the process (ulimit -v; it may have {}), or {}",
                     format_bytes(space.rlim_cur), processes);
}

// An error of the standard library knows neither the action nor the remedy.
Error failure_of_system(const std::system_error& failure) {
  const auto* const file = dynamic_cast<const std::filesystem::filesystem_error*>(&failure);
  const bool no_thread = failure.code() == std::errc::resource_unavailable_try_again;
  return Error(ErrorKind::io,
               {no_thread ? "cannot start a thread" : "the system refused",
                file != nullptr ? file->path1().string() : "", system_reason(failure.code().value()),
                no_thread ? advice_about_threads() : ""});
}

int parse_and_run(int argc, const char* const* argv) {
  CLI::App app(kDescription, "terrace");
  app.set_version_flag("--version", version_text(),
                       "Print the version, the build and its libraries, and exit");
  app.footer(kExamples);
  app.formatter(help_formatter());
  Command command(app);
  command.require_subcommand();
  std::vector<std::string> arguments = normalised_arguments(argc, argv);
  const std::unique_ptr<Subcommand> subcommands[] = {
      add_train(command),      add_launch(command, words_of_program(arguments)),
      add_eval(command),       add_generate(command),
      add_export(command),     add_checkpoint(command),
      add_report(command),     add_bench(command),
      add_tune(command),       add_ctl(command),
      add_top(command),        add_sim(command),
      add_plan(command),       add_help(command),
      add_completion(command), add_version(command)};

  if (arguments.empty()) {
    print_result(app.help());
    return kUsage;  // a command line without a command is a mistake in a script
  }
  std::optional<Error> refusal;
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // it takes them from the back
    require_values(chosen_command(app));
  } catch (const CLI::ParseError& failure) {
    if (failure.get_exit_code() == 0) return app.exit(failure);  // --help, --version
    refusal = wrong_command_line(app, arguments, failure.what());
  } catch (const Error& failure) {
    refusal = failure;
  }
  if (refusal && is_one_of_several()) return refuse_on_all_ranks(*refusal);
  if (refusal) throw Error(*refusal);
  return run_chosen(command, subcommands);
}

}  // namespace

int run_program(int argc, const char* const* argv) {
  // A write beyond RLIMIT_FSIZE then fails like any other, and its error names the file.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    const int status = parse_and_run(argc, argv);
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
    std::fputs("terrace: error: cannot write the result: stdout takes no more\n", stderr);
  } catch (const Error& error) {
    print_error(error);
    return status_of_refusal(error);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "terrace: error: the system has no memory left for the program itself\n");
  } catch (const std::system_error& failure) {
    print_error(failure_of_system(failure));
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "terrace: error: unexpected: %s\n", shown_message(failure.what()).c_str());
  }
  return kFailed;
}

}  // namespace terrace
