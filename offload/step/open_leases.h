// OpenLeases: the uses of tensors that operations have begun and not ended. Leases nest, and may end in any
// order: a tensor is readable as long as one of them names it. The step thread uses it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/memory/space/flat_space.h>
#include <terrace/memory/space/tensor.h>
#include <terrace/offload/watch/trace_event.h>

namespace terrace {

struct OpenUse {
  OpenUse() { operation.reserve(256); }

  uint64_t number = 0;  // counts all uses from 1
  std::string operation;
  UseKind kind = UseKind::inference;
  std::vector<TensorId> tensors;
  std::vector<ChunkId> chunks;             // the chunks that hold the tensors, ascending
  std::array<uint32_t, 3> chunks_found{};  // at its begin: on the device, on their way, neither
  std::optional<TraceEvent> event;         // where it is recorded
};

class OpenLeases {
 public:
  // `space` outlives this.
  explicit OpenLeases(const FlatSpace& space);

  // Opens a use. Throws Error(misuse), with nothing changed, where a tensor does not exist or is named twice.
  OpenUse& begin(std::string_view operation, std::span<const TensorId> tensors, UseKind kind);
  // Closes the use. The tensors that no other use names are released().
  void end(OpenUse& use);

  // The youngest open use; there must be one.
  OpenUse& youngest() { return *open_.back(); }
  // The operation of the youngest open use; empty without one.
  std::string_view operation() const { return open_.empty() ? std::string_view() : open_.back()->operation; }
  // The open use with this number; null where there is none.
  OpenUse* find(uint64_t number);

  // True if an open use has the tensor, or one that goes backward; false for tensors that do not exist.
  bool has(TensorId tensor) const { return exists(tensor) && leases_[index_of(tensor)].count > 0; }
  bool goes_backward(TensorId tensor) const {
    return exists(tensor) && leases_[index_of(tensor)].backward_count > 0;
  }
  // True if no other use is open.
  bool is_only(const OpenUse& use) const { return open_.size() == 1 && open_.front().get() == &use; }
  // The chunks of all open uses, ascending; valid until the next begin() or end().
  std::span<const ChunkId> chunks() const {
    return open_.size() == 1 ? std::span<const ChunkId>(open_.front()->chunks) : chunks_;
  }

  // A tensor whose last use has ended, with what its uses were for: backward where one of them went backward,
  // else forward where one went forward.
  struct Released {
    TensorId tensor;
    UseKind kind;
  };
  // The tensors that the last end() released.
  std::span<const Released> released() const { return released_; }

 private:
  bool exists(TensorId tensor) const { return index_of(tensor) < leases_.size(); }
  struct TensorLeases {
    uint32_t count = 0;
    uint32_t backward_count = 0;
    UseKind kind = UseKind::inference;  // since the first of the open uses began
    uint64_t last_use = 0;              // the number of the last use that named the tensor
  };
  void require_distinct(std::string_view operation, std::span<const TensorId> tensors, uint64_t number);
  void collect_open_chunks();

  const FlatSpace& space_;
  uint64_t count_ = 0;                           // uses so far
  std::vector<std::unique_ptr<OpenUse>> open_;   // in the order of their begin
  std::vector<std::unique_ptr<OpenUse>> spare_;  // memory of closed uses
  std::vector<TensorLeases> leases_;             // per tensor
  std::vector<ChunkId> chunks_;                  // of several open uses
  std::vector<Released> released_;
};

}  // namespace terrace
