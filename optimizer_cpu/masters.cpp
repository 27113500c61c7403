#include <terrace/optimizer_cpu/masters.h>

#include <array>
#include <cstring>
#include <string>

#include <terrace/base/assert.h>
#include <terrace/optimizer_cpu/internal/elements.h>
#include <terrace/optimizer_cpu/moment_codes.h>
#include <terrace/optimizer_cpu/update_kernels.h>

namespace terrace {
namespace kernels {
namespace {

void split(const std::byte* masters, std::byte* parameters, std::byte* remainders, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const float master = load_element<float>(masters, i);
    store_element<Bf16>(parameters, i, master);
    const int16_t remainder = remainder_of(master);
    std::memcpy(remainders + i * sizeof(remainder), &remainder, sizeof(remainder));
  }
}

void join(const std::byte* parameters, const std::byte* remainders, std::byte* masters, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    Bf16 parameter;
    int16_t remainder;
    std::memcpy(&parameter, parameters + i * sizeof(parameter), sizeof(parameter));
    std::memcpy(&remainder, remainders + i * sizeof(remainder), sizeof(remainder));
    store_element<float>(masters, i, join_master(parameter, remainder));
  }
}

}  // namespace

const MasterKernels kScalarMasters = {.split = split, .join = join};

}  // namespace kernels

namespace {

const kernels::MasterKernels& kernels_of(InstructionSet set) {
  TERRACE_ASSERT(is_supported(set), "this machine has no " + std::string(name_of(set)));
  return *kernels::find_master_kernels(set);
}

// A tile in its layout and in the canonical one.
struct Tiles {
  RecordLayout layout, canonical;
  size_t parameter_bytes;

  explicit Tiles(const RecordLayout& of) : layout(of), canonical(of.canonical()) {
    TERRACE_ASSERT(!layout.is_canonical(), "the records are canonical already");
    parameter_bytes = kTileElements * bytes_of(master_parameter_type(layout.master));
  }
  size_t moments_bytes() const { return canonical.tile_bytes() - canonical.master_bytes(); }
  template <typename Value, typename Byte>
  std::array<Value*, 2> canonical_moments(Byte* tile) const {
    const auto at = [&](uint32_t moment) {
      return reinterpret_cast<Value*>(tile + canonical.moment_offset(moment));
    };
    return {at(0), layout.moment_count > 1 ? at(1) : nullptr};
  }
};

}  // namespace

void split_masters(InstructionSet set, MasterForm form, const std::byte* masters, std::byte* parameters,
                   std::byte* kept, size_t count) {
  if (count == 0) return;
  if (form == MasterForm::remainder) return kernels_of(set).split(masters, parameters, kept, count);
  std::memcpy(parameters, masters, count * sizeof(float));
}

void join_masters(InstructionSet set, MasterForm form, const std::byte* parameters, const std::byte* kept,
                  std::byte* masters, size_t count) {
  if (count == 0) return;
  if (form == MasterForm::remainder) return kernels_of(set).join(parameters, kept, masters, count);
  std::memcpy(masters, parameters, count * sizeof(float));
}

void split_tiles(InstructionSet set, const RecordLayout& layout, const std::byte* canonical_record,
                 std::byte* record, std::byte* parameters, size_t tile_count) {
  const Tiles tiles(layout);
  for (size_t tile = 0; tile < tile_count; ++tile) {
    const std::byte* const from = canonical_record + tile * tiles.canonical.tile_bytes();
    std::byte* const to = record + tile * layout.tile_bytes();
    if (layout.master == MasterForm::whole) {
      std::memcpy(to, from, layout.master_bytes());
    } else {
      split_masters(set, layout.master, from, parameters + tile * tiles.parameter_bytes, to, kTileElements);
    }
    if (layout.has_codes()) {
      encode_moments(set, layout, tiles.canonical_moments<const float>(from), to);
    } else {
      std::memcpy(to + layout.master_bytes(), from + tiles.canonical.master_bytes(), tiles.moments_bytes());
    }
  }
}

void join_tiles(InstructionSet set, const RecordLayout& layout, const std::byte* record,
                const std::byte* parameters, std::byte* canonical_record, size_t tile_count) {
  const Tiles tiles(layout);
  for (size_t tile = 0; tile < tile_count; ++tile) {
    const std::byte* const from = record + tile * layout.tile_bytes();
    std::byte* const to = canonical_record + tile * tiles.canonical.tile_bytes();
    if (layout.master == MasterForm::whole) {
      std::memcpy(to, from, layout.master_bytes());
    } else {
      join_masters(set, layout.master, parameters + tile * tiles.parameter_bytes, from, to, kTileElements);
    }
    if (layout.has_codes()) {
      decode_moments(set, layout, from, tiles.canonical_moments<float>(to));
    } else {
      std::memcpy(to + tiles.canonical.master_bytes(), from + layout.master_bytes(), tiles.moments_bytes());
    }
  }
}

}  // namespace terrace
