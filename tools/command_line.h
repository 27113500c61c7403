// The parts that the subcommands share: their registration, the spelling of their flags, and the exit status
// of an error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <terrace/base/data_type.h>
#include <terrace/base/error.h>
#include <terrace/base/function_ref.h>

#include "command.h"

namespace terrace {

class Console;

enum ExitStatus : int { kDone = 0, kFailed = 1, kUsage = 2 };

class Subcommand {
 public:
  Subcommand(Command& parent, const std::string& name, const std::string& description)
      : command_(parent.add_subcommand(name, description)), name_(name) {}
  virtual ~Subcommand() = default;
  const std::string& name() const { return name_; }
  // Returns the exit status. Throws an error that happens before anything is done, and reports later ones
  // itself.
  virtual int run() = 0;

 protected:
  Command command_;

 private:
  const std::string name_;
};

// Runs the member that was given on the command line; one of them was.
int run_chosen(const Command& command, std::span<const std::unique_ptr<Subcommand>> members);

// Each function adds its flags to `app`, which outlives the result.
std::unique_ptr<Subcommand> add_train(Command& app);
// `words`: those of words_of_program().
std::unique_ptr<Subcommand> add_launch(Command& app, std::vector<std::string> words);
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
std::unique_ptr<Subcommand> add_bench_io(Command& bench);
std::unique_ptr<Subcommand> add_bench_step(Command& bench);
std::unique_ptr<Subcommand> add_bench_copy(Command& bench);

// Returns the arguments after the program's name, with flags in kebab case: --device_memory becomes
// --device-memory.
std::vector<std::string> normalised_arguments(int argc, const char* const* argv);

// Takes from the arguments of `launch` what stands behind "--". It is a program's command line, and nobody
// but that program reads it: CLI11 would make several words of "[1, 2]".
std::vector<std::string> words_of_program(std::vector<std::string>& arguments);

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

// Returns the type that the value of a flag names. Throws Error(config) for another value.
DataType type_of_flag(const std::string& flag, const std::string& name);
// Returns folders as the configuration takes them from a flag; empty if there are none.
std::string folder_list(const std::vector<std::string>& folders);

// Throws Error(config) for an empty value. An unset variable of a shell leaves one, and it must not pass for
// a flag that is not given.
void require_values(const CLI::App& command);
// Throws Error(config): "--data is missing", or "--data is missing: REASON".
[[noreturn]] void refuse_missing(const std::string& flag, const std::string& advice,
                                 const Reason& reason = "");
// Throws Error(config) if a path of the command line does not exist, because that is a mistake of the user
// and not a failing system.
void require_exists(const std::string& subject, const std::filesystem::path& path);
// The same if it is no folder.
void require_folder(const std::string& subject, const std::filesystem::path& path);

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
