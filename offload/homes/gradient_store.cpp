#include <terrace/offload/homes/gradient_store.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include <terrace/base/assert.h>
#include <terrace/offload/plan/host_slots.h>

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
                             const GradientRuns& runs, SpilledGradients* spilled, Workers& workers,
                             InstructionSet instruction_set, std::span<std::byte> work_memory)
    : space_(space),
      device_(device),
      cache_(cache),
      home_(home),
      spilled_(spilled),
      workers_(workers),
      instruction_set_(instruction_set),
      device_arithmetic_(options.device_arithmetic),
      on_device_(options.states == Placement::none),
      accumulation_steps_(options.accumulation_steps),
      accumulates_(options.accumulation_steps > 1),
      accumulation_type_(options.accumulation_type),
      layer_major_(options.layer_major),
      takes_over_(plan.gradients_take_over),
      dry_(options.dry),
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
    staged_.push_back({memory, nullptr, {}, {}});
    staged_.back().runs.reserve(runs.most_runs());
  }
  leaving_.reserve(space.chunk_count());
  if (on_device_ && device_arithmetic_ != nullptr)
    device_sums_.emplace(*device_arithmetic_, device, work_memory, cache.watch());
  first_sum_.push_back(0);
  for (uint32_t c = 0; c < space.chunk_count(); ++c)
    first_sum_.push_back(first_sum_.back() + block_count(space, ChunkId{c}));
  if (plan.gradient_sum_bytes > 0) {
    const std::span<std::byte> memory = arena.take(plan.gradient_sum_bytes, "gradient sums");
    sums_ = {reinterpret_cast<double*>(memory.data()), first_sum_.back()};
  }
}

DataType GradientStore::type(ChunkId chunk) const {
  return accumulates_ ? accumulation_type_ : space_.section_of(chunk).type;
}

bool GradientStore::takes_over(ChunkId chunk) const {
  return takes_over_ && space_.section_of(chunk).trainable && home_.host_slot(chunk) != nullptr;
}

std::byte* GradientStore::spare_slot(ChunkId chunk) const {
  if (!staged_.empty()) return staged_[0].memory;
  return is_held(chunk) ? slots_[index_of(chunk)] : spilled_->spare_slot();
}

std::byte* GradientStore::gradient(ChunkId chunk) {
  if (!is_held(chunk)) return spilled_->opened(chunk);
  TERRACE_ASSERT(slots_[index_of(chunk)] != nullptr,
                 fmt::format("chunk {} is frozen and has no gradient", index_of(chunk)));
  return slots_[index_of(chunk)];
}

