// MatrixGroups: the matrices that are updated as wholes (TensorSpec::by_matrix), in the groups in which an
// update takes them, and which rank works on which of them. It is pure arithmetic, the same on every rank.
//
// The update of a group reads what the steps of its matrices are made of, makes these, and then updates the
// chunks. So the memory for steps is that of two groups, whatever the model has: two, because a chunk may
// have matrices of a group and of the next one, with which it is updated. A group is closed when it has as
// many elements as the largest chunk, and for each rank as many as the largest matrix: every rank has work
// then, and no chunk has matrices of three groups.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <terrace/memory/space/space_layout.h>

namespace terrace {

// A matrix, and the rank that makes its step.
struct MatrixOfGroup {
  TensorId tensor{};
  uint64_t rows = 0;
  uint64_t columns = 0;
  uint32_t owner = 0;

  uint64_t elements() const { return rows * columns; }
};

// Matrices of one section that follow each other there.
struct MatrixGroup {
  std::vector<MatrixOfGroup> matrices;  // in the order of their owners
  // They lie in the chunks [first_chunk, end_chunk).
  uint32_t first_chunk = 0;
  uint32_t end_chunk = 0;
};

// The elements of a tensor, without padding, that a rank owns in one chunk.
struct MatrixPart {
  uint64_t first_in_tensor = 0;
  uint64_t elements = 0;
};
// `chunk` is one of those of the tensor, counted from its first.
MatrixPart own_part_of(const SpaceLayout& space, TensorId tensor, uint32_t chunk, uint32_t rank,
                       uint32_t ranks);

class MatrixGroups {
 public:
  MatrixGroups(const SpaceLayout& space, uint32_t ranks);

  bool empty() const { return groups_.empty(); }
  std::span<const MatrixGroup> groups() const { return groups_; }

  // Sizes for any rank of any group. The steps of a rank's own elements:
  uint64_t most_own_elements() const { return most_own_elements_; }
  // The matrices that a rank works on; 0 for one rank, which has them as its own elements.
  uint64_t most_owned_elements() const { return most_owned_elements_; }
  // What the work on any matrix takes (newton_schulz.h).
  uint64_t work_bytes() const { return work_bytes_; }
  // Host memory for all of that, as HostArena counts it.
  uint64_t host_bytes() const;

 private:
  void add_section(const SpaceLayout& space, uint32_t section, uint32_t ranks);
  void count(const SpaceLayout& space, const MatrixGroup& group, uint32_t ranks);

  std::vector<MatrixGroup> groups_;
  uint64_t most_own_elements_ = 0;
  uint64_t most_owned_elements_ = 0;
  uint64_t work_bytes_ = 0;
};

}  // namespace terrace
