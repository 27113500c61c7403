#include <terrace/offload/plan/matrix_groups.h>

#include <algorithm>

#include <terrace/base/data_type.h>
#include <terrace/base/units.h>
#include <terrace/memory/host/host_arena.h>
#include <terrace/optimizer_cpu/products/newton_schulz.h>

namespace terrace {
namespace {

// Closed groups have at least so many elements.
uint64_t wanted_elements(const SpaceLayout& space, uint32_t ranks) {
  uint64_t largest = 0;
  for (const TensorSpec& tensor : space.tensors()) {
    if (tensor.by_matrix) largest = std::max(largest, tensor.element_count());
  }
  return std::max(ranks * largest, space.largest_trainable_chunk());
}

// The largest matrices first, each to the rank that has the least work until then. An iteration multiplies
// matrices of m x n by m x m ones, m being the smaller side.
void choose_owners(std::vector<MatrixOfGroup>& matrices, uint32_t ranks) {
  const auto work_of = [](const MatrixOfGroup& matrix) {
    const auto small = static_cast<double>(std::min(matrix.rows, matrix.columns));
    return small * small * (2 * static_cast<double>(std::max(matrix.rows, matrix.columns)) + small);
  };
  std::ranges::stable_sort(matrices, std::ranges::greater(), work_of);
  std::vector<double> work(ranks);
  for (MatrixOfGroup& matrix : matrices) {
    matrix.owner = static_cast<uint32_t>(std::ranges::min_element(work) - work.begin());
    work[matrix.owner] += work_of(matrix);
  }
  std::ranges::stable_sort(matrices, {}, &MatrixOfGroup::owner);
}

}  // namespace

MatrixPart own_part_of(const SpaceLayout& space, TensorId tensor, uint32_t chunk, uint32_t rank,
                       uint32_t ranks) {
  const TensorPlace& place = space.place(tensor);
  const Section& section = space.sections()[place.section];
  const uint32_t index = place.first_chunk + chunk - section.first_chunk;
  const uint64_t tiles = SpaceLayout::elements_of_chunk(section, index) / kTileElements;
  const uint64_t each = divide_up(tiles, ranks) * kTileElements;
  const uint64_t chunk_begin = index * section.chunk_elements;
  const uint64_t chunk_end = chunk_begin + tiles * kTileElements;
  const uint64_t begin = std::max(std::min(chunk_begin + rank * each, chunk_end), place.first_element);
  const uint64_t end =
      std::min(std::min(chunk_begin + (rank + 1) * each, chunk_end), place.first_element + place.elements);
  return begin < end ? MatrixPart{begin - place.first_element, end - begin} : MatrixPart{};
}

MatrixGroups::MatrixGroups(const SpaceLayout& space, uint32_t ranks) {
  for (uint32_t s = 0; s < space.sections().size(); ++s) {
    if (space.sections()[s].by_matrix) add_section(space, s, ranks);
  }
}

void MatrixGroups::add_section(const SpaceLayout& space, uint32_t section, uint32_t ranks) {
  const uint64_t wanted = wanted_elements(space, ranks);
  const size_t before = groups_.size();
  uint64_t elements = wanted;  // of the open group; at first none is open
  for (uint32_t t = 0; t < space.tensor_count(); ++t) {
    const TensorPlace& place = space.place(TensorId{t});
    if (place.section != section) continue;
    if (elements >= wanted) {
      groups_.push_back({.matrices = {}, .first_chunk = place.first_chunk});
      elements = 0;
    }
    const std::vector<uint64_t>& shape = space.tensor(TensorId{t}).shape;
    groups_.back().matrices.push_back({TensorId{t}, shape[0], shape[1]});
    groups_.back().end_chunk = place.first_chunk + place.chunk_count;
    elements += place.elements;
    work_bytes_ = std::max(work_bytes_, NewtonSchulz::work_bytes({shape[0], shape[1]}));
  }
  for (size_t g = before; g < groups_.size(); ++g) {
    choose_owners(groups_[g].matrices, ranks);
    count(space, groups_[g], ranks);
  }
}

void MatrixGroups::count(const SpaceLayout& space, const MatrixGroup& group, uint32_t ranks) {
  std::vector<uint64_t> own(ranks), owned(ranks);
  for (const MatrixOfGroup& matrix : group.matrices) {
    owned[matrix.owner] += matrix.elements();
    for (uint32_t c = 0; c < space.place(matrix.tensor).chunk_count; ++c) {
      for (uint32_t rank = 0; rank < ranks; ++rank)
        own[rank] += own_part_of(space, matrix.tensor, c, rank, ranks).elements;
    }
  }
  most_own_elements_ = std::max(most_own_elements_, *std::ranges::max_element(own));
  if (ranks > 1) most_owned_elements_ = std::max(most_owned_elements_, *std::ranges::max_element(owned));
}

uint64_t MatrixGroups::host_bytes() const {
  return 2 * HostArena::cost_bytes(most_own_elements_ * sizeof(Bf16)) +
         HostArena::cost_bytes(most_owned_elements_ * sizeof(Bf16)) + HostArena::cost_bytes(work_bytes_);
}

}  // namespace terrace
