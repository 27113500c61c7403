// OptimizerPipeline: the update. Streams the records that live in the tier file block by block through the
// ring (read block, update in place, write the same memory back) and updates the resident ones in the pauses;
// hands each chunk's new parameters to their home as soon as its last block is done. One thread submits,
// computes and reaps. The result does not depend on where anything lives.
#pragma once

#include <array>
#include <exception>
#include <optional>
#include <span>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/aio/ring_buffer.h>
#include <terrace/base/clock.h>
#include <terrace/base/workers.h>
#include <terrace/offload/device_cache.h>
#include <terrace/offload/gradient_store.h>
#include <terrace/offload/param_home.h>
#include <terrace/offload/read_order.h>
#include <terrace/offload/record_store.h>
#include <terrace/optimizer_cpu/optimizer.h>

namespace terrace {

class OptimizerPipeline {
 public:
  // `engine` is null when nothing lives on nvme. The ring's slots hold RecordLayout::block_tiles() tiles or
  // one chunk's records, whichever is less.
  OptimizerPipeline(const FlatSpace& space, RecordStore& records, GradientStore& gradients, ParamHome& home,
                    DeviceCache& cache, Device& device, Workers& workers, InstructionSet instruction_set,
                    io::Engine* engine, io::RingBuffer& ring, const MemoryPlan& plan);

  // Which records are resident has changed.
  void residence_changed();
  // Updates every trainable chunk. `steps` holds the constants of each parameter group. Gradients are
  // complete and where GradientStore says; device copies of parameters that have a home elsewhere are gone.
  // Throws the first failure after everything in flight has ended.
  void run(std::span<const OptimizerStep> steps);

  uint64_t record_read_bytes() const { return record_read_bytes_; }
  uint64_t record_write_bytes() const { return record_write_bytes_; }
  uint64_t d2h_bytes() const { return d2h_bytes_; }
  // Of the thread that runs the update: where its time went. What is left is submitting, reaping and handing
  // parameters on.
  struct Times {
    uint64_t read_wait_ns = 0;
    uint64_t write_wait_ns = 0;  // with nothing left to be read
    uint64_t compute_ns = 0;
    uint64_t check_ns = 0;  // checksums of what was read and of what is written
  };
  const Times& times() const { return times_; }

 private:
  enum class Phase : uint8_t { idle, reading, ready, writing };
  struct Block {
    OptimizerPipeline* pipeline = nullptr;
    std::span<std::byte> slot;  // of the ring
    ChunkId chunk{};
    uint64_t first_tile = 0;
    uint64_t tile_count = 0;
    uint64_t number = 0;  // of its read in this update
    Phase phase = Phase::idle;
    io::Request request{};  // what was submitted last
    BlockStore::Write write{};
  };
  static void on_read(void* context, const io::Completion& completion) noexcept;
  static void on_written(void* context, const io::Completion& completion) noexcept;
  void submit_write(Block& block);
  uint32_t number_of(const Block& block) const {
    return static_cast<uint32_t>(block.first_tile / block_tiles_);
  }

  void run_streamed();
  void start_reads();
  // A block that may be updated now, or null.
  Block* take_ready();
  void finish_block(Block& block);
  void update_resident(ChunkId chunk);
  void update_on_device(ChunkId chunk);
  // Whether its gradient is of its parameters' type, which may then take its place.
  bool over_gradient(ChunkId chunk) const;
  // Whether its new parameters leave through a landing slot.
  bool needs_landing(ChunkId chunk) const;
  // Where the chunk's new parameters are written on the host: in their home, else over its gradient, else
  // into landing slot `lane`.
  std::byte* output(ChunkId chunk, uint32_t lane);
  // Landing slot `lane`, after whatever leaves it has left.
  std::byte* landing(uint32_t lane);
  void publish(ChunkId chunk, uint32_t lane);
  // Compact state: waits until the chunk's parameters of before the update can be read.
  void open_old(ChunkId chunk);
  const std::byte* old_parameters(ChunkId chunk, const std::byte* parameters) const;
  void update_tiles(ChunkId chunk, uint64_t first_tile, uint64_t tile_count, std::byte* tiles,
                    std::byte* parameters);
  WaitSubject io_subject();
  void wait_for_io();
  bool is_reading() const;
  void note_failure(std::exception_ptr failure);

  const FlatSpace& space_;
  RecordStore& records_;
  GradientStore& gradients_;
  ParamHome& home_;
  DeviceCache& cache_;
  Device& device_;
  Workers& workers_;
  InstructionSet instruction_set_;
  io::Engine* engine_;
  io::RingBuffer& ring_;
  const RecordLayout layout_;
  uint64_t block_tiles_;
  std::span<const OptimizerStep> steps_;

  std::vector<ChunkId> streamed_;
  std::vector<ChunkId> resident_;
  const SteadyClock clock_;
  ReadOrder order_;                    // of streamed_
  std::vector<uint32_t> blocks_left_;  // by ChunkId, of a streamed chunk in this update
  bool one_at_a_time_ = false;         // of the chunks that stream
  size_t open_chunk_ = 0;              // the first of streamed_ with blocks left
  std::vector<Block> blocks_;          // one per ring slot
  std::vector<Block*> ready_;          // were read, in the order in which they arrived
  uint64_t reads_started_ = 0;
  bool has_turn_ = true;  // the last block that was to be read might be
  size_t next_resident_ = 0;
  // Per landing slot: the chunk whose parameters may still be on their way out of it.
  std::array<std::optional<ChunkId>, 2> leaving_;
  std::exception_ptr failure_;
  uint64_t record_read_bytes_ = 0;
  uint64_t record_write_bytes_ = 0;
  uint64_t d2h_bytes_ = 0;
  Times times_;
};

}  // namespace terrace
