// The terrace program: reads the command line and hands over to one subcommand. It decides nothing else.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>

#include "command_line.h"

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

int parse_and_run(int argc, const char* const* argv) {
  CLI::App app(kDescription, "terrace");
  app.set_version_flag("--version", "terrace " TERRACE_VERSION, "Print the version and exit");
  app.footer(kExamples);
  app.require_subcommand(1);
  const std::unique_ptr<Subcommand> subcommands[] = {add_train(app), add_eval(app), add_generate(app),
                                                     add_export(app), add_report(app)};

  const std::vector<std::string> arguments = normalised_arguments(argc, argv);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // taken from the back
  } catch (const CLI::ParseError& failure) {
    if (failure.get_exit_code() == 0) return app.exit(failure);  // --help, --version
    std::string text = wrong_argument(app, arguments);
    if (text.empty())
      text = std::string(failure.what()) + "\n  `terrace --help` and `terrace train --help` say more";
    std::fprintf(stderr, "terrace: error: %s\n", text.c_str());
    return kUsage;
  }
  const std::string chosen = app.get_subcommands().front()->get_name();
  for (const auto& subcommand : subcommands) {
    if (subcommand->name() == chosen) return subcommand->run();
  }
  return kUsage;
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  using namespace terrace;
  try {
    const int status = parse_and_run(argc, argv);
    if (std::fflush(stdout) == 0) return status;
    std::perror("terrace: error: cannot write the result");
  } catch (const Error& error) {
    print_error(error);
    return status_of_refusal(error);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "terrace: error: the system has no memory left for the program itself\n");
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "terrace: error: unexpected: %s\n", failure.what());
  }
  return kFailed;
}
