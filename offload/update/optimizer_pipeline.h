// OptimizerPipeline: updates chunks whose records are on the host or on nvme. It opens a chunk (its gradient
// if that is spilled, its old parameters if they are an input), streams its records block by block through
// the ring, computes in the ring, and hands on the chunk's new parameters as soon as its last block is done.
// Reads, computation and writes overlap; resident records are updated in the pauses. The result depends
// neither on places nor on the order.
//
// Chunks that are updated on the device (update_side.h) go the same way, but their blocks are sent there and
// come back (DeviceLanes) while the processor goes on with other blocks.
//
//   begin()    starts an update with an engine and an order, and no chunk yet
//   allow()    gives the settings of the update; before, nothing is changed, and states are only read ahead
//   add()      adds a chunk whose gradient is complete
//   advance()  does the work that can be done now, or waits for work in flight; returns false
//              if only add() or allow() can help
//   end()      ends everything in flight and throws the first failure
//
// One thread at a time runs it and owns the engine meanwhile. Only the step thread may make it use a device.
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
#include <terrace/offload/landing/gradient_source.h>
#include <terrace/offload/parameters/param_home.h>
#include <terrace/offload/records/record_store.h>
#include <terrace/offload/update/device_lanes.h>
#include <terrace/offload/update/record_stream.h>
#include <terrace/offload/update/tile_update.h>
#include <terrace/offload/update/update_progress.h>

namespace terrace {

// UpdateRun: the means and the order of one update.
struct UpdateRun {
  io::Engine* engine = nullptr;  // null when nothing lives on nvme
  Workers* workers = nullptr;    // threads for resident records
  // The blocks of resident records that each worker updates at a time; in between the pipeline tends the
  // stream, before the ring runs dry. With other loops beside it the calling thread may have to update all of
  // these blocks.
  uint32_t blocks_of_a_worker = 4;
  // Where parameters live on the device, they are copied to this cache. Null: they stay where they were made,
  // and the owner of the device copies them.
  DeviceCache* device = nullptr;
  // True: only a look at matrices (TileUpdate::look). Nothing is changed, handed on or completed.
  bool looks = false;
  // True: chunks are finished in the order of add(), as nearly as streaming allows. False: the order keeps
  // every path busy.
  bool in_order = false;
};

class OptimizerPipeline {
 public:
  // Times: where the time of the thread that runs the update went. The rest is submitting, reaping and
  // handing parameters on.
  struct Times {
    uint64_t read_wait_ns = 0;
    uint64_t write_wait_ns = 0;  // while nothing is being read
    uint64_t compute_ns = 0;
    uint64_t check_ns = 0;        // checksums of blocks read and of blocks to write
    uint64_t device_wait_ns = 0;  // nothing left to do but wait for the device
  };
  struct Totals {
    uint64_t record_read_bytes = 0;
    uint64_t record_write_bytes = 0;
    uint64_t h2d_bytes = 0;  // copied for chunks that the device updates
    uint64_t d2h_bytes = 0;  // copied back from there
    Times times;
  };

  // Sides: where chunks are updated.
  struct Sides {
    std::vector<bool> on_device;   // by ChunkId: true if the device updates the chunk
    DeviceLanes* lanes = nullptr;  // null: none is updated there
  };

  // Homes: where an update reads and leaves the state.
  struct Homes {
    RecordStore& records;
    GradientSource& gradients;
    ParamHome& params;
  };

  OptimizerPipeline(const ChunkShards& shards, const Homes& homes, TileUpdate& tiles,
                    UpdateProgress& progress, StepWatch& watch, io::RingBuffer& ring, const MemoryPlan& plan,
                    Sides sides);

