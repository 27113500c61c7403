// ConfigProblems: what is wrong with a configuration, collected and thrown as one Error.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/runtime/config/schema/engine_keys.h>
#include <terrace/runtime/config/schema/schema.h>

namespace terrace {

struct ConfigEntry;

struct ConfigProblem {
  std::string origin;  // "ds.json:14:7"; empty if the configuration has no file
  std::string key;     // as written, with its section
  std::string text;
  std::string advice = "";             // what to do, if the text does not say it
  const SchemaKey* about = nullptr;    // the key whose note says what would be right
  std::vector<std::string> same = {};  // further keys of the section that are refused for the same reason
  ErrorCause cause = ErrorCause::other;
};

// The problems of a configuration: the first ones in words, the others as a number.
class ConfigProblems {
 public:
  explicit ConfigProblems(ConfigUser user = ConfigUser::program) : user_(user) {}

  void add(ConfigProblem problem);
  // Adds a problem with the value of a key.
  void add(const ConfigEntry& entry, const std::string& text, const std::string& advice = "");
  // Adds the refusal of a key: "ds.json:14:7: zenflow.topk_ratio cannot be 0.1: <reason>". Further keys of
  // the section that are refused for the same reason, one behind the other, share its line.
  void add_refusal(const std::string& origin, const std::string& key, const std::string& value,
                   std::string_view reason);
  // True if the next problem will be reported in words.
  bool says_next() const;
  // The program's error has a line for each problem. The engine's is about the key of the first one, and its
  // reason goes on with a line for each of the others.
  void throw_if_any() const;

 private:
  const ConfigUser user_;
  std::vector<ConfigProblem> said_;
  size_t count_ = 0;
  std::string last_reason_, last_section_;  // of the last refused key
};

}  // namespace terrace
