// AdapterTargets decides which linear layers of a model get an adapter.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <terrace/reference/model/transformer/model.h>

namespace terrace::decoder {

class AdapterTargets {
 public:
  // Throws Error(config) for a rank or alpha that makes no adapter.
  AdapterTargets(const ModelConfig& config, const ModelOptions& options);

  bool wants(std::string_view module);
  // Call after asking for every module: throws Error(config) for a pattern that fits none.
  void check(std::string_view example) const;

 private:
  std::vector<std::string> patterns_;
  std::vector<bool> fits_;  // by pattern
};

}  // namespace terrace::decoder
