// MomentsAs: records that were saved with moments of one type, as a run has them whose moments are of
// another. It knows neither files nor runs: records come from a source and go to a caller, tile by tile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/base/record_layout.h>

namespace terrace {

class MomentsAs {
 public:
  // Both layouts are canonical, and have as many moments.
  MomentsAs(const RecordLayout& saved, const RecordLayout& mine);

  // Fills whole tiles of `mine` with what the next ones of `source` hold. A moment becomes the nearest value
  // of its new type, as writing its value would make it.
  void read(std::span<std::byte> tiles, FunctionRef<void(std::span<std::byte>)> source);
  // The bytes that whole tiles of `mine` have as they were saved.
  uint64_t saved_bytes(uint64_t bytes) const { return bytes / mine_.tile_bytes() * saved_.tile_bytes(); }

 private:
  const RecordLayout saved_, mine_;
  std::vector<std::byte> tile_;  // as it was saved
};

// Says of states that were saved as `saved` and go on as `mine` what they become and what that loses. The
// texts of layouts are for people; the optimizer is the same.
std::string text_of_conversion(const RecordLayout& saved, const RecordLayout& mine);

}  // namespace terrace
