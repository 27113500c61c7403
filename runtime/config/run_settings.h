// The settings of a run that shape its numbers and may still change when it resumes. Checkpoints keep them so
// that a resumed run can report the differences. One of them stays what it was: a run that goes on has the
// gradient groups of the run before.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <terrace/runtime/config/train_config.h>

namespace terrace {

// Returns the settings by key of the configuration, and "steps"; each value is the JSON literal that
// --print-config shows.
std::map<std::string, std::string> settings_of(const TrainConfig& config, uint64_t steps);

// Returns one line per setting that differs: "optimizer.params.lr differs from the checkpoint's run: 0.0005
// now, 0.001 there". An empty `saved` gives no lines.
std::vector<std::string> changed_settings(std::map<std::string, std::string> saved,
                                          const std::map<std::string, std::string>& now);

// The size of the gradient groups of the run with these settings.
uint32_t gradient_group_of(const std::map<std::string, std::string>& settings);

// Goes on with the gradient groups of the run with the settings `saved`, of the state `where`. Throws
// Error(config) where the configuration asks for others.
void keep_gradient_group(const std::map<std::string, std::string>& saved, const std::string& where,
                         BatchConfig& batch);

}  // namespace terrace
