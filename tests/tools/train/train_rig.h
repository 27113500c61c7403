// What `terrace train` has before and beside a run, for tests of its parts: the flags of a command line, one
// rank, and the console, which writes to stderr.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "command.h"
#include "console.h"
#include "flags/train_flags.h"
#include "support/scratch_folder.h"
#include "train/planned_run.h"
#include "train/run_report.h"
#include "train/train_ranks.h"

namespace terrace::train_tests {

// A text of so many bytes, which are its tokens.
inline std::string some_text(size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += "the water of a river runs down to the sea\n";
  text.resize(bytes);
  return text;
}

// A command line that trains a tiny model, with its own words behind, up to the run that is planned.
class TrainRig {
 public:
  explicit TrainRig(const std::vector<std::string>& words = {}) {
    for (const char* folder : {"nvme", "runtime", "cache"})
      std::filesystem::create_directory(folder_ / folder);
    // What a run listens on, and what was measured here, is that of the test.
    setenv("XDG_RUNTIME_DIR", path_of("runtime").c_str(), 1);
    setenv("XDG_CACHE_HOME", path_of("cache").c_str(), 1);
    folder_.write("text.txt", some_text(8000));
    const auto has = [&](const char* flag) { return std::ranges::find(words, flag) != words.end(); };
    const std::pair<const char*, std::string> defaults[] = {{"--layers", "1"},
                                                            {"--width", "16"},
                                                            {"--heads", "2"},
                                                            {"--context", "16"},
                                                            {"--data", path_of("text.txt")},
                                                            {"--threads", "1"},
                                                            {"--device-memory", "16MiB"},
                                                            {"--host-memory", "64MiB"}};
    std::vector<std::string> all;
    for (const auto& [flag, value] : defaults) {
      if (!has(flag)) all.insert(all.end(), {flag, value});
    }
    if (!has("--epochs")) all.insert(all.end(), {"--steps", "3"});
    for (const std::string& word : words) all.push_back(word == "NVME" ? path_of("nvme") : word);
    Command command(app_);
    flags_.add_to(command);
    std::ranges::reverse(all);  // the parser takes them from the back
    app_.parse(std::move(all));
    take_part(ranks_.identity(), flags_, console_);
    ranks_.join(meeting_of(flags_));
    report_.emplace(flags_.report, console_);
  }

  std::string path_of(const std::string& name) const { return (folder_ / name).string(); }
  TrainFlags& flags() { return flags_; }
  const RunRanks& ranks() const { return ranks_; }
  RunReport& report() { return *report_; }
  const RunReport& report() const { return *report_; }
  Console& console() { return console_; }

  // Plans it, once.
  PlannedRun& plan() {
    run_ = std::make_unique<PlannedRun>(flags_, ranks_, report_->said(), console_);
    return *run_;
  }

 private:
  const ScratchFolder folder_;
  Console console_;
  RankConsole program_{console_};
  RunRanks ranks_{Environment(), program_};
  CLI::App app_{"a training", "train"};
  TrainFlags flags_;
  std::optional<RunReport> report_;
  std::unique_ptr<PlannedRun> run_;
};

}  // namespace terrace::train_tests
