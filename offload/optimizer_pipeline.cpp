#include <terrace/offload/optimizer_pipeline.h>

#include <fmt/format.h>

#include <algorithm>

#include <terrace/base/assert.h>
#include <terrace/base/clock.h>
#include <terrace/memory/block_store.h>

namespace terrace {
namespace {

constexpr uint32_t kStreamedLane =
    0;  // landing slots: one for the chunk that streams, one for the resident one
constexpr uint32_t kResidentLane = 1;

// The trainable chunks whose records are streamed, or are not.
std::vector<ChunkId> chunks_of(const FlatSpace& space, const RecordStore& records, bool streamed) {
  std::vector<ChunkId> chunks;
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    if (space.section_of(ChunkId{c}).trainable && records.is_streamed(ChunkId{c}) == streamed)
      chunks.push_back(ChunkId{c});
  }
  return chunks;
}

// Adds the time of a scope.
class AddedTime {
 public:
  AddedTime(const Clock& clock, uint64_t& ns) : clock_(clock), ns_(ns), begun_ns_(clock.now_ns()) {}
  ~AddedTime() { ns_ += clock_.now_ns() - begun_ns_; }
  AddedTime(const AddedTime&) = delete;
  AddedTime& operator=(const AddedTime&) = delete;

 private:
  const Clock& clock_;
  uint64_t& ns_;
  uint64_t begun_ns_;
};

}  // namespace

OptimizerPipeline::OptimizerPipeline(const FlatSpace& space, RecordStore& records, GradientStore& gradients,
                                     ParamHome& home, DeviceCache& cache, Device& device, Workers& workers,
                                     InstructionSet instruction_set, io::Engine* engine, io::RingBuffer& ring,
                                     const MemoryPlan& plan)
    : space_(space),
      records_(records),
      gradients_(gradients),
      home_(home),
      cache_(cache),
      device_(device),
      workers_(workers),
      instruction_set_(instruction_set),
      engine_(engine),
      ring_(ring),
      layout_(plan.record_layout),
      block_tiles_(plan.ring_slot_bytes / layout_.tile_bytes()),
      streamed_(chunks_of(space, records, true)),
      resident_(chunks_of(space, records, false)),
      order_(records.store(), streamed_),
      blocks_left_(space.chunk_count()),
      blocks_(ring.slot_count()) {
  for (Block& block : blocks_) block.pipeline = this;
  ready_.reserve(blocks_.size());
}

void OptimizerPipeline::residence_changed() {
  streamed_ = chunks_of(space_, records_, true);
  resident_ = chunks_of(space_, records_, false);
  order_ = ReadOrder(records_.store(), streamed_);
}

