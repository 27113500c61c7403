#include <terrace/runtime/checkpoint/moments_as.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include <terrace/base/assert.h>
#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace {

MomentsAs::MomentsAs(const RecordLayout& saved, const RecordLayout& mine) : saved_(saved), mine_(mine) {
  TERRACE_ASSERT(saved.is_canonical() && mine.is_canonical() && saved.moment_count == mine.moment_count,
                 "records of two optimizers, or not canonical");
}

void MomentsAs::read(std::span<std::byte> tiles, FunctionRef<void(std::span<std::byte>)> source) {
  if (saved_ == mine_) return source(tiles);
  const InstructionSet set = best_instruction_set();
  alignas(64) float values[kTileElements];
  tile_.resize(saved_.tile_bytes());
  for (; !tiles.empty(); tiles = tiles.subspan(mine_.tile_bytes())) {
    source(tile_);
    std::memcpy(tiles.data(), tile_.data(), mine_.master_bytes());
    for (uint32_t m = 0; m < mine_.moment_count; ++m) {
      convert_to_float(set, tile_.data() + saved_.moment_offset(m), number_type_of(saved_.moment_type),
                       values, kTileElements);
      convert_from_float(set, values, tiles.data() + mine_.moment_offset(m),
                         number_type_of(mine_.moment_type), kTileElements);
    }
  }
}

std::string text_of_conversion(const RecordLayout& saved, const RecordLayout& mine) {
  const bool rounds =
      saved.moment_count > 0 && saved.moment_type != mine.moment_type && mine.moment_type != MomentType::fp32;
  return fmt::format("the optimizer states were saved as {}, and are {} from here on: {}", text_of(saved),
                     text_of(mine),
                     rounds ? fmt::format("moments are rounded to {} once, and masters stay as they are",
                                          name_of(mine.moment_type))
                            : "no value changes");
}

}  // namespace terrace
