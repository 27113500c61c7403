#include <terrace/optimizer_cpu/masters.h>

#include <cstring>
#include <string>

#include <terrace/base/assert.h>
#include <terrace/optimizer_cpu/internal/elements.h>
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

struct Tiles {
  RecordLayout compact, canonical;
  size_t moments_bytes, parameter_bytes;

  explicit Tiles(const RecordLayout& layout) : compact(layout), canonical(layout.canonical()) {
    TERRACE_ASSERT(layout.master != MasterForm::whole, "the records have whole masters already");
    moments_bytes = compact.tile_bytes() - compact.master_bytes();
    parameter_bytes = kTileElements * bytes_of(master_parameter_type(layout.master));
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

void split_tiles(InstructionSet set, const RecordLayout& compact, const std::byte* canonical_record,
                 std::byte* compact_record, std::byte* parameters, size_t tile_count) {
  const Tiles tiles(compact);
  for (size_t tile = 0; tile < tile_count; ++tile) {
    const std::byte* const from = canonical_record + tile * tiles.canonical.tile_bytes();
    std::byte* const to = compact_record + tile * compact.tile_bytes();
    split_masters(set, compact.master, from, parameters + tile * tiles.parameter_bytes, to, kTileElements);
    std::memcpy(to + compact.master_bytes(), from + tiles.canonical.master_bytes(), tiles.moments_bytes);
  }
}

void join_tiles(InstructionSet set, const RecordLayout& compact, const std::byte* compact_record,
                const std::byte* parameters, std::byte* canonical_record, size_t tile_count) {
  const Tiles tiles(compact);
  for (size_t tile = 0; tile < tile_count; ++tile) {
    const std::byte* const from = compact_record + tile * compact.tile_bytes();
    std::byte* const to = canonical_record + tile * tiles.canonical.tile_bytes();
    join_masters(set, compact.master, parameters + tile * tiles.parameter_bytes, from, to, kTileElements);
    std::memcpy(to + tiles.canonical.master_bytes(), from + compact.master_bytes(), tiles.moments_bytes);
  }
}

}  // namespace terrace
