#include <terrace/offload/gradient_store.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include <terrace/base/assert.h>
#include <terrace/offload/host_slots.h>

namespace terrace {
namespace {

constexpr uint64_t kBlockElements = kSumBlockElements;  // the unit of the norm's partial sums
static_assert(kTileElements % kBlockElements == 0, "no block of a sum lies in two chunks");
constexpr uint64_t kTaskBlocks = 16;

// In the norm.
uint64_t block_count(const FlatSpace& space, ChunkId chunk) {
  return space.section_of(chunk).trainable ? space.chunk(chunk).elements / kBlockElements : 0;
}

}  // namespace

GradientStore::GradientStore(const FlatSpace& space, const OffloadOptions& options, const MemoryPlan& plan,
                             HostArena& arena, Device& device, DeviceCache& cache, const ParamHome& home,
                             SpilledGradients* spilled, Workers& workers, InstructionSet instruction_set)
    : space_(space),
      device_(device),
      cache_(cache),
      home_(home),
      spilled_(spilled),
      workers_(workers),
      instruction_set_(instruction_set),
      on_device_(options.states == Placement::none),
      accumulation_steps_(options.accumulation_steps),
      accumulates_(options.accumulation_steps > 1),
      accumulation_type_(options.accumulation_type),
      takes_over_(plan.gradients_take_over),
      slots_(space.chunk_count(), nullptr),
      displaced_(space.chunk_count(), false),
      landed_(std::make_unique<std::atomic<bool>[]>(space.chunk_count())) {
  std::vector<std::byte*> host = carve_slots(arena, plan.slot_bytes, plan.host_gradient_slots, "gradients");
  if (plan.host_accumulator_slots > 0) {
    host =
        carve_slots(arena, plan.accumulator_slot_bytes, plan.host_accumulator_slots, "gradient accumulators");
  }
  std::vector<DeviceSlot> accumulators;
  std::byte* accumulator_base = nullptr;
  if (plan.device_accumulator_slots > 0) {
    accumulators = device.create_slots(plan.accumulator_slot_bytes, plan.device_accumulator_slots,
                                       "gradient accumulators");
    accumulator_base = device.reserve_addresses(plan.device_accumulator_slots * plan.accumulator_slot_bytes);
    accumulators_.resize(space.chunk_count());
  }
  size_t next = 0;
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    if (!space.section_of(ChunkId{c}).trainable) continue;
    if (!is_held(ChunkId{c})) continue;
    if (takes_over_) slots_[c] = home.host_slot(ChunkId{c});
    if (!on_device_ && !takes_over_) slots_[c] = host[next];
    if (on_device_ && !accumulates_) slots_[c] = cache.gradient_address(ChunkId{c});
    if (on_device_ && accumulates_) {
      accumulators_[c] = accumulators[next];
      slots_[c] = accumulator_base + next * plan.accumulator_slot_bytes;
      if (!device.strict()) device.attach(accumulators_[c], slots_[c]);
    }
    ++next;
  }
  for (std::byte* memory : carve_slots(arena, plan.slot_bytes, plan.landing_slots, "landing gradients")) {
    landings_.push_back({memory, nullptr, {}});
  }
  leaving_.reserve(space.chunk_count());
  first_sum_.push_back(0);
  for (uint32_t c = 0; c < space.chunk_count(); ++c)
    first_sum_.push_back(first_sum_.back() + block_count(space, ChunkId{c}));
  if (plan.gradient_sum_bytes > 0) {
    const std::span<std::byte> memory = arena.take(plan.gradient_sum_bytes, "gradient sums");
    sums_ = {reinterpret_cast<double*>(memory.data()), first_sum_.back()};
  }
}

void GradientStore::begin_step() {
  micro_batch_ = 0;
}

DataType GradientStore::type(ChunkId chunk) const {
  return accumulates_ ? accumulation_type_ : space_.section_of(chunk).type;
}

bool GradientStore::takes_over(ChunkId chunk) const {
  return takes_over_ && space_.section_of(chunk).trainable && home_.host_slot(chunk) != nullptr;
}

std::byte* GradientStore::spare_slot(ChunkId chunk) const {
  if (!landings_.empty()) return landings_[0].memory;
  return is_held(chunk) ? slots_[index_of(chunk)] : spilled_->spare_slot();
}

std::byte* GradientStore::gradient(ChunkId chunk) {
  if (!is_held(chunk)) return spilled_->opened(chunk);
  TERRACE_ASSERT(slots_[index_of(chunk)] != nullptr,
                 fmt::format("chunk {} is frozen and has no gradient", index_of(chunk)));
  return slots_[index_of(chunk)];
}

