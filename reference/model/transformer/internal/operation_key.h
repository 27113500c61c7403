// The key of a use, "mb0/h.3.mlp.fc/forward", made without allocating.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include <terrace/base/assert.h>

namespace terrace::decoder {

class OperationKey {
 public:
  OperationKey(std::string_view prefix, std::string_view operation, std::string_view phase) {
    append(prefix);
    append(operation);
    append(phase);
  }
  // "<prefix>h.3<operation><phase>"
  static OperationKey of_layer(std::string_view prefix, uint32_t layer, std::string_view operation,
                               std::string_view phase) {
    return OperationKey(prefix, "h.", layer, operation, phase);
  }
  // "<prefix>head.2<phase>"
  static OperationKey of_part(std::string_view prefix, std::string_view table, uint32_t part,
                              std::string_view phase) {
    return OperationKey(prefix, table, part, "", phase);
  }
  operator std::string_view() const {  // NOLINT: implicit on purpose, a key is a text
    return {text_.data(), size_};
  }

 private:
  OperationKey(std::string_view prefix, std::string_view before, uint32_t number, std::string_view after,
               std::string_view phase) {
    append(prefix);
    append(before);
    std::array<char, 10> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
    append({digits.data(), static_cast<size_t>(end - digits.data())});
    append(after);
    append(phase);
  }
  void append(std::string_view part) {
    TERRACE_ASSERT(size_ + part.size() <= text_.size(),
                   "the operation prefix is too long: " + std::string(part));
    std::copy(part.begin(), part.end(), text_.begin() + static_cast<std::ptrdiff_t>(size_));
    size_ += part.size();
  }

  std::array<char, 128> text_;
  size_t size_ = 0;
};

}  // namespace terrace::decoder
