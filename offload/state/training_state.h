// TrainingState: loads the state of a training into an Offloader and exports it, independent of placement and
// chunk size. Everything is streamed. The step thread uses it, between steps only.
//
// A call that reads the state waits for a pending update first, and throws Error(cancelled) unless the state
// is whole (Offloader::has_whole_state). A failed load leaves no whole state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include <terrace/base/function_ref.h>
#include <terrace/memory/space/tensor.h>

namespace terrace {

class StateBlocks;
class StepBoundary;

class TrainingState {
 public:
  // The Offloader constructs it. `about_to_load` is called before the first byte changes, with true where
  // frozen parameters are among what is loaded.
  TrainingState(StateBlocks& blocks, StepBoundary& boundary, std::function<void(bool)> about_to_load);

  // Sets every parameter: `values` fills a run of elements of a tensor with fp32 values; it is called on all
  // workers at once. Moments start at 0.
  void initialise(FunctionRef<void(TensorId tensor, uint64_t first_element, std::span<float> values)> values);

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
  // Frozen parameters are exported and imported in their own precision, in flat order.
  uint64_t frozen_bytes() const;
  void export_frozen(FunctionRef<void(std::span<const std::byte> parameters)> sink);
  void import_frozen(FunctionRef<void(std::span<std::byte> parameters)> source);
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
  void load_records(FillTiles fill);
  void load_frozen(FunctionRef<void(ChunkId, std::span<std::byte> parameters)> fill);
  bool is_wanted(ChunkId chunk, uint64_t first_element, uint64_t count, Wanted wanted) const;
  void export_masters(ChunkId chunk, std::span<std::byte> bounce, Wanted wanted, ValueSink sink);
  void export_frozen_values(ChunkId chunk, Wanted wanted, ValueSink sink);

  StateBlocks& blocks_;
  StepBoundary& boundary_;
  const std::function<void(bool)> about_to_load_;
};

}  // namespace terrace