  void begin(const UpdateRun& run);
  void allow(const UpdateConstants& constants);
  // Adds a chunk, each once, that was begun in UpdateProgress. It is completed there when its new parameters
  // are available.
  void add(ChunkId chunk);
  bool advance();
  // True if every chunk that was added is updated and handed on.
  bool idle() const { return turn_ == order_.size() && leaving_.empty(); }
  // Notes an exception of advance(), or another reason to stop; end() throws the first one.
  void fail(std::exception_ptr failure);
  void end();
  // Runs a whole update: begin(), `body` and end(). Returns the first failure, or null.
  std::exception_ptr run(const UpdateRun& run, FunctionRef<void()> body);

  // The totals of finished updates.
  Totals totals() const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  // New parameters on their way out of the memory where they were made.
  struct Leaving {
    ChunkId chunk;
    const Event* gone;
    bool complete_then;  // they are available only when they have arrived
  };
  // A chunk whose resident records are being updated.
  struct Resident {
    ChunkId chunk;
    uint64_t next_tile = 0;
  };

  void open_ahead();
  bool start_open_next();
  bool is_open(ChunkId chunk) const;
  bool is_done(ChunkId chunk) const { return handed_on_[index_of(chunk)]; }
  bool is_on_device(ChunkId chunk) const {
    return sides_.on_device[index_of(chunk)] && shards_.elements(chunk) > 0;
  }
  bool needs_old(ChunkId chunk) const { return needs_old_ && !run_.looks && !is_made_there(chunk); }
  void stream_ahead();
  bool update_something();
  void update_block(RecordStream::Block& block);
  void before_change(ChunkId chunk);
  // The resident chunk whose turn it is; resident_for_pause() gives one for a pause.
  std::optional<ChunkId> resident_in_turn() const;
  std::optional<ChunkId> resident_for_pause();
  void update_resident(ChunkId chunk);
  void update_resident_tiles(uint64_t tile_count);
  void compute(ChunkId chunk, uint64_t first_tile, uint64_t tile_count, std::byte* records) const;
  void tiles_done(ChunkId chunk, uint64_t count);
  void hand_on(ChunkId chunk);
  void forget_left();

  // --- Chunks that the device updates: see optimizer_pipeline_device.cpp ---
  // True if the chunk's new parameters are made from the old ones in device memory, where they live.
  bool is_made_there(ChunkId chunk) const {
    return is_on_device(chunk) && run_.device != nullptr && home_.placement() == Placement::none;
  }
  // True if it is in a slot that operations use too.
  bool is_made_in_slot(ChunkId chunk) const {
    return is_made_there(chunk) && home_.device_shares() == nullptr;
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

  const ChunkShards& shards_;
  RecordStore& records_;
  GradientSource& gradients_;
  ParamHome& home_;
  TileUpdate& tiles_;
  UpdateProgress& progress_;
  StepWatch& watch_;
  RecordStream stream_;
  const uint64_t tile_bytes_;
  const uint64_t block_tiles_;
  const bool needs_old_;  // compact records: the old parameters are an input
  const Sides sides_;
  const SteadyClock clock_;

  UpdateRun run_;
  bool allowed_ = false;
  std::vector<ChunkId> order_;        // chunks in the order of add()
  std::vector<uint64_t> tiles_left_;  // by ChunkId, as the next
  std::vector<bool> handed_on_;       // in this update; of a chunk without own tiles too
  std::vector<uint32_t> position_;    // by ChunkId, in order_; or kNone
  size_t turn_ = 0;                   // in order_: all chunks before it are done
  size_t opened_ = 0;                 // in order_: the first chunk that is not opened
  size_t opened_gradients_ = 0;       // in order_: the first chunk whose gradient is not opened
  size_t streamed_ = 0;               // in order_: the first chunk not yet given to the stream
  std::optional<Resident> resident_;
  std::optional<Resident> sending_;   // the resident chunk that is being sent to the device
  std::vector<uint64_t> tiles_sent_;  // by ChunkId, for chunks that the device updates
  std::vector<Leaving> leaving_;
  std::exception_ptr failure_;
  Times times_;
};

}  // namespace terrace
