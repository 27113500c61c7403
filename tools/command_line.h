// The parts that the subcommands share: their registration, the spelling of their flags, and the exit status
// of an error.
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
  // Returns the exit status. Throws an error that happens before anything is done, and reports later ones
  // itself.
  virtual int run() = 0;
};

// Each function adds its flags to `app`, which outlives the result.
std::unique_ptr<Subcommand> add_train(Command& app);
std::unique_ptr<Subcommand> add_launch(Command& app);
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
// These functions add the subcommands of the group "bench".
std::unique_ptr<Subcommand> add_bench_adam(Command& bench);
std::unique_ptr<Subcommand> add_bench_io(Command& bench);
std::unique_ptr<Subcommand> add_bench_step(Command& bench);
std::unique_ptr<Subcommand> add_bench_copy(Command& bench);

// Returns the arguments after the program's name, with flags in kebab case: --device_memory becomes
// --device-memory.
std::vector<std::string> normalised_arguments(int argc, const char* const* argv);

// Returns the command line in a form that a shell accepts; call normalised_arguments() before.
const std::string& given_command_line();

// Returns the given subcommand, the innermost of nested ones; `app` itself without one.
const CLI::App& chosen_command(const CLI::App& app);
// Returns "terrace bench io": the name with those of the commands around it.
std::string full_name(const CLI::App& command);

// Returns what is wrong with arguments that do not parse: an unknown flag or subcommand, with a suggestion if
// one is near, or a flag that is given twice. Returns an empty text for other faults.
std::string wrong_argument(CLI::App& app, const std::vector<std::string>& arguments);
// Returns what a command lacks of what it must be given: "--out is missing", with an advice; empty if it
// lacks nothing.
std::string missing_argument(const CLI::App& command);

// Throws Error(config): "cannot use" the flag, with its value.
[[noreturn]] void refuse(const std::string& flag, const Reason& reason, const std::string& advice);

// Adds a flag that takes a whole number of at least `least`. It refuses any other value with Error(config).
void add_whole_number(Command& app, const char* flag, uint64_t least, std::function<void(uint64_t)> take,
                      const char* help, const char* group);

// Adds a flag for a count of 32 bits, which goes into the configuration of a model or an empty optional.
void add_small_number(Command& app, const char* flag, uint64_t least, std::optional<uint32_t>& value,
                      const char* help, const char* group);

void add_small_number(Command& app, const char* flag, uint64_t least, uint32_t& value, const char* help,
                      const char* group);

// Adds a flag that may be given several times, with one value each time.
void add_repeated(Command& app, const char* flag, std::vector<std::string>& values, const char* type,
                  const char* help, const char* group);
// Returns folders as the configuration takes them from a flag; empty if there are none.
std::string folder_list(const std::vector<std::string>& folders);

// Adds a flag that takes a number from `least` to `most`, both included. It refuses any other value with
// Error(config).
void add_number(Command& app, const char* flag, double least, double most, double& value, const char* help,
                const char* group);

// Returns the count of "400M" (powers of 1000), "1Mi" (powers of 1024) or "4096". Throws Error(config) naming
// `flag`.
uint64_t parse_count(const std::string& text, const char* flag);

// Throws Error(config) for an empty value. An unset variable of a shell leaves one, and it must not pass for
// a flag that is not given.
void require_values(const CLI::App& command);
// Throws Error(config): "--data is missing", or "--data is missing: REASON".
[[noreturn]] void refuse_missing(const std::string& flag, const std::string& advice,
                                 const Reason& reason = "");
// Throws Error(config) if a path of the command line does not exist, because that is a mistake of the user
// and not a failing system.
void require_exists(const std::string& subject, const std::filesystem::path& path);

// Returns "2026-11-21 18:40", UTC.
std::string time_text(std::filesystem::file_time_type time);

// Writes to stdout and flushes it. Escapes characters that a terminal would obey (base/text/shown_text.h).
// Throws Error(io).
void print_result(const std::string& text);
// Writes text that holds deliberate escapes for the terminal; text from elsewhere in it must be escaped
// already.
void print_as_it_is(const std::string& text);

// Prints "terrace: error: ..." on stderr, with all parts of the error, in the program's words.
void print_error(const Error& error);
// Prints the result of a measurement on stdout, or its error on stderr. Returns the exit status.
int print_measurement(Console& console, FunctionRef<std::string()> measure);
// Returns the exit status of an error before anything was done: 2 for configuration and capacity, else 1.
int status_of_refusal(const Error& error);

}  // namespace terrace
