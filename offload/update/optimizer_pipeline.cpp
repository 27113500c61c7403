#include <terrace/offload/update/optimizer_pipeline.h>

#include <algorithm>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/offload/watch/recorded_update.h>

namespace terrace {
namespace {

// AddedTime adds the time of its scope.
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

OptimizerPipeline::OptimizerPipeline(const ChunkShards& shards, const Homes& homes, TileUpdate& tiles,
                                     UpdateProgress& progress, StepWatch& watch, io::RingBuffer& ring,
                                     const MemoryPlan& plan, Sides sides)
    : shards_(shards),
      records_(homes.records),
      gradients_(homes.gradients),
      home_(homes.params),
      tiles_(tiles),
      progress_(progress),
      watch_(watch),
      stream_(shards, homes.records, ring, plan, progress, watch.events()),
      tile_bytes_(plan.record_layout.tile_bytes()),
      block_tiles_(plan.ring_slot_bytes / tile_bytes_),
      needs_old_(plan.record_layout.master == MasterForm::remainder),
      sides_(std::move(sides)),
      tiles_left_(shards.space().chunk_count()),
      handed_on_(shards.space().chunk_count()),
      position_(shards.space().chunk_count(), kNone),
      tiles_sent_(shards.space().chunk_count()) {
  order_.reserve(shards.space().chunk_count());
  leaving_.reserve(std::min(shards.space().chunk_count(), 64u));  // more chunks are seldom on their way
}

void OptimizerPipeline::begin(const UpdateRun& run) {
  TERRACE_ASSERT(order_.empty() && leaving_.empty(), "one update at a time");
  TERRACE_ASSERT(run.workers != nullptr, "whoever runs an update has workers");
  run_ = run;
  allowed_ = false;
  turn_ = opened_ = opened_gradients_ = streamed_ = 0;
  failure_ = nullptr;
  stream_.begin(run.engine, run.in_order);
  if (sides_.lanes != nullptr) sides_.lanes->wake(run.engine);
}

void OptimizerPipeline::allow(const UpdateConstants& constants) {
  tiles_.begin(constants);
  allowed_ = true;
}

void OptimizerPipeline::add(ChunkId chunk) {
  TERRACE_ASSERT(position_[index_of(chunk)] == kNone, "a chunk is updated once in an update");
  position_[index_of(chunk)] = static_cast<uint32_t>(order_.size());
  tiles_left_[index_of(chunk)] = shards_.own(chunk).tile_count;
  handed_on_[index_of(chunk)] = false;
  tiles_sent_[index_of(chunk)] = 0;
  order_.push_back(chunk);
}

bool OptimizerPipeline::advance() {
  if (run_.engine != nullptr) run_.engine->poll();
  if (stream_.failure() != nullptr) std::rethrow_exception(stream_.failure());
  if (sides_.lanes != nullptr) take_back();
  forget_left();  // before opening, because chunks that have left make room
  allowed_ ? open_ahead() : stream_ahead();
  stream_.start_reads();
  if (sides_.lanes != nullptr && allowed_) send_to_device();
  // The chunk is looked up before the update: old parameters that arrive meanwhile are no reason to stop.
  const std::optional<ChunkId> opening = opening_old();
  if (allowed_ && update_something()) return true;
  return wait_for_something(opening);
}

// --- Opening ---

// Opens chunks in their order, as far as there is room for what must be read of them.
void OptimizerPipeline::open_ahead() {
  for (; opened_ < order_.size() && start_open_next(); ++opened_) {
    if (opened_ < streamed_) continue;
    if (records_.is_streamed(order_[opened_])) stream_.add(order_[opened_]);
    streamed_ = opened_ + 1;
  }
}

bool OptimizerPipeline::start_open_next() {
  const ChunkId chunk = order_[opened_];
  if (opened_gradients_ == opened_) {
    const bool opened =
        gradients_.is_held(chunk) ? gradients_.is_open(chunk) : gradients_.start_open(chunk, *run_.engine);
    if (!opened) return false;
    ++opened_gradients_;
  }
  return !needs_old(chunk) || home_.old().start_open(chunk, run_.engine, run_.device);
}

bool OptimizerPipeline::is_open(ChunkId chunk) const {
  return position_[index_of(chunk)] < opened_ && gradients_.is_open(chunk) &&
         (!needs_old(chunk) || home_.old().is_open(chunk));
}

// Reads only records while nothing may be changed, and no more chunks than the ring has begun to hold.
void OptimizerPipeline::stream_ahead() {
  for (; stream_.all_started() && streamed_ < order_.size(); ++streamed_) {
    if (records_.is_streamed(order_[streamed_])) stream_.add(order_[streamed_]);
  }
}

// --- Updating ---

bool OptimizerPipeline::update_something() {
  if (const std::optional<ChunkId> chunk = resident_in_turn()) {
    update_resident(resident_ ? resident_->chunk : *chunk);
    return true;
  }
  const auto is_next = [this](ChunkId chunk) { return is_open(chunk) && !is_on_device(chunk); };
  if (RecordStream::Block* block = stream_.take_ready(is_next)) {
    update_block(*block);
    return true;
  }
  const std::optional<ChunkId> chunk = resident_ ? resident_->chunk : resident_for_pause();
  if (chunk) update_resident(*chunk);
  return chunk.has_value();
}

void OptimizerPipeline::compute(ChunkId chunk, uint64_t first_tile, uint64_t tile_count,
                                std::byte* records) const {
  run_.looks ? tiles_.look(chunk, first_tile, tile_count, records)
             : tiles_.update(chunk, first_tile, tile_count, records);
}

// Called before the first tile of a chunk is updated.
void OptimizerPipeline::before_change(ChunkId chunk) {
  if (run_.looks) return;
  if (!records_.is_streamed(chunk)) records_.before_change(chunk);
  if (needs_old(chunk)) home_.before_change(chunk);
}

void OptimizerPipeline::update_block(RecordStream::Block& block) {
  if (tiles_left_[index_of(block.chunk)] == shards_.own(block.chunk).tile_count) before_change(block.chunk);
  {
    const AddedTime computing(clock_, times_.compute_ns);
    const RecordedUpdate recorded(watch_.events(), block.chunk, block.tile_count * tile_bytes_);
    compute(block.chunk, block.first_tile, block.tile_count, stream_.tiles_of(block).data());
  }
  const ChunkId chunk = block.chunk;
  const uint64_t count = block.tile_count;
  if (run_.looks) {
    stream_.drop(block);
  } else {
    while (!stream_.write(block)) wait_for_io();
  }
  tiles_done(chunk, count);
}

std::optional<ChunkId> OptimizerPipeline::resident_in_turn() const {
  if (turn_ == order_.size()) return std::nullopt;
  const ChunkId chunk = order_[turn_];
  if (records_.is_streamed(chunk) || is_on_device(chunk) || !is_open(chunk)) return std::nullopt;
  return chunk;
}

std::optional<ChunkId> OptimizerPipeline::resident_for_pause() {
  for (size_t i = turn_; i < opened_; ++i) {
    const ChunkId chunk = order_[i];
    if (records_.is_streamed(chunk) || is_on_device(chunk) || is_done(chunk) || !is_open(chunk)) continue;
    // If may_change() refuses, the commit writes this chunk next. Asking for another one would hurry that
    // instead.
    if (run_.looks || records_.may_change(chunk)) return chunk;
    return std::nullopt;
  }
  return std::nullopt;
}

// Updates the next few blocks for every worker, or all of the chunk where no stream wants to be tended.
void OptimizerPipeline::update_resident(ChunkId chunk) {
  if (!resident_) {
    before_change(chunk);
    resident_ = Resident{chunk};
  }
  const uint64_t next_few = block_tiles_ * run_.blocks_of_a_worker * run_.workers->thread_count();
  update_resident_tiles(run_.engine != nullptr ? next_few : shards_.own(chunk).tile_count);
}

void OptimizerPipeline::update_resident_tiles(uint64_t tile_count) {
  const ChunkId chunk = resident_->chunk;
  const uint64_t begin = resident_->next_tile;
  const uint64_t end = std::min(begin + tile_count, shards_.own(chunk).tile_count);
  {
    const AddedTime computing(clock_, times_.compute_ns);
    run_.workers->parallel_for(divide_up(end - begin, block_tiles_), [&](size_t task) {
      const uint64_t first = begin + task * block_tiles_;
      const RecordedUpdate recorded(watch_.events(), *run_.workers, chunk,
                                    std::min(block_tiles_, end - first) * tile_bytes_);
      compute(chunk, first, std::min(block_tiles_, end - first),
              records_.resident(chunk) + first * tile_bytes_);
    });
  }
  resident_->next_tile = end;
  if (end == shards_.own(chunk).tile_count) resident_.reset();
  tiles_done(chunk, end - begin);
}

// --- Completing ---

void OptimizerPipeline::tiles_done(ChunkId chunk, uint64_t count) {
  tiles_left_[index_of(chunk)] -= count;
  if (tiles_left_[index_of(chunk)] > 0) return;
  handed_on_[index_of(chunk)] = true;
  hand_on(chunk);
  while (turn_ < order_.size() && is_done(order_[turn_])) ++turn_;
}

// A chunk whose new parameters lie in memory that stays is complete at once. One whose parameters leave from
// a staging slot is complete when they have arrived.
void OptimizerPipeline::hand_on(ChunkId chunk) {
  if (run_.looks) return gradients_.put_back(chunk);
  if (is_made_there(chunk)) {
    if (is_made_in_slot(chunk)) run_.device->unpin_param(chunk);
    home_.publication().note_made_on_device(chunk);
    gradients_.release(chunk);
    return progress_.complete(chunk);
  }
  if (home_.callers().have(chunk)) {
    gradients_.release(chunk);
    return progress_.complete(chunk);
  }
  const std::byte* const fresh = tiles_.complete(chunk, is_on_device(chunk) ? sides_.lanes->run_tiles() : 1);
  if (needs_old_) home_.old().release(chunk);
  const bool stays = gradients_.is_held(chunk);
  const Event* gone = nullptr;
  if (home_.placement() != Placement::none || run_.device != nullptr)
    gone = home_.publication().publish(chunk, fresh, run_.engine, run_.device);
  if (gone != nullptr) {
    leaving_.push_back({chunk, gone, !stays});
  } else {
    gradients_.release(chunk);
  }
  if (gone == nullptr || stays) progress_.complete(chunk);
}

void OptimizerPipeline::forget_left() {
  for (const Leaving& leaving : leaving_) {
    if (leaving.gone->failed()) std::rethrow_exception(leaving.gone->failure());
  }
  std::erase_if(leaving_, [this](const Leaving& leaving) {
    if (!leaving.gone->done() || leaving.gone->failed()) return false;
    home_.publication().forget(*leaving.gone);
    home_.update_written(leaving.chunk);
    gradients_.release(leaving.chunk);
    if (leaving.complete_then) progress_.complete(leaving.chunk);
    return true;
  });
}

// --- Waiting ---

bool OptimizerPipeline::wait_for_something(std::optional<ChunkId> opening) {
  if (run_.engine != nullptr && run_.engine->in_flight() > 0) {
    wait_for_io();
  } else if (sides_.lanes != nullptr && !sides_.lanes->empty()) {
    const AddedTime waiting(clock_, times_.device_wait_ns);
    sides_.lanes->wait_for_one();
  } else if (!leaving_.empty()) {
    wait_done_watched(*leaving_.front().gone, watch_, home_.publication().subject());
  } else if (opening) {
    home_.old().wait_open(*opening);
  } else if (sides_.lanes != nullptr && allowed_ && send_resident(true)) {
    // A commit had not written this chunk.
    return true;
  } else if (!stream_.can_start()) {
    // Nothing is left to wait for, and no block that was just written made room for a read.
    return false;
  }
  return true;
}

// Returns a chunk whose old parameters are on their way from the device.
std::optional<ChunkId> OptimizerPipeline::opening_old() const {
  for (size_t i = turn_; needs_old_ && i < opened_; ++i) {
    if (needs_old(order_[i]) && !is_done(order_[i]) && !home_.old().is_open(order_[i])) return order_[i];
  }
  return std::nullopt;
}

void OptimizerPipeline::wait_for_io() {
  const WaitSubject subject = io_subject();
  const AddedTime waiting(clock_,
                          subject.cause == TimeCause::read ? times_.read_wait_ns : times_.write_wait_ns);
  wait_watched(*run_.engine, watch_, subject);
}

// Reads are named first, because the update goes on with what they bring.
WaitSubject OptimizerPipeline::io_subject() const {
  if (!stream_.is_reading()) {
    if (const std::optional<WaitSubject> opening = gradients_.opening_subject()) return *opening;
    if (home_.old().is_reading())
      return {"old parameters", "nvme -> host", TimeCause::read, std::nullopt, nullptr, {}};
  }
  const std::optional<WaitSubject> subject = stream_.subject();
  return subject ? *subject : home_.publication().subject();
}

std::exception_ptr OptimizerPipeline::run(const UpdateRun& run, FunctionRef<void()> body) {
  try {
    begin(run);
    body();
  } catch (...) {
    fail(std::current_exception());
  }
  try {
    end();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

void OptimizerPipeline::end() {
  if (sides_.lanes != nullptr) end_sending();
  if (run_.engine != nullptr) {
    while (run_.engine->in_flight() > 0) wait_for_io();
  }
  if (stream_.failure() != nullptr) fail(stream_.failure());
  stream_.end();
  for (const Leaving& leaving : leaving_) {
    wait_done_watched(*leaving.gone, watch_, home_.publication().subject());
    if (leaving.gone->failed()) {
      fail(leaving.gone->failure());
    } else {
      home_.update_written(leaving.chunk);
    }
    gradients_.release(leaving.chunk);
  }
  leaving_.clear();
  for (size_t i = 0; i < opened_gradients_; ++i) {  // those that a failure left open
    if (!is_done(order_[i]) && !gradients_.is_held(order_[i])) gradients_.release(order_[i]);
  }
  for (size_t i = 0; needs_old_ && i < opened_; ++i) {
    if (is_done(order_[i]) || !needs_old(order_[i])) continue;
    home_.old().wait_open(order_[i]);
    home_.old().release(order_[i]);
  }
  home_.publication().forget_all();
  for (const ChunkId chunk : order_) position_[index_of(chunk)] = kNone;
  order_.clear();
  resident_.reset();
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void OptimizerPipeline::fail(std::exception_ptr failure) {
  if (failure_ == nullptr) failure_ = std::move(failure);
}

OptimizerPipeline::Totals OptimizerPipeline::totals() const {
  Totals totals{.record_read_bytes = stream_.totals().read_bytes,
                .record_write_bytes = stream_.totals().write_bytes,
                .times = times_};
  totals.times.check_ns = stream_.totals().check_ns;
  if (sides_.lanes != nullptr) {
    totals.h2d_bytes = sides_.lanes->h2d_bytes();
    totals.d2h_bytes = sides_.lanes->d2h_bytes();
  }
  return totals;
}

}  // namespace terrace
