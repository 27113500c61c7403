// What the subcommands share: how they are registered, how their flags are spelt, how an error becomes an
// exit status.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/base/function_ref.h>

#include "command.h"

namespace terrace {

class Console;

enum ExitStatus : int { kDone = 0, kFailed = 1, kUsage = 2 };

class Subcommand {
 public:
  virtual ~Subcommand() = default;
  virtual const std::string& name() const = 0;
  // Returns the exit status. Throws what went wrong before anything was done; what goes wrong later it
  // reports itself.
  virtual int run() = 0;
};

// Each adds its flags to `app`, which outlives it.
std::unique_ptr<Subcommand> add_train(Command& app);
std::unique_ptr<Subcommand> add_report(Command& app);
std::unique_ptr<Subcommand> add_export(Command& app);
std::unique_ptr<Subcommand> add_eval(Command& app);
std::unique_ptr<Subcommand> add_generate(Command& app);
std::unique_ptr<Subcommand> add_checkpoint(Command& app);
std::unique_ptr<Subcommand> add_bench(Command& app);
std::unique_ptr<Subcommand> add_tune(Command& app);
std::unique_ptr<Subcommand> add_ctl(Command& app);
std::unique_ptr<Subcommand> add_top(Command& app);
std::unique_ptr<Subcommand> add_sim(Command& app);
std::unique_ptr<Subcommand> add_plan(Command& app);
std::unique_ptr<Subcommand> add_help(Command& app);
std::unique_ptr<Subcommand> add_completion(Command& app);
std::unique_ptr<Subcommand> add_version(Command& app);
// Of the group "bench".
std::unique_ptr<Subcommand> add_bench_adam(Command& bench);
std::unique_ptr<Subcommand> add_bench_io(Command& bench);
std::unique_ptr<Subcommand> add_bench_step(Command& bench);
std::unique_ptr<Subcommand> add_bench_copy(Command& bench);

// The arguments after the program's name, flags in kebab case: --device_memory becomes --device-memory.
std::vector<std::string> normalised_arguments(int argc, const char* const* argv);

// The command line as a shell takes it again, once normalised_arguments() has read it.
const std::string& given_command_line();

// The subcommand that was given, innermost of nested ones; `app` itself without one.
const CLI::App& chosen_command(const CLI::App& app);
// "terrace bench io": with what it lies in.
std::string full_name(const CLI::App& command);

// What is wrong with arguments that do not parse: an unknown flag or subcommand, with a suggestion where one
// is near, or a flag that is given twice. Empty when it is neither.
std::string wrong_argument(CLI::App& app, const std::vector<std::string>& arguments);

// Adds a flag that takes a whole number of at least `least`. What is none is refused in words: Error(config).
void add_whole_number(Command& app, const char* flag, uint64_t least, std::function<void(uint64_t)> take,
                      const char* help, const char* group);

// The same for a count that fits 32 bits, into the configuration of a model or an empty optional.
void add_small_number(Command& app, const char* flag, uint64_t least, std::optional<uint32_t>& value,
                      const char* help, const char* group);

void add_small_number(Command& app, const char* flag, uint64_t least, uint32_t& value, const char* help,
                      const char* group);

// Adds a flag that may be given several times, each time with one value.
void add_repeated(Command& app, const char* flag, std::vector<std::string>& values, const char* type,
                  const char* help, const char* group);
// Folders as the configuration takes them from a flag; empty when there are none.
std::string folder_list(const std::vector<std::string>& folders);

// Adds a flag that takes a number of `least` to `most`, both included; not a number is refused like any other
// that is outside: Error(config).
void add_number(Command& app, const char* flag, double least, double most, double& value, const char* help,
                const char* group);

// "400M" (powers of 1000), "1Mi" (powers of 1024), "4096" -> a count. Throws Error(config) naming `flag`.
uint64_t parse_count(const std::string& text, const char* flag);

// An empty value, as an unset variable of a shell leaves it, must not pass for a flag that is not given:
// Error(config).
void require_values(const CLI::App& command);
// "--data is missing", or "--data is missing: REASON": Error(config).
[[noreturn]] void refuse_missing(const std::string& flag, const std::string& advice,
                                 const std::string& reason = "");
// What the command line names and is not there is a mistake in it, not a failing system: Error(config).
void require_exists(const std::string& subject, const std::filesystem::path& path);

// "2026-11-21 18:40", UTC.
std::string time_text(std::filesystem::file_time_type time);

// Writes to stdout and flushes it, in the program's words (option_words.h); what a terminal would obey is
// escaped (base/text/shown_text.h). Throws Error(io).
void print_result(const std::string& text);
// The same for text that holds escapes for the terminal on purpose, and nothing from elsewhere that is not
// escaped.
void print_as_it_is(const std::string& text);

// "terrace: error: ..." on stderr, all parts of it, in the program's words.
void print_error(const Error& error);
// Prints what a measurement returns, or on stderr what it throws. Returns the exit status.
int print_measurement(Console& console, FunctionRef<std::string()> measure);
// For what was thrown before anything was done: 2 for configuration and capacity, else 1.
int status_of_refusal(const Error& error);

}  // namespace terrace
