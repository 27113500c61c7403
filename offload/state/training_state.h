// TrainingState: the state of a training in and out of an Offloader, independent of placement and chunk size.
// Everything is streamed. Between steps only, on the thread that trains.
//
// Whatever reads the state needs a whole one (Offloader::has_whole_state) and throws Error(cancelled)
// otherwise; it waits for a pending update first. What fails while it loads leaves no whole state.
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
  // Made by the Offloader. `about_to_load` is called before the first byte changes.
  TrainingState(StateBlocks& blocks, StepBoundary& boundary, std::function<void()> about_to_load);

  // Sets every parameter: `values` fills a run of elements of a tensor with fp32 values; it is called on all
  // workers at once. Moments start at 0.
  void initialise(FunctionRef<void(TensorId tensor, uint64_t first_element, std::span<float> values)> values);

  // Records of the trainable sections as one run of tiles in flat order, a block of tiles at a time.
  uint64_t record_tile_count() const;
  void export_records(FunctionRef<void(std::span<const std::byte> tiles)> sink);
  // Takes records in the same order (the source fills each run) and derives the parameters from them.
  void import_records(FunctionRef<void(std::span<std::byte> tiles)> source);
  // Parameters of frozen sections in their own precision, in flat order.
  uint64_t frozen_bytes() const;
  void export_frozen(FunctionRef<void(std::span<const std::byte> parameters)> sink);
  void import_frozen(FunctionRef<void(std::span<std::byte> parameters)> source);
  // The values of tensors as fp32: master weights, and parameters of frozen tensors. In flat order, each
  // wanted tensor from its first element to its last in runs of at most kTileElements. What holds wanted
  // tensors is read once, the rest is not.
  using Wanted = FunctionRef<bool(TensorId)>;
  using ValueSink = FunctionRef<void(TensorId tensor, uint64_t first_element, std::span<const float> values)>;
  void export_values(Wanted wanted, ValueSink sink);
  // One tensor's parameters, in its own precision. Throws Error(misuse) where `destination` has no room.
  void read_parameter(TensorId tensor, std::span<std::byte> destination);

 private:
  // Of one chunk, a run of tiles at a time: makes the records and the parameters of the same elements.
  using FillTiles =
      FunctionRef<void(ChunkId, uint64_t first_tile, std::span<std::byte> tiles, std::byte* parameters)>;
  void begin_loading(std::string_view action);
  void load_records(FillTiles fill);
  void load_frozen(FunctionRef<void(ChunkId, std::span<std::byte> parameters)> fill);
  bool is_wanted(ChunkId chunk, uint64_t first_element, uint64_t count, Wanted wanted) const;
  void export_masters(ChunkId chunk, std::span<std::byte> bounce, Wanted wanted, ValueSink sink);
  void export_frozen_values(ChunkId chunk, Wanted wanted, ValueSink sink);

  StateBlocks& blocks_;
  StepBoundary& boundary_;
  const std::function<void()> about_to_load_;
};

}  // namespace terrace
