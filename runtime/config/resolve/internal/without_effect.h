// WithoutEffect: the warning about known keys that change nothing, grouped by section, in lines that a
// terminal shows whole.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace terrace {

class WithoutEffect {
 public:
  // `reason` says why the key has no effect in this configuration; it is empty if the key never has one.
  void add(const std::string& key, const std::string& reason);
  bool empty() const { return count_ == 0; }

  // Returns the warning. No line is longer than 100 columns, with "terrace: warning: " before the first one,
  // unless a single key is:
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