void GradientStore::land(ChunkId chunk) {
  landed_[index_of(chunk)].store(false, std::memory_order_relaxed);
  if (on_device_) return land_on_device(chunk);
  if (accumulates_) return land_in_staging(chunk);
  if (!is_held(chunk)) begin_spilling(chunk);
  if (takes_over(chunk)) displace(chunk);
  std::byte* const to = is_held(chunk) ? slots_[index_of(chunk)] : spilled_->landing(chunk);
  const uint64_t bytes = space_.chunk(chunk).elements * bytes_of(space_.section_of(chunk).type);
  CacheSlot& slot = cache_.release_gradient(chunk);
  d2h_bytes_ += bytes;
  slot.out.begin();
  device_.copy_to_host(to, slot.id, 0, bytes, nullptr, slot.out, landing_note(chunk));
  leaving_.push_back({&slot, chunk});
}

CopyNote GradientStore::landing_note(ChunkId chunk) const {
  return from_device_note(cache_.watch().events(), TransferRole::grad, TransferReason::step, index_of(chunk));
}

// Of a fetch that no operation has come for, the copy may be under way.
void GradientStore::displace(ChunkId chunk) {
  if (const Event* arriving = cache_.arriving(chunk)) {
    wait_done_watched(*arriving, cache_.watch(),
                      {"parameters", "host -> device", TimeCause::device_copy, chunk, nullptr, {}});
  }
  displaced_[index_of(chunk)] = true;
}

void GradientStore::begin_spilling(ChunkId chunk) {
  if (const std::optional<ChunkId> before = spilled_->filling_next()) {
    for (Landing& landing : landings_) {
      if (landing.source != nullptr && landing.chunk == *before) accumulate(landing);
    }
    while (spilled_->filling_next()) finish_next();
  }
  spilled_->begin(chunk, micro_batch_ > 0);
}

void GradientStore::land_on_device(ChunkId chunk) {
  open(chunk);
  if (!accumulates_) {  // it stays where it is
    take_sums(chunk, slots_[index_of(chunk)]);
    return close(chunk);
  }
  cache_.pin_gradient(chunk);
  accumulate_into(chunk, slots_[index_of(chunk)], cache_.gradient_address(chunk));
  cache_.unpin_gradient(chunk);
  close(chunk);
  cache_.drop_gradient(chunk);
}

void GradientStore::land_in_staging(ChunkId chunk) {
  Landing& landing = landings_[next_landing_];
  next_landing_ = (next_landing_ + 1) % static_cast<uint32_t>(landings_.size());
  accumulate(landing);
  if (!is_held(chunk)) begin_spilling(chunk);
  const uint64_t bytes = space_.chunk(chunk).elements * bytes_of(space_.section_of(chunk).type);
  CacheSlot& slot = cache_.release_gradient(chunk);
  d2h_bytes_ += bytes;
  slot.out.begin();
  device_.copy_to_host(landing.memory, slot.id, 0, bytes, nullptr, slot.out, landing_note(chunk));
  landing.source = &slot;
  landing.chunk = chunk;
}

// The slot may have been taken and left again since; its last copy out is then a later one, and waiting for
// it is waiting for this one too.
void GradientStore::accumulate(Landing& landing) {
  if (landing.source == nullptr) return;
  wait_watched(landing.source->out, cache_.watch(),
               {"gradients", "device -> host", TimeCause::device_copy, landing.chunk, nullptr, {}});
  landing.source = nullptr;
  const ChunkId chunk = landing.chunk;
  if (is_held(chunk)) return accumulate_into(chunk, slots_[index_of(chunk)], landing.memory);
  spilled_->wait_old(chunk);
  accumulate_into(chunk, spilled_->landing(chunk), landing.memory);
  spilled_->write(chunk);
}

void GradientStore::accumulate_into(ChunkId chunk, std::byte* accumulator, const std::byte* gradient) {
  const uint64_t blocks = sums_of(chunk).size();
  const uint64_t accumulator_bytes = kBlockElements * bytes_of(accumulation_type_);
  const uint64_t gradient_bytes = kBlockElements * bytes_of(space_.section_of(chunk).type);
  // Of what is spilled always: a last micro-batch without a gradient does not read it back.
  const bool takes_sums = last_micro_batch() || !is_held(chunk);
  const ComputingScope computing(cache_.watch());
  workers_.parallel_for(divide_up(blocks, kTaskBlocks), [&](size_t task) {
    for (uint64_t b = task * kTaskBlocks; b < std::min(blocks, (task + 1) * kTaskBlocks); ++b) {
      const Accumulation block{.accumulator = accumulator + b * accumulator_bytes,
                               .accumulator_type = accumulation_type_,
                               .gradient = gradient + b * gradient_bytes,
                               .gradient_type = space_.section_of(chunk).type,
                               .count = kBlockElements,
                               .first = micro_batch_ == 0};
      if (takes_sums) {
        sums_of(chunk)[b] = accumulate_block(instruction_set_, block);
      } else {
        terrace::accumulate(instruction_set_, block);
      }
    }
  });
  if (last_micro_batch()) landed_[index_of(chunk)].store(true, std::memory_order_release);
}

