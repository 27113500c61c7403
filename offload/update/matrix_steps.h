// MatrixSteps: the memory in which the steps of whole matrices are made (OptimizerKind::muon), and the
// making. Each rank puts what the steps of its own elements are made of into it. The ranks bring each matrix
// together at its owner, who makes the step by newton_schulz.h, and get their own elements of that back. All
// numbers are bf16, as what is multiplied is. The result depends on no rank, no thread and no processor.
//
// The step thread uses it; at() may be asked by several threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <terrace/base/event.h>
#include <terrace/base/function_ref.h>
#include <terrace/comm/operations/communicator.h>
#include <terrace/memory/host/host_arena.h>
#include <terrace/offload/plan/matrix_groups.h>
#include <terrace/offload/plan/rank_bytes.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/optimizer_cpu/optimizer.h>
#include <terrace/optimizer_cpu/products/newton_schulz.h>

namespace terrace {

class MatrixSteps {
 public:
  // Takes MatrixGroups::host_bytes() from the arena. `run` outlives this.
  MatrixSteps(const RunContext& run, HostArena& arena);
  ~MatrixSteps();
  MatrixSteps(const MatrixSteps&) = delete;
  MatrixSteps& operator=(const MatrixSteps&) = delete;

  std::span<const MatrixGroup> groups() const { return groups_.groups(); }

  // The place of a matrix's group.
  uint32_t group_of(TensorId tensor) const { return group_of_[index_of(tensor)]; }
  // The memory of the own elements of a matrix that lie in one of its chunks. What it holds stays until the
  // group after the next is begun.
  Bf16* at(TensorId tensor, ChunkId chunk) const;
  // Makes the steps of a group's matrices out of what at() has of them. `settings_of` gives null for a matrix
  // that is left out, on all ranks alike.
  void make(const MatrixGroup& group, FunctionRef<const OptimizerSettings*(TensorId)> settings_of);

  // What this rank has received and sent.
  const RankBytes& moved() const { return moved_; }

 private:
  // One exchange, which brings the elements of a chunk to the owner of the matrix, or back.
  struct Exchange {
    std::vector<CommPart> to, from;  // by rank
    Event done;
  };
  enum class Way : uint8_t { to_owners, from_owners };

  void place(const MatrixGroup& group, std::byte* own);
  void exchange(const MatrixGroup& group, Way way);
  void start(Exchange& exchange, const MatrixOfGroup& matrix, uint32_t chunk, Way way);
  void count(const CommPart& to, const CommPart& from, uint32_t rank);
  void copy_own(const MatrixGroup& group, Way way);
  uint32_t chunks_of(const MatrixOfGroup& matrix) const {
    return run_.space.place(matrix.tensor).chunk_count;
  }
  MatrixPart part_of(const MatrixOfGroup& matrix, uint32_t chunk, uint32_t rank) const {
    return own_part_of(run_.space, matrix.tensor, chunk, rank, run_.options.ranks);
  }
  // The whole matrix, at its owner.
  Bf16* whole(const MatrixOfGroup& matrix) const;

  const RunContext& run_;
  const MatrixGroups groups_;
  std::optional<NewtonSchulz> newton_schulz_;  // where there are matrices
  std::span<std::byte> owned_;
  std::span<std::byte> work_;
  std::vector<Bf16*> at_;           // of each tensor's chunks, one tensor behind the other
  std::vector<uint32_t> first_at_;  // by tensor, as the next
  std::vector<uint32_t> group_of_;
  std::vector<uint64_t> place_in_owned_;  // by tensor
  std::vector<std::unique_ptr<Exchange>> exchanges_;
  uint64_t exchanged_ = 0;
  RankBytes moved_;
};

}  // namespace terrace
