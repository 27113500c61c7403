// RunSettings: what of a configuration shapes the numbers of a run and may yet change when it resumes. It
// goes into checkpoints, so that a resumed run can say what it does otherwise; nothing is decided by it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <terrace/runtime/config/train_config.h>

namespace terrace {

// By key of the configuration, each as the JSON literal that --print-config shows; and "steps".
std::map<std::string, std::string> settings_of(const TrainConfig& config, uint64_t steps);

// One line per setting that differs: "optimizer.params.lr differs from the checkpoint's run: 0.0005 now,
// 0.001 there". `saved` may be empty: then nothing is known and nothing differs.
std::vector<std::string> changed_settings(const std::map<std::string, std::string>& saved,
                                          const std::map<std::string, std::string>& now);

}  // namespace terrace
