// OptimizerPipeline: the update of chunks whose records are on the host or on nvme. It opens a chunk (its
// gradient where that is spilled, its old parameters where they are an input), streams its records block by
// block through the ring, computes in it, and hands the chunk's new parameters on as soon as its last block
// is done. Reads, computation and writes overlap; records that are resident are updated in the pauses. The
// result depends neither on where anything lives nor on the order.
//
// Chunks that are updated on the device (update_side.h) go the same way, but a block is sent there and comes
// back (DeviceLanes) while the processor goes on with others.
//
//   begin()   an engine and an order; no chunk yet
//   allow()   the settings of the update: before this nothing is changed, and states are only read ahead
//   add()     one more chunk may be updated: its gradient is complete
//   advance() does what can be done now, waiting for the disk at most; false: only add() or allow() can help
//   end()     ends everything in flight and throws what went wrong first
//
// Run by one thread at a time, which owns the engine meanwhile and never asks a device for anything unless it
// is the step thread.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/aio/ring_buffer.h>
#include <terrace/base/clock.h>
#include <terrace/base/function_ref.h>
#include <terrace/base/workers.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/homes/gradient_source.h>
#include <terrace/offload/homes/param_home.h>
#include <terrace/offload/homes/record_store.h>
#include <terrace/offload/update/device_lanes.h>
#include <terrace/offload/update/record_stream.h>
#include <terrace/offload/update/tile_update.h>
#include <terrace/offload/update/update_progress.h>

namespace terrace {

// Who runs an update, and how.
struct UpdateRun {
  io::Engine* engine = nullptr;  // null when nothing lives on nvme
  Workers* workers = nullptr;    // for resident records
  // At a time, of resident records; what streams is looked after in between, before the ring has run dry.
  // With other loops beside it the calling thread may have to do them all.
  uint32_t blocks_of_a_worker = 4;
  // Where parameters live on the device they are copied there. Null: they stay where they were made, for
  // whoever owns the device to copy.
  DeviceCache* device = nullptr;
  // Chunks are finished in the order in which they are added, as nearly as streaming allows; else in the
  // order that keeps every path busy.
  bool in_order = false;
};

class OptimizerPipeline {
 public:
  // Of the thread that runs the update: where its time went. What is left is submitting, reaping and handing
  // parameters on.
  struct Times {
    uint64_t read_wait_ns = 0;
    uint64_t write_wait_ns = 0;  // with nothing left to be read
    uint64_t compute_ns = 0;
    uint64_t check_ns = 0;        // checksums of what was read and of what is written
    uint64_t device_wait_ns = 0;  // with nothing left to be done here but what comes back from the device
  };
  struct Totals {
    uint64_t record_read_bytes = 0;
    uint64_t record_write_bytes = 0;
    uint64_t h2d_bytes = 0;  // of what is updated on the device,
    uint64_t d2h_bytes = 0;  // and comes back
    Times times;
  };

  // Where chunks are updated.
  struct Sides {
    std::vector<bool> on_device;   // by ChunkId
    DeviceLanes* lanes = nullptr;  // null: none is updated there
  };

  OptimizerPipeline(const FlatSpace& space, RecordStore& records, GradientSource& gradients, ParamHome& home,
                    TileUpdate& tiles, UpdateProgress& progress, StepWatch& watch, io::RingBuffer& ring,
                    const MemoryPlan& plan, Sides sides);

  void begin(const UpdateRun& run);
  void allow(std::span<const OptimizerStep> steps);
  // Each chunk once, begun in UpdateProgress, where it is completed when its new parameters can be had.
  void add(ChunkId chunk);
  bool advance();
  // Everything that was added is updated and handed on.
  bool idle() const { return turn_ == order_.size() && leaving_.empty(); }
  // What advance() threw, or another reason to stop: end() throws the first of them.
  void fail(std::exception_ptr failure);
  void end();
  // A whole update: begin(), what `body` does with it, and end(). Returns what went wrong first, or null.
  std::exception_ptr run(const UpdateRun& run, FunctionRef<void()> body);

  // Of updates that are over.
  Totals totals() const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  // New parameters on their way out of the memory where they were made.
  struct Leaving {
    ChunkId chunk;
    const Event* gone;
    bool complete_then;  // they can be had when they have arrived, and not before
  };
  // A chunk whose resident records are being updated.
  struct Resident {
    ChunkId chunk;
    uint64_t next_tile = 0;
  };

  void open_ahead();
  bool start_open_next();
  bool is_open(ChunkId chunk) const;
  bool is_done(ChunkId chunk) const { return tiles_left_[index_of(chunk)] == 0; }
  bool is_on_device(ChunkId chunk) const { return sides_.on_device[index_of(chunk)]; }
  bool needs_old(ChunkId chunk) const { return needs_old_ && !is_made_there(chunk); }
  void stream_ahead();
  bool update_something();
  void update_block(RecordStream::Block& block);
  void before_change(ChunkId chunk);
  // The resident chunk whose turn it is, or one for a pause.
  std::optional<ChunkId> resident_in_turn() const;
  std::optional<ChunkId> resident_for_pause();
  void update_resident(ChunkId chunk);
  void update_resident_tiles(uint64_t tile_count);
  void tiles_done(ChunkId chunk, uint64_t count);
  void hand_on(ChunkId chunk);
  void forget_left();

  // --- What is updated on the device: see optimizer_pipeline_device.cpp ---
  // Its new parameters are made where they live, of the old ones.
  bool is_made_there(ChunkId chunk) const {
    return is_on_device(chunk) && run_.device != nullptr && home_.placement() == Placement::none;
  }
  void send_to_device();
  bool send_block();
  bool send_resident(bool may_wait);
  std::optional<ChunkId> resident_for_device(bool may_wait);
  void send_run(ChunkId chunk, uint64_t first_tile, uint64_t tile_count, std::byte* records,
                RecordStream::Block* block);
  void take_back();
  void end_sending();

  bool wait_for_something(std::optional<ChunkId> opening);
  std::optional<ChunkId> opening_old() const;
  void wait_for_io();
  WaitSubject io_subject() const;

  const FlatSpace& space_;
  RecordStore& records_;
  GradientSource& gradients_;
  ParamHome& home_;
  TileUpdate& tiles_;
  UpdateProgress& progress_;
  StepWatch& watch_;
  RecordStream stream_;
  const uint64_t tile_bytes_;
  const uint64_t block_tiles_;
  const bool needs_old_;  // parameters of before the update: records hold only what is below them
  const Sides sides_;
  const SteadyClock clock_;

  UpdateRun run_;
  bool allowed_ = false;
  std::vector<ChunkId> order_;        // as they were added
  std::vector<uint64_t> tiles_left_;  // by ChunkId
  std::vector<uint32_t> position_;    // by ChunkId, in order_; or kNone
  size_t turn_ = 0;                   // of order_: those before are done
  size_t opened_ = 0;                 // the first that is not opened,
  size_t opened_gradients_ = 0;       // and whose gradient is not
  size_t streamed_ = 0;               // the first that has not been given to the stream
  std::optional<Resident> resident_;
  std::optional<Resident> sending_;   // the same, to the device
  std::vector<uint64_t> tiles_sent_;  // by ChunkId, of those that are updated there
  std::vector<Leaving> leaving_;
  std::exception_ptr failure_;
  Times times_;
};

}  // namespace terrace
