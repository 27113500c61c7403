// What the tests of the configuration share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace::config_test {

inline TrainConfig parse(std::string_view text, std::vector<ConfigOverride> overrides = {}) {
  return parse_train_config(text, "ds.json", overrides);
}

// What the Error(config) for this text says, without its advice.
inline std::string problem(std::string_view text, std::vector<ConfigOverride> overrides = {}) {
  try {
    parse(text, std::move(overrides));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_FALSE(error.parts().advice.empty());
    return error.parts().what_failed.in(Door::cpp);
  }
  return "no problem";
}

inline const ResolvedValue& resolved(const TrainConfig& config, std::string_view key) {
  static const ResolvedValue missing = {"missing", "missing", "missing", ""};
  const auto found = std::find_if(config.resolved.begin(), config.resolved.end(),
                                  [&](const ResolvedValue& value) { return value.key == key; });
  return found == config.resolved.end() ? missing : *found;
}

inline std::string value_of(const TrainConfig& config, std::string_view key) {
  return resolved(config, key).value;
}
inline std::string origin_of(const TrainConfig& config, std::string_view key) {
  return resolved(config, key).origin;
}

}  // namespace terrace::config_test