std::span<double> GradientStore::sums_of(ChunkId chunk) {
  const uint64_t first = first_sum_[index_of(chunk)];
  return sums_.subspan(first, first_sum_[index_of(chunk) + 1] - first);
}

void GradientStore::take_sums(ChunkId chunk, const std::byte* gradient) {
  const std::span<double> sums = sums_of(chunk);
  const DataType gradient_type = type(chunk);
  const ComputingScope computing(cache_.watch());
  workers_.parallel_for(divide_up(sums.size(), kTaskBlocks), [&](size_t task) {
    for (uint64_t b = task * kTaskBlocks; b < std::min(sums.size(), (task + 1) * kTaskBlocks); ++b) {
      sums[b] =
          sum_of_squares_block(instruction_set_, gradient + b * kBlockElements * bytes_of(gradient_type),
                               gradient_type, kBlockElements);
    }
  });
  landed_[index_of(chunk)].store(true, std::memory_order_release);
}

void GradientStore::land_zero(ChunkId chunk) {
  if (micro_batch_ > 0) {  // zeros add nothing to what earlier ones have left
    if (!last_micro_batch() || !is_held(chunk)) return;
    open(chunk);
    take_sums(chunk, slots_[index_of(chunk)]);
    return close(chunk);
  }
  std::ranges::fill(sums_of(chunk), 0.0);
  if (on_device_ && !accumulates_) {
    const Schedule unknown;
    CacheSlot* slot = cache_.take_slot(EvictionContext{unknown, kNever});
    TERRACE_ASSERT(slot != nullptr, "the plan has a slot for every gradient that stays on the device");
    cache_.begin_gradient(chunk, *slot);
    landed_[index_of(chunk)].store(true, std::memory_order_release);
    return;
  }
  if (!is_held(chunk)) return spilled_->set_zero(chunk);
  if (takes_over(chunk)) displace(chunk);
  open(chunk);
  std::memset(slots_[index_of(chunk)], 0, space_.chunk(chunk).elements * bytes_of(type(chunk)));
  close(chunk);
  landed_[index_of(chunk)].store(last_micro_batch(), std::memory_order_release);
}

void GradientStore::poll() {
  for (Landing& landing : landings_) {
    if (landing.source == nullptr || !landing.source->out.done()) continue;
    if (is_held(landing.chunk) || spilled_->has_old(landing.chunk)) accumulate(landing);
  }
  while (finished_ < leaving_.size() && leaving_[finished_].source->out.done()) finish_next();
}

// As with a landing slot, a later copy out of the same slot may be the one that is waited for.
void GradientStore::finish_next() {
  const Leaving& next = leaving_[finished_];
  wait_watched(next.source->out, cache_.watch(),
               {"gradients", "device -> host", TimeCause::device_copy, next.chunk, nullptr, {}});
  const bool held = is_held(next.chunk);
  take_sums(next.chunk, held ? slots_[index_of(next.chunk)] : spilled_->landing(next.chunk));
  if (!held) spilled_->write(next.chunk);
  ++finished_;
}

void GradientStore::finish_micro_batch() {
  for (Landing& landing : landings_) accumulate(landing);
  while (finished_ < leaving_.size()) finish_next();
  leaving_.clear();
  finished_ = 0;
  if (spilled_ != nullptr && last_micro_batch()) spilled_->finish_writes();
  ++micro_batch_;
}

void GradientStore::open(ChunkId chunk) {
  if (!on_device_) return;
  if (!accumulates_) return cache_.pin_gradient(chunk);
  if (device_.strict()) device_.attach(accumulators_[index_of(chunk)], slots_[index_of(chunk)]);
}

void GradientStore::close(ChunkId chunk) {
  if (!on_device_) return;
  if (!accumulates_) return cache_.unpin_gradient(chunk);
  if (device_.strict()) device_.detach(accumulators_[index_of(chunk)]);
}

bool GradientStore::start_open(ChunkId chunk, io::Engine& engine) {
  if (!is_held(chunk)) return spilled_->start_open(chunk, engine);
  return landed_[index_of(chunk)].load(std::memory_order_acquire);
}

bool GradientStore::is_open(ChunkId chunk) const {
  if (!is_held(chunk)) return spilled_->is_open(chunk);
  return landed_[index_of(chunk)].load(std::memory_order_acquire);
}

void GradientStore::release(ChunkId chunk) {
  landed_[index_of(chunk)].store(false, std::memory_order_relaxed);
  if (!is_held(chunk)) spilled_->release(chunk);
  if (on_device_ && !accumulates_) cache_.drop_gradient(chunk);
}

bool GradientStore::is_finite(ChunkId chunk) const {
  GradientNorm norm;
  const uint64_t first = first_sum_[index_of(chunk)];
  norm.add_blocks(sums_.subspan(first, first_sum_[index_of(chunk) + 1] - first));
  return norm.finite();
}

GradientNorm GradientStore::norm() const {
  GradientNorm norm;
  norm.add_blocks(sums_);
  return norm;
}

}  // namespace terrace