void OptimizerPipeline::run(std::span<const OptimizerStep> steps) {
  steps_ = steps;
  failure_ = nullptr;
  next_resident_ = 0;
  leaving_ = {};
  try {
    if (!streamed_.empty()) run_streamed();
    while (next_resident_ < resident_.size()) update_resident(resident_[next_resident_++]);
  } catch (...) {
    note_failure(std::current_exception());
  }
  records_.give_back_turn();
  if (engine_ != nullptr) {
    while (engine_->in_flight() > 0) wait_for_io();
  }
  for (Block& block : blocks_) {
    if (!block.slot.empty()) ring_.release(block.slot);
    block.slot = {};
    block.phase = Phase::idle;
  }
  try {
    home_.finish_publishing(engine_, cache_);
  } catch (...) {
    note_failure(std::current_exception());
  }
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

// Blocks are updated as they arrive. Where parameters leave through a landing slot, there is room for those
// of one chunk only, and blocks of later chunks wait. While another process has its turn on the drives,
// everything else goes on, and only then is the next turn waited for.
void OptimizerPipeline::run_streamed() {
  one_at_a_time_ = layout_.master == MasterForm::remainder ||
                   std::ranges::any_of(streamed_, [this](ChunkId chunk) { return needs_landing(chunk); });
  order_.begin(one_at_a_time_);
  reads_started_ = 0;
  has_turn_ = true;
  open_chunk_ = 0;
  ready_.clear();
  for (const ChunkId chunk : streamed_) blocks_left_[index_of(chunk)] = records_.store()->block_count(chunk);
  while (open_chunk_ < streamed_.size()) {
    start_reads();
    engine_->poll();
    if (failure_ != nullptr) return;
    if (Block* block = take_ready()) {
      finish_block(*block);
    } else if (next_resident_ < resident_.size() && records_.may_change(resident_[next_resident_])) {
      update_resident(resident_[next_resident_++]);
    } else if (engine_->in_flight() > 0) {
      wait_for_io();
    } else if (!has_turn_) {
      records_.wait_for_turn();
    }  // else poll() has made room for reads
  }
}

OptimizerPipeline::Block* OptimizerPipeline::take_ready() {
  const auto found = std::ranges::find_if(ready_, [this](const Block* block) {
    return !one_at_a_time_ || block->chunk == streamed_[open_chunk_];
  });
  if (found == ready_.end()) return nullptr;
  Block* const block = *found;
  ready_.erase(found);
  return block;
}

void OptimizerPipeline::start_reads() {
  while (!order_.empty()) {
    const std::span<std::byte> slot = ring_.acquire();
    if (slot.empty()) return;
    has_turn_ = records_.may_read();
    if (!has_turn_) return ring_.release(slot);
    const auto [chunk, number] = order_.take();
    Block& block = blocks_[static_cast<size_t>((slot.data() - ring_.memory().data()) /
                                               static_cast<ptrdiff_t>(ring_.slot_bytes()))];
    block.slot = slot;
    block.chunk = chunk;
    block.first_tile = number * block_tiles_;
    block.tile_count = std::min(block_tiles_, space_.chunk(chunk).tile_count() - block.first_tile);
    block.number = reads_started_++;
    block.phase = Phase::reading;
    const uint64_t bytes = block.tile_count * layout_.tile_bytes();
    block.request = records_.store()->read_request(chunk, number, slot.first(bytes));
    block.request.on_complete = &OptimizerPipeline::on_read;
    block.request.context = &block;
    record_read_bytes_ += bytes;
    engine_->submit({&block.request, 1});
  }
  records_.give_back_turn();
}

void OptimizerPipeline::on_read(void* context, const io::Completion& completion) noexcept {
  Block& block = *static_cast<Block*>(context);
  OptimizerPipeline& pipeline = *block.pipeline;
  try {
    pipeline.records_.store()->end_transfer(block.request, completion);
  } catch (...) {
    pipeline.note_failure(std::current_exception());
  }
  block.phase = Phase::ready;
  pipeline.ready_.push_back(&block);  // within its capacity
}

void OptimizerPipeline::on_written(void* context, const io::Completion& completion) noexcept {
  Block& block = *static_cast<Block*>(context);
  OptimizerPipeline& pipeline = *block.pipeline;
  BlockStore& store = *pipeline.records_.store();
  const BlockStore::WriteEnd end = store.end_write(block.write, completion);
  if (end == BlockStore::WriteEnd::again) return pipeline.submit_write(block);
  if (end == BlockStore::WriteEnd::failed)
    pipeline.note_failure(std::make_exception_ptr(store.io_error(block.write.request, completion)));
  pipeline.ring_.release(block.slot);
  block.slot = {};
  block.phase = Phase::idle;
}

void OptimizerPipeline::submit_write(Block& block) {
  block.request = block.write.request;
  block.request.priority = io::Priority::background;  // the update waits for reads
  block.request.on_complete = &OptimizerPipeline::on_written;
  block.request.context = &block;
  engine_->submit({&block.request, 1});
}

void OptimizerPipeline::finish_block(Block& block) {
  const uint64_t bytes = block.tile_count * layout_.tile_bytes();
  {
    const AddedTime checking(clock_, times_.check_ns);
    records_.store()->verify(block.chunk, number_of(block), block.request);
  }
  open_old(block.chunk);
  std::byte* parameters = output(block.chunk, kStreamedLane);
  {
    const AddedTime computing(clock_, times_.compute_ns);
    update_tiles(block.chunk, block.first_tile, block.tile_count, block.slot.data(), parameters);
  }
  const auto begin_write = [&] {
    const AddedTime checking(clock_, times_.check_ns);
    return records_.begin_write(block.chunk, number_of(block), block.slot.first(bytes), block.write);
  };
  while (!begin_write()) wait_for_io();
  block.phase = Phase::writing;
  record_write_bytes_ += bytes;
  const ChunkId chunk = block.chunk;
  submit_write(block);
  if (--blocks_left_[index_of(chunk)] > 0) return;
  if (layout_.master == MasterForm::remainder) home_.release_old(chunk);
  publish(chunk, kStreamedLane);
  while (open_chunk_ < streamed_.size() && blocks_left_[index_of(streamed_[open_chunk_])] == 0) ++open_chunk_;
}

void OptimizerPipeline::update_resident(ChunkId chunk) {
  if (records_.placement() == Placement::none) return update_on_device(chunk);
  records_.before_change(chunk);
  open_old(chunk);
  std::byte* parameters = output(chunk, kResidentLane);
  const uint64_t tiles = space_.chunk(chunk).tile_count();
  {
    const AddedTime computing(clock_, times_.compute_ns);
    workers_.parallel_for(divide_up(tiles, block_tiles_), [&](size_t task) {
      const uint64_t first = task * block_tiles_;
      const uint64_t count = std::min(block_tiles_, tiles - first);
      update_tiles(chunk, first, count, records_.resident(chunk) + first * layout_.tile_bytes(), parameters);
    });
  }
  if (layout_.master == MasterForm::remainder) home_.release_old(chunk);
  publish(chunk, kResidentLane);
}

// One chunk that streams and one that is resident are open at a time.
void OptimizerPipeline::open_old(ChunkId chunk) {
  if (layout_.master == MasterForm::whole) return;
  const bool opened = home_.start_open_old(chunk, engine_, cache_);
  TERRACE_ASSERT(opened, "the plan has a slot for the old parameters of every chunk that is open");
  home_.wait_open_old(chunk, engine_);
}

// States, gradients and the fresh parameters are all in device memory; parameters with another home leave
// from there.
void OptimizerPipeline::update_on_device(ChunkId chunk) {
  const bool stays = home_.placement() == Placement::none;
  if (!stays) {
    const Schedule unknown;
    CacheSlot* slot = cache_.take_slot(EvictionContext{unknown, kNever});
    TERRACE_ASSERT(slot != nullptr, "the plan keeps a device slot for parameters on their way out");
    cache_.begin_in_place(chunk, *slot);
  }
  cache_.pin_param(chunk);
  cache_.attach_param(chunk);
  records_.open(chunk);
  gradients_.open(chunk);
  const uint64_t tiles = space_.chunk(chunk).tile_count();
  workers_.parallel_for(divide_up(tiles, block_tiles_), [&](size_t task) {
    const uint64_t first = task * block_tiles_;
    const uint64_t count = std::min(block_tiles_, tiles - first);
    update_tiles(chunk, first, count, records_.resident(chunk) + first * layout_.tile_bytes(),
                 cache_.param_address(chunk));
  });
  gradients_.close(chunk);
  records_.close(chunk);
  cache_.unpin_param(chunk);
  gradients_.release(chunk);
  if (stays) return;
  std::byte* const home = home_.host_slot(chunk);
  std::byte* const buffer = home != nullptr ? home : landing(kResidentLane);
  cache_.detach_param(chunk);
  CacheSlot& slot = cache_.param_slot(chunk);
  slot.out.begin();
  device_.copy_to_host(buffer, slot.id, 0, home_.param_bytes(chunk), nullptr, slot.out);
  d2h_bytes_ += home_.param_bytes(chunk);
  wait_watched(slot.out, cache_.watch(), {"fresh parameters", "device -> host", chunk, nullptr, {}});
  home_.publish(chunk, buffer, engine_, cache_);
  if (home == nullptr) leaving_[kResidentLane] = chunk;
  // What is updated first is needed first by the next forward: it may stay as long as the next one has room.
  if (cache_.unused_slot_count() == 0) cache_.drop_param(chunk);
}

std::byte* OptimizerPipeline::landing(uint32_t lane) {
  if (leaving_[lane]) home_.wait_published(*leaving_[lane], engine_, cache_);
  leaving_[lane].reset();
  return gradients_.landing_slot(lane);
}

bool OptimizerPipeline::over_gradient(ChunkId chunk) const {
  return gradients_.type(chunk) == space_.section_of(chunk).type;
}

bool OptimizerPipeline::needs_landing(ChunkId chunk) const {
  return home_.host_slot(chunk) == nullptr && !over_gradient(chunk);
}

std::byte* OptimizerPipeline::output(ChunkId chunk, uint32_t lane) {
  if (std::byte* slot = home_.host_slot(chunk)) return slot;
  return over_gradient(chunk) ? gradients_.gradient(chunk) : landing(lane);
}

void OptimizerPipeline::publish(ChunkId chunk, uint32_t lane) {
  home_.publish(chunk, output(chunk, lane), engine_, cache_);
  if (needs_landing(chunk)) leaving_[lane] = chunk;
}

void OptimizerPipeline::update_tiles(ChunkId chunk, uint64_t first_tile, uint64_t tile_count,
                                     std::byte* tiles, std::byte* parameters) {
  const uint64_t begin = first_tile * kTileElements;
  const uint64_t end = begin + tile_count * kTileElements;
  TileRun arguments;
  arguments.layout = layout_;
  arguments.record = tiles;
  arguments.gradient_type = gradients_.type(chunk);
  arguments.gradients = gradients_.gradient(chunk) + begin * bytes_of(arguments.gradient_type);
  arguments.parameter_type = space_.section_of(chunk).type;
  arguments.parameters = parameters + begin * bytes_of(arguments.parameter_type);
  if (layout_.master == MasterForm::remainder)
    arguments.old_parameters = old_parameters(chunk, parameters) + begin * sizeof(Bf16);
  for (const Segment& segment : space_.segments_of(chunk)) {
    const uint64_t first = std::max(begin, segment.first_element);
    const uint64_t last = std::min(end, segment.first_element + segment.elements);
    if (first >= last) continue;
    arguments.first_element = first - begin;
    arguments.element_count = last - first;
    terrace::update_tiles(instruction_set_, steps_[segment.group], arguments);
  }
}

// On the device, where there is nothing else, they are written over in place.
const std::byte* OptimizerPipeline::old_parameters(ChunkId chunk, const std::byte* parameters) const {
  return records_.placement() == Placement::none ? parameters : home_.old_parameters(chunk);
}

// The oldest read, else any write.
WaitSubject OptimizerPipeline::io_subject() {
  const Block* oldest = nullptr;
  for (const Block& block : blocks_) {
    if (block.phase == Phase::reading && (oldest == nullptr || block.number < oldest->number))
      oldest = &block;
  }
  if (oldest != nullptr)
    return {"optimizer states", "nvme -> host", oldest->chunk, &oldest->request,
            records_.store()->path_of(oldest->request)};
  for (const Block& block : blocks_) {
    if (block.phase == Phase::writing)
      return {"optimizer states", "host -> nvme", block.chunk, &block.request,
              records_.store()->path_of(block.request)};
  }
  return home_.publication_subject();
}

bool OptimizerPipeline::is_reading() const {
  return std::ranges::any_of(blocks_, [](const Block& block) { return block.phase == Phase::reading; });
}

void OptimizerPipeline::wait_for_io() {
  const AddedTime waiting(clock_, is_reading() ? times_.read_wait_ns : times_.write_wait_ns);
  wait_watched(*engine_, cache_.watch(), io_subject());
}

void OptimizerPipeline::note_failure(std::exception_ptr failure) {
  if (failure_ == nullptr) failure_ = std::move(failure);
}

}  // namespace terrace