void GradientStore::land(const GradientLanding& landing) {
  const ChunkId chunk = landing.chunk;
  landed_[index_of(chunk)].store(false, std::memory_order_relaxed);
  if (on_device_) return land_on_device(landing);
  if (accumulates_) return land_in_staging(landing);
  if (!is_held(chunk)) begin_spilling(landing);
  if (takes_over(chunk)) displace(chunk);
  std::byte* const to = is_held(chunk) ? slots_[index_of(chunk)] : spilled_->landing(chunk);
  const uint64_t bytes = space_.param_bytes(chunk);
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

void GradientStore::begin_spilling(const GradientLanding& landing) {
  if (spilled_->is_filling(landing.chunk)) return;  // it has stayed since it landed before
  if (const std::optional<ChunkId> before = spilled_->filling_next()) {
    accumulate_staged(*before);
    while (spilled_->is_filling(*before) && finished_ < leaving_.size()) finish_next();
    if (spilled_->is_filling(*before)) spilled_->write(*before);
  }
  spilled_->begin(landing.chunk, !landing.begins);
}

void GradientStore::land_on_device(const GradientLanding& landing) {
  const ChunkId chunk = landing.chunk;
  open(chunk);
  if (!accumulates_) {  // it stays where it is
    if (!device_sums_) take_sums(chunk, slots_[index_of(chunk)]);
    landed_[index_of(chunk)].store(true, std::memory_order_release);
    return close(chunk);
  }
  cache_.pin_gradient(chunk);
  add_runs(landing, slots_[index_of(chunk)], cache_.gradient_address(chunk));
  cache_.unpin_gradient(chunk);
  close(chunk);
  cache_.drop_gradient(chunk);
}

void GradientStore::land_in_staging(const GradientLanding& landing) {
  const ChunkId chunk = landing.chunk;
  Staged& to = staged_[next_staged_];
  accumulate(to);
  next_staged_ = (next_staged_ + 1) % static_cast<uint32_t>(staged_.size());
  if (!is_held(chunk)) begin_spilling(landing);
  to.runs.assign(landing.runs.begin(), landing.runs.end());
  to.landing = landing;
  to.landing.runs = to.runs;
  const uint64_t element_bytes = bytes_of(space_.section_of(chunk).type);
  CacheSlot& slot = cache_.release_gradient(chunk);
  slot.out.begin(static_cast<uint32_t>(to.runs.size()));
  for (const GradientRun& run : to.runs) {
    const uint64_t offset = run.first_element * element_bytes, bytes = run.element_count * element_bytes;
    d2h_bytes_ += bytes;
    device_.copy_to_host(to.memory + offset, slot.id, offset, bytes, nullptr, slot.out, landing_note(chunk));
  }
  to.source = &slot;
}

// The slot may have been taken and left again since; its last copy out is then a later one, and waiting for
// it is waiting for this one too.
void GradientStore::accumulate(Staged& from) {
  if (from.source == nullptr) return;
  const ChunkId chunk = from.landing.chunk;
  wait_watched(from.source->out, cache_.watch(),
               {"gradients", "device -> host", TimeCause::device_copy, chunk, nullptr, {}});
  from.source = nullptr;
  if (is_held(chunk)) return add_runs(from.landing, slots_[index_of(chunk)], from.memory);
  spilled_->wait_old(chunk);
  add_runs(from.landing, spilled_->landing(chunk), from.memory);
  if (!layer_major_ || from.landing.ends) spilled_->write(chunk);
}

void GradientStore::accumulate_all() {
  for (size_t age = 0; age < staged_.size(); ++age) accumulate(staged(age));
}

void GradientStore::accumulate_staged(ChunkId chunk) {
  size_t count = 0;
  for (size_t age = 0; age < staged_.size(); ++age) {
    if (staged(age).source != nullptr && staged(age).landing.chunk == chunk) count = age + 1;
  }
  for (size_t age = 0; age < count; ++age) accumulate(staged(age));
}

void GradientStore::add_runs(const GradientLanding& landing, std::byte* accumulator,
                             const std::byte* gradient) {
  if (device_sums_) return add_runs_there(landing, accumulator, gradient);
  const uint64_t first = landing.runs.front().first_element / kBlockElements;
  const uint64_t end = divide_up(landing.runs.back().end(), kBlockElements);
  const ComputingScope computing(cache_.watch());
  workers_.parallel_for(dry_ ? 0 : divide_up(end - first, kTaskBlocks), [&](size_t task) {
    const uint64_t begin = first + task * kTaskBlocks;
    for (uint64_t b = begin; b < std::min(end, begin + kTaskBlocks); ++b)
      add_block(landing, b, accumulator, gradient);
  });
  if (landing.ends) landed_[index_of(landing.chunk)].store(true, std::memory_order_release);
}

void GradientStore::add_runs_there(const GradientLanding& landing, std::byte* accumulator,
                                   const std::byte* gradient) {
  const DataType type = space_.section_of(landing.chunk).type;
  for (const GradientRun& run : landing.runs) {
    std::byte* const sum = accumulator + run.first_element * bytes_of(accumulation_type_);
    const bool replaces = run.is_first && landing.micro_batch == 0;
    if (run.is_first && (!replaces || gradient == nullptr))  // those before were zero
      device_arithmetic_->set_zero(sum, accumulation_type_, run.element_count);
    if (gradient == nullptr) continue;
    device_arithmetic_->accumulate({.accumulator = sum,
                                    .accumulator_type = accumulation_type_,
                                    .gradient = gradient + run.first_element * bytes_of(type),
                                    .gradient_type = type,
                                    .count = run.element_count,
                                    .first = replaces});
  }
  if (landing.ends) landed_[index_of(landing.chunk)].store(true, std::memory_order_release);
}

void GradientStore::take_device_sums() {
  for (uint32_t c = 0; c < space_.chunk_count(); ++c) {
    if (!landed_[c].load(std::memory_order_acquire)) continue;
    const ChunkId chunk{c};
    open(chunk);
    device_sums_->add(slots_[c], type(chunk), space_.chunk(chunk).elements, sums_of(chunk));
    close(chunk);
  }
  device_sums_->finish();
}

// A block's sum is right when the last that lands of it has been added.
void GradientStore::add_block(const GradientLanding& landing, uint64_t block, std::byte* accumulator,
                              const std::byte* gradient) {
  const DataType type = space_.section_of(landing.chunk).type;
  // Of what is spilled always: a last micro-batch without a gradient does not read it back.
  const bool takes_sum = is_last(landing) || !is_held(landing.chunk);
  const uint64_t begin = block * kBlockElements, end = begin + kBlockElements;
  bool has_landed = false;
  for (const GradientRun& run : landing.runs) {
    const uint64_t first = std::max(begin, run.first_element), last = std::min(end, run.end());
    if (first >= last) continue;
    has_landed = true;
    std::byte* const sum = accumulator + first * bytes_of(accumulation_type_);
    const bool replaces = run.is_first && landing.micro_batch == 0;
    if (run.is_first && (!replaces || gradient == nullptr))  // those before were zero
      std::memset(sum, 0, (last - first) * bytes_of(accumulation_type_));
    if (gradient == nullptr) continue;
    const Accumulation part{.accumulator = sum,
                            .accumulator_type = accumulation_type_,
                            .gradient = gradient + first * bytes_of(type),
                            .gradient_type = type,
                            .count = last - first,
                            .first = replaces};
    if (takes_sum && part.count == kBlockElements) {
      sums_of(landing.chunk)[block] = accumulate_block(instruction_set_, part);
      return;
    }
    terrace::accumulate(instruction_set_, part);
  }
  if (!has_landed || !takes_sum) return;
  sums_of(landing.chunk)[block] =
      sum_of_squares_block(instruction_set_, accumulator + begin * bytes_of(accumulation_type_),
                           accumulation_type_, kBlockElements);
}

std::span<double> GradientStore::sums_of(ChunkId chunk) {
  const uint64_t first = first_sum_[index_of(chunk)];
  return sums_.subspan(first, first_sum_[index_of(chunk) + 1] - first);
}

void GradientStore::take_sums(ChunkId chunk, const std::byte* gradient) {
  const std::span<double> sums = sums_of(chunk);
  const DataType gradient_type = type(chunk);
  const ComputingScope computing(cache_.watch());
  workers_.parallel_for(dry_ ? 0 : divide_up(sums.size(), kTaskBlocks), [&](size_t task) {
    for (uint64_t b = task * kTaskBlocks; b < std::min(sums.size(), (task + 1) * kTaskBlocks); ++b) {
      sums[b] =
          sum_of_squares_block(instruction_set_, gradient + b * kBlockElements * bytes_of(gradient_type),
                               gradient_type, kBlockElements);
    }
  });
  landed_[index_of(chunk)].store(true, std::memory_order_release);
}

void GradientStore::land_zero(const GradientLanding& landing) {
  const ChunkId chunk = landing.chunk;
  if (accumulates_) return is_held(chunk) ? add_zero(landing) : spill_zero(landing);
  if (!dry_) std::ranges::fill(sums_of(chunk), 0.0);
  if (on_device_) {
    const Schedule unknown;
    CacheSlot* slot = cache_.take_slot(EvictionContext{unknown, kNever});
    TERRACE_ASSERT(slot != nullptr, "the plan has a slot for every gradient that stays on the device");
    cache_.begin_gradient(chunk, *slot);
    landed_[index_of(chunk)].store(true, std::memory_order_release);
    return;
  }
  if (!is_held(chunk)) return spilled_->set_zero(chunk);
  if (takes_over(chunk)) displace(chunk);
  if (!dry_) std::memset(slots_[index_of(chunk)], 0, space_.chunk(chunk).elements * bytes_of(type(chunk)));
  landed_[index_of(chunk)].store(true, std::memory_order_release);
}

// Zeros add nothing to what earlier micro-batches have left.
void GradientStore::add_zero(const GradientLanding& landing) {
  const ChunkId chunk = landing.chunk;
  accumulate_staged(chunk);
  if (std::ranges::none_of(landing.runs, &GradientRun::is_first) && !is_last(landing)) return;
  open(chunk);
  add_runs(landing, slots_[index_of(chunk)], nullptr);
  close(chunk);
}

void GradientStore::spill_zero(const GradientLanding& landing) {
  const ChunkId chunk = landing.chunk;
  accumulate_staged(chunk);
  if (landing.begins && landing.runs.front().element_count == space_.chunk(chunk).elements) {
    if (!dry_) std::ranges::fill(sums_of(chunk), 0.0);
    return spilled_->set_zero(chunk);
  }
  if (std::ranges::any_of(landing.runs, &GradientRun::is_first)) {
    begin_spilling(landing);
    spilled_->wait_old(chunk);
    add_runs(landing, spilled_->landing(chunk), nullptr);
  }
  if (landing.ends && spilled_->is_filling(chunk)) spilled_->write(chunk);
}

void GradientStore::poll() {
  for (size_t age = 0; age < staged_.size(); ++age) {
    Staged& next = staged(age);
    if (next.source == nullptr) continue;
    const ChunkId chunk = next.landing.chunk;
    if (!next.source->out.done() || (!is_held(chunk) && !spilled_->has_old(chunk))) break;
    accumulate(next);
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

void GradientStore::finish_micro_batch(bool ends_step) {
  accumulate_all();
  while (finished_ < leaving_.size()) finish_next();
  leaving_.clear();
  finished_ = 0;
  if (ends_step && device_sums_) take_device_sums();
  if (spilled_ == nullptr) return;
  while (const std::optional<ChunkId> filling = spilled_->filling()) spilled_->write(*filling);
  if (ends_step) spilled_->finish_writes();
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
  if (dry_) return true;
  const uint64_t first = first_sum_[index_of(chunk)];
  norm.add_blocks(sums_.subspan(first, first_sum_[index_of(chunk) + 1] - first));
  return norm.finite();
}

GradientNorm GradientStore::norm() const {
  GradientNorm norm;
  if (!dry_) norm.add_blocks(sums_);
  return norm;
}

}  // namespace terrace
