// WithoutEffect: the warning about keys that are known and change nothing, by section, in lines that a
// terminal shows whole.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace terrace {

class WithoutEffect {
 public:
  // `reason` is why in this configuration only, or empty.
  void add(const std::string& key, const std::string& reason);
  bool empty() const { return count_ == 0; }

  // No line is longer than 100 columns, the "terrace: warning: " before the first one included, unless a
  // single key is:
  //   7 known keys have no effect here (docs/config.md says why):
  //     zero_optimization: overlap_comm, contiguous_gradients
  //     fp16 (fp16.enabled is false): loss_scale
  std::string text() const;

 private:
  struct Group {
    std::string section;
    std::string reason;
    std::vector<std::string> keys;
  };
  std::vector<Group> groups_;  // in the order of their first key
  size_t count_ = 0;
};

}  // namespace terrace
