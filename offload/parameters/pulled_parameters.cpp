#include <terrace/offload/parameters/pulled_parameters.h>

#include <fmt/format.h>

#include <terrace/base/assert.h>
#include <terrace/base/units.h>
#include <terrace/offload/plan/host_slots.h>
#include <terrace/offload/watch/watched_votes.h>

namespace terrace {
namespace {

constexpr const char* kPulled = "parameters";

}  // namespace

PulledParameters::PulledParameters(const RunContext& run, HostArena& arena, DeviceCache& cache,
                                   RankPulls& pulls)
    : run_(run),
      cache_(cache),
      pulls_(pulls),
      stages_(run, arena),
      shares_(std::make_unique<DeviceCopy[]>(cache.slot_count())),
      there_(std::make_unique<std::atomic<uint64_t>[]>(run.space.chunk_count())),
      answer_count_(run.plan.answer_slots),
      answers_(std::make_unique<Answer[]>(answer_count_)) {
  const std::vector<std::byte*> answers =
      carve_slots(arena, run.plan.share_bytes, answer_count_, "parameters for other ranks");
  for (uint32_t a = 0; a < answer_count_; ++a) {
    answers_[a].memory = answers[a];
    answers_[a].transfer.prepare(divide_up(run.plan.slot_bytes, run.plan.param_block_bytes()));
  }
  pulls.serve(*this);
}

PulledParameters::~PulledParameters() {
  cache_.drain();
  stages_.wait();
}

// --- What comes ---

uint32_t PulledParameters::others(ChunkId chunk) const {
  uint32_t count = 0;
  for (uint32_t r = 0; r < run_.shards.count(); ++r)
    count += r != run_.shards.rank() && run_.shards.of(chunk, r).tile_count > 0 ? 1 : 0;
  return count;
}

// Each rank begins with the next one, so that no owner is everybody's first.
void PulledParameters::pull(ChunkId chunk, std::byte* memory, TransferReason reason, const Event* after,
                            Event& done) {
  const CopyNote note = gathered_note(run_.watch.events(), reason, index_of(chunk));
  const uint32_t ranks = run_.shards.count(), mine = run_.shards.rank();
  if (others(chunk) == 0) return pulls_.pulls().read(mine, index_of(chunk), 0, {}, after, done);
  for (uint32_t i = 1; i < ranks; ++i) {
    const uint32_t owner = (mine + i) % ranks;
    const ShardTiles tiles = run_.shards.of(chunk, owner);
    if (tiles.tile_count == 0) continue;
    const uint64_t bytes = tiles.elements() * element_bytes(chunk);
    moved_.in += bytes;
    pulls_.pulls().read(owner, index_of(chunk), version_of(chunk),
                        {memory + tiles.first_element() * element_bytes(chunk), bytes}, after, done, note);
  }
}

void PulledParameters::gather(ChunkId chunk, CacheSlot& slot, const HostShare&, TransferReason reason) {
  TERRACE_ASSERT(!is_loading_, "parameters are used when the state of all ranks is there");
  if (!stages_.empty()) return gather_by_copies(chunk, slot, reason);
  std::byte* const memory = cache_.begin_filling(slot);
  slot.in.begin({kPulled, index_of(chunk), CopyName::Link::gather}, std::max(others(chunk), 1u));
  pull(chunk, memory, reason, &share(slot), slot.in);
}

// Copies to the device keep their order, so the first of them waits for the other ranks, and the second for
// the own share.
void PulledParameters::gather_by_copies(ChunkId chunk, CacheSlot& slot, TransferReason reason) {
  GatherStages::Stage& stage = stages_.take(chunk, slot, reason);
  const CopyName name{kPulled, index_of(chunk), CopyName::Link::gather};
  stage.arrived.begin(name, std::max(others(chunk), 1u));
  slot.in.begin(name, 2);
  cache_.begin_copying_in(slot);
  pull(chunk, stage.memory, reason, nullptr, stage.arrived);
  const CopyNote note = to_device_note(run_.watch.events(), TransferRole::param, reason, index_of(chunk));
  const uint64_t first = run_.shards.first_param_byte(chunk), own = run_.shards.param_bytes(chunk);
  const uint64_t behind = run_.space.param_bytes(chunk) - first - own;
  run_.device.copy_to_device(slot.id, 0, stage.memory, first, &stage.arrived, slot.in, note);
  run_.device.copy_to_device(slot.id, first + own, stage.memory + first + own, behind, &share(slot), slot.in,
                             note);
  h2d_bytes_ += first + behind;
}

RankBytes PulledParameters::moved() const {
  RankBytes moved = moved_;
  moved.out = out_bytes_.load(std::memory_order_relaxed);
  return moved;
}

// --- Versions ---

void PulledParameters::meet(std::string_view what) {
  WatchedVotes(RankVotes(&pulls_.ranks()), run_.watch).any(what, false);
}

void PulledParameters::finish_reads() {
  const WatchedWait waiting(run_.watch, word_of_ranks(kPulled));
  cache_.drain();
}

void PulledParameters::begin_load() {
  if (is_loading_) return;
  finish_reads();
  meet("the begin of a load");
  is_loading_ = true;
}

void PulledParameters::end_load() {
  if (!is_loading_) return;
  meet("the end of a load");
  is_loading_ = false;
}

void PulledParameters::updated(ChunkId chunk) {
  there_[index_of(chunk)].store(updating_to_.load(), std::memory_order_release);
  pulls_.pulls().wake();
}

void PulledParameters::end_update(FunctionRef<bool(ChunkId)> is_pending) {
  ++version_;
  for (uint32_t c = 0; c < run_.space.chunk_count(); ++c) {
    if (run_.is_trained(ChunkId{c}) && !is_pending(ChunkId{c}))
      there_[c].store(version_, std::memory_order_release);
  }
  pulls_.pulls().wake();
}

// --- What others read ---

const std::byte* PulledParameters::resident(uint32_t chunk) const {
  if (homes_.device_shares != nullptr) return homes_.device_shares->of(ChunkId{chunk});
  return homes_.host_slots[chunk];
}

PulledParameters::Answer* PulledParameters::answer_of(uint32_t chunk) {
  for (uint32_t a = 0; a < answer_count_; ++a) {
    if (answers_[a].chunk == chunk) return &answers_[a];
  }
  return nullptr;
}

bool PulledParameters::open_share(uint32_t chunk, uint64_t version, std::span<const std::byte>& bytes) {
  const uint64_t there = there_[chunk].load(std::memory_order_acquire);
  if (there < version) return false;
  TERRACE_ASSERT(there == version, fmt::format("chunk {} was overwritten before its last reader", chunk));
  const uint64_t share_bytes = run_.shards.param_bytes(ChunkId{chunk});
  if (const std::byte* const memory = resident(chunk)) {
    if (homes_.device_shares != nullptr && !homes_.device_shares->written(ChunkId{chunk}).done())
      return false;
    bytes = {memory, share_bytes};
  } else {
    Answer* answer = answer_of(chunk);
    if (answer == nullptr) {
      if ((answer = answer_of(kNone)) == nullptr) return false;
      answer->chunk = chunk;
      answer->transfer.start_read(homes_.stores.of(run_.space, ChunkId{chunk}), ChunkId{chunk},
                                  answer->memory, TransferPort(*homes_.stores.reader, io::Priority::critical),
                                  {.what = kPulled});
    }
    if (!answer->transfer.event().done()) return false;
    answer->transfer.event().wait();  // throws the failure of the read
    ++answer->readers;
    bytes = {answer->memory, share_bytes};
  }
  out_bytes_.fetch_add(share_bytes, std::memory_order_relaxed);
  return true;
}

void PulledParameters::close_share(uint32_t chunk) {
  if (resident(chunk) != nullptr) return;
  Answer* const answer = answer_of(chunk);
  if (--answer->readers == 0) answer->chunk = kNone;
}

}  // namespace terrace
