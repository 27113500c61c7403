// RecordLayout: the parts of the optimizer state of one tile of elements. A record is a run of tiles
//
//   [master | moment 0 | moment 1] x kTileElements
//
// Each part is contiguous, so that any run of tiles is one transfer each way. The layout is arithmetic on
// sizes; it must never know an optimizer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <terrace/base/data_type.h>

namespace terrace {

inline constexpr uint64_t kTileElements = 4096;

// How the master weight of an element is kept.
enum class MasterForm : uint8_t {
  whole,      // the fp32 value
  remainder,  // int16: the fp32 bits less those of the bf16 parameter, which is kept elsewhere (compact
              // state)
  parameter,  // nothing: the fp32 parameter, which is kept elsewhere, is the master
};

// The bytes of a master in a record.
constexpr uint64_t master_bytes_of(MasterForm form) {
  if (form == MasterForm::parameter) return 0;
  return form == MasterForm::whole ? sizeof(float) : sizeof(int16_t);
}
// Without whole masters, the type of the parameters that masters are made with.
constexpr DataType master_parameter_type(MasterForm form) {
  return form == MasterForm::remainder ? DataType::bf16 : DataType::fp32;
}

// How an element of a moment is kept.
enum class MomentType : uint8_t {
  fp32,
  bf16,
  int8,  // one byte, whose meaning is that of its block: optimizer_cpu/moment_codes.h
};

constexpr uint64_t bytes_of(MomentType type) {
  return type == MomentType::fp32 ? 4 : type == MomentType::bf16 ? 2 : 1;
}
constexpr std::string_view name_of(MomentType type) {
  return type == MomentType::fp32 ? "fp32" : type == MomentType::bf16 ? "bf16" : "int8";
}
inline std::optional<MomentType> moment_type_from_name(std::string_view name) {
  for (const MomentType type : {MomentType::fp32, MomentType::bf16, MomentType::int8}) {
    if (name_of(type) == name) return type;
  }
  return std::nullopt;
}
// The type of single numbers; codes are none.
constexpr DataType number_type_of(MomentType type) {
  return type == MomentType::bf16 ? DataType::bf16 : DataType::fp32;
}

struct RecordLayout {
  MasterForm master = MasterForm::whole;
  uint32_t moment_count = 2;  // 0 to 2
  MomentType moment_type = MomentType::fp32;

  // Without moments, their type does not count.
  constexpr bool operator==(const RecordLayout& other) const {
    return master == other.master && moment_count == other.moment_count &&
           (moment_count == 0 || moment_type == other.moment_type);
  }

  // Sizes and offsets are those of one tile.
  constexpr uint64_t master_bytes() const { return kTileElements * master_bytes_of(master); }
  constexpr uint64_t moment_bytes() const { return kTileElements * bytes_of(moment_type); }
  constexpr uint64_t moment_offset(uint32_t moment) const { return master_bytes() + moment * moment_bytes(); }
  // A multiple of 4 KiB: direct I/O of any run of tiles is aligned. It is 0 where a record would be empty, of
  // which there must be none.
  constexpr uint64_t tile_bytes() const { return moment_offset(moment_count); }

  // Tiles in a block, the unit of I/O, checksum and in-cache computation: the fewest, in powers of two, that
  // make kBlockBytesWanted.
  constexpr uint64_t block_tiles() const {
    uint64_t tiles = 1;
    while (tiles * tile_bytes() < kBlockBytesWanted) tiles *= 2;
    return tiles;
  }
  static constexpr uint64_t kBlockBytesWanted = 640 * 1024;

  // The layout of the same state in a checkpoint: nothing is kept elsewhere, and codes are numbers in fp32.
  constexpr RecordLayout canonical() const {
    return {MasterForm::whole, moment_count, has_codes() ? MomentType::fp32 : moment_type};
  }
  constexpr bool is_canonical() const { return *this == canonical(); }
  // Whether there are moments, and they are codes.
  constexpr bool has_codes() const { return moment_count > 0 && moment_type == MomentType::int8; }
};

// "whole masters and 2 moments in fp32", for messages.
inline std::string text_of(const RecordLayout& layout) {
  constexpr std::array kMasters = {"whole masters", "compact masters", "masters in the parameters"};
  std::string text = kMasters[static_cast<size_t>(layout.master)];
  if (layout.moment_count == 0) return text + " and no moments";
  return text + " and " + std::to_string(layout.moment_count) +
         (layout.moment_count == 1 ? " moment in " : " moments in ") +
         std::string(name_of(layout.moment_type));
}

static_assert(RecordLayout{}.tile_bytes() == 48 * 1024 && RecordLayout{}.block_tiles() == 16);
static_assert(RecordLayout{MasterForm::remainder}.tile_bytes() == 40 * 1024);
static_assert(RecordLayout{MasterForm::remainder, 2, MomentType::int8}.tile_bytes() == 16 * 1024);
static_assert(RecordLayout{MasterForm::whole, 0, MomentType::fp32} ==
              RecordLayout{MasterForm::whole, 0, MomentType::bf16});
static_assert(RecordLayout{MasterForm::whole, 1, MomentType::fp32} !=
              RecordLayout{MasterForm::whole, 1, MomentType::bf16});

}  // namespace terrace
