// TrainingState: loads the state of a training into an Offloader and exports it, independent of placement and
// chunk size. Everything is streamed. The step thread uses it, between steps only.
//
// A call that reads the state waits for a pending update first, and throws Error(cancelled) unless the state
// is whole (Offloader::has_whole_state). A failed load leaves no whole state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>
#include <utility>

#include <terrace/base/data_type.h>
#include <terrace/base/function_ref.h>
#include <terrace/memory/space/tensor.h>

namespace terrace {

class StateBlocks;
class StepBoundary;

// The values that are kept of every element. A frozen tensor has parameters only.
enum class ValueKind : uint8_t {
  parameter,  // in the tensor's type
  master,     // the fp32 value that the parameter is rounded from
  first_moment,
  second_moment,
  gradient,  // of a step, between its last micro-batch and its update (GradientValues)
};
std::string_view name_of(ValueKind kind);  // "first moment"

// The values of a whole tensor: elements of `type` at `data`, which needs no alignment.
struct TensorArray {
  TensorId tensor{};
  const std::byte* data = nullptr;
  DataType type = DataType::fp32;
};

// The values of a whole tensor in a file: elements of `type` from byte `offset` on, as in a safetensors file.
struct FilePart {
  TensorId tensor{};
  std::filesystem::path path;
  uint64_t offset = 0;
  DataType type = DataType::fp32;
};

// Where a run has several ranks, these are calls that every rank makes, with the same arguments. Exports go
// to the first rank: the sinks of the others are not called. Imports take everything on every rank.
class TrainingState {
 public:
  // What the state asks of the Offloader's other parts.
  struct Hooks {
    // Throws Error(misuse) where frozen parameters may not change any more. Returns true if a commit holds
    // them.
    std::function<bool(std::string_view action)> require_frozen_change;
    std::function<void()> about_to_load;  // is called before the first byte of a load changes
  };
  // The Offloader constructs it.
  TrainingState(StateBlocks& blocks, StepBoundary& boundary, Hooks hooks);

  // Sets every parameter: `values` fills a run of elements of a tensor with fp32 values; it is called on all
  // workers at once. Moments start at 0.
  void initialise(FunctionRef<void(TensorId tensor, uint64_t first_element, std::span<float> values)> values);
  // These do the same with values that exist, for every tensor once; they are converted on all workers and
  // nothing else is held in memory. Throw Error(misuse), naming the tensor, for a list that does not have
  // each tensor once, and Error(corrupt) for a file that is too short, before anything changes. A file that
  // cannot be read is an Error(io).
  void load_arrays(std::span<const TensorArray> arrays);
  void load_file_parts(std::span<const FilePart> parts);

  // --- Values of one tensor. Throw Error(misuse) for elements or kinds that it does not have ---
  // Read and write the elements from `first_element` on, as many as there are values. Only the blocks that
  // hold them move; a commit keeps what it has. Writing a master or a parameter of a trained tensor sets
  // both, the parameter to the rounded value; writing a moment changes nothing else. Moments in bf16 are
  // rounded. A write that fails after it has changed anything leaves no whole state. Throws Error(capacity)
  // where the tier has no room for another version of frozen parameters.
  void read_values(TensorId tensor, ValueKind what, uint64_t first_element, std::span<float> values);
  void write_values(TensorId tensor, ValueKind what, uint64_t first_element, std::span<const float> values);
  // A checksum of all that was written so since the call before: every rank has written the same.
  uint64_t take_sum_of_written() { return std::exchange(sum_of_written_, 0); }

  // The number of updates that each tensor has had, by TensorId; empty unless tensors count their own steps
  // (UnusedGradients::skip). Loading sets all to 0: set_tensor_steps() gives those that belong to loaded
  // records. Throws Error(misuse) for another number of counts.
  std::span<const uint64_t> tensor_steps() const;
  void set_tensor_steps(std::span<const uint64_t> counts);

  // Exports the records of the trainable sections as one run of tiles in flat order, a block of tiles at a
  // time.
  uint64_t record_tile_count() const;
  void export_records(FunctionRef<void(std::span<const std::byte> tiles)> sink);
  // Imports records in the same order, filled by `source`, and derives the parameters from them.
  void import_records(FunctionRef<void(std::span<std::byte> tiles)> source);
  // `skip` passes over bytes that are other ranks'; without it they are read, and dropped.
  void import_records(FunctionRef<void(std::span<std::byte> tiles)> source,
                      FunctionRef<void(uint64_t bytes)> skip);
  // Frozen parameters are exported and imported in their own precision, in flat order.
  uint64_t frozen_bytes() const;
  void export_frozen(FunctionRef<void(std::span<const std::byte> parameters)> sink);
  void import_frozen(FunctionRef<void(std::span<std::byte> parameters)> source);
  void import_frozen(FunctionRef<void(std::span<std::byte> parameters)> source,
                     FunctionRef<void(uint64_t bytes)> skip);
  // Exports the values of the wanted tensors as fp32: master weights, and parameters of frozen tensors.
  // Tensors come in flat order, each from its first element to its last, in runs of at most kTileElements.
  // Data that holds no wanted tensor is not read; the rest is read once.
  using Wanted = FunctionRef<bool(TensorId)>;
  using ValueSink = FunctionRef<void(TensorId tensor, uint64_t first_element, std::span<const float> values)>;
  void export_values(Wanted wanted, ValueSink sink);
  // Reads one tensor's parameters in its own precision. Throws Error(misuse) where `destination` has no room.
  void read_parameter(TensorId tensor, std::span<std::byte> destination);

 private:
  // FillTiles makes the records and the parameters of one run of a chunk's tiles.
  using FillTiles =
      FunctionRef<void(ChunkId, uint64_t first_tile, std::span<std::byte> tiles, std::byte* parameters)>;
  void begin_loading(std::string_view action, bool with_frozen);
  void require_values(std::string_view action, TensorId tensor, ValueKind what, uint64_t first_element,
                      uint64_t count) const;
  void require_room_beside_commit(TensorId tensor, uint64_t first_element, uint64_t count) const;
  // Write values of the elements of one chunk; `begin` is called before anything changes.
  void write_moments(ChunkId chunk, uint64_t first_element, std::span<const float> values, uint32_t moment,
                     FunctionRef<void()> begin);
  void write_weights(ChunkId chunk, uint64_t first_element, std::span<const float> values,
                     FunctionRef<void()> begin);
  void load_records(FillTiles fill);
  void load_frozen(FunctionRef<void(ChunkId, std::span<std::byte> parameters)> fill);
  bool is_wanted(ChunkId chunk, uint64_t first_element, uint64_t count, Wanted wanted) const;
  void note_written(uint64_t sum);
  // Bring the chunk's records, and the parameters of a frozen one, to the first rank, in flat order and as a
  // checkpoint has them; elements that are not wanted stay where they are.
  using WantedElements = FunctionRef<bool(ChunkId, uint64_t first_element, uint64_t count)>;
  using TakeTiles = FunctionRef<void(uint64_t first_tile, std::span<const std::byte> tiles)>;
  void walk_records(ChunkId chunk, WantedElements wanted, TakeTiles take);
  void walk_frozen(ChunkId chunk, WantedElements wanted, TakeTiles take);
  void export_masters(ChunkId chunk, Wanted wanted, ValueSink sink);
  void export_frozen_values(ChunkId chunk, Wanted wanted, ValueSink sink);

  StateBlocks& blocks_;
  StepBoundary& boundary_;
  const Hooks hooks_;
  uint64_t sum_of_written_ = 0;
};

}  // namespace terrace
