#include <terrace/offload/update/device_lanes.h>

#include <algorithm>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/offload/watch/recorded_update.h>

namespace terrace {
namespace {

WaitSubject update_there_of(ChunkId chunk) {
  return {"optimizer states", "host -> device -> host", TimeCause::device_copy, chunk, nullptr, {}};
}

}  // namespace

DeviceLanes::DeviceLanes(const TileUpdate& tiles, Device& device, const Workers& workers, StepWatch& watch,
                         const MemoryPlan& plan, bool dry)
    : tiles_(tiles),
      device_(device),
      workers_(workers.beside()),
      watch_(watch),
      tile_bytes_(plan.record_layout.tile_bytes()),
      lane_tiles_(plan.device_lane_tiles),
      lane_count_(plan.device_lanes),
      dry_(dry),
      lanes_(std::make_unique<Lane[]>(plan.device_lanes)),
      sent_runs_(kMostSent) {
  TERRACE_ASSERT(lane_count_ > 0, "there are lanes where chunks are updated on the device");
  std::byte* memory = device.allocate_work_memory(plan.device_lanes_bytes()).data();
  for (uint32_t l = 0; l < lane_count_; ++l) {
    lanes_[l].records = memory;
    lanes_[l].gradients = memory + lane_tiles_ * tile_bytes_;
    lanes_[l].parameters = lanes_[l].gradients + plan.device_lane_gradient_bytes;
    memory += plan.device_lane_bytes();
  }
  if (!dry_) thread_ = std::thread([this] { work(); });
}

DeviceLanes::~DeviceLanes() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void DeviceLanes::wake(io::Engine* engine) {
  const MutexLock lock(mutex_);
  engine_ = engine;
}

bool DeviceLanes::has_room() const {
  const MutexLock lock(mutex_);
  return sent_ < taken_ + kMostSent;
}

bool DeviceLanes::empty() const {
  const MutexLock lock(mutex_);
  return taken_ == sent_;
}

void DeviceLanes::send(const LaneRun& run) {
  TERRACE_ASSERT(run.tile_count <= lane_tiles_, "a run fits its lane");
  const RunBytes bytes = bytes_of_run(run);
  h2d_bytes_ += bytes.records + bytes.gradients + (run.old != nullptr ? bytes.parameters : 0);
  d2h_bytes_ += bytes.records + (run.fresh != nullptr ? bytes.parameters : 0);
  {
    const MutexLock lock(mutex_);
    TERRACE_ASSERT(sent_ < taken_ + kMostSent, "there is room for what is sent");
    sent_at(sent_++) = {run, nullptr};
    if (dry_) {
      started_ = computed_ = over_ = sent_;
    } else {
      start_waiting();
    }
  }
  changed_.notify_all();
}

std::optional<LaneRun> DeviceLanes::take_back() {
  const MutexLock lock(mutex_);
  if (taken_ == over_) return std::nullopt;
  Sent& sent = sent_at(taken_++);
  if (sent.failure != nullptr) std::rethrow_exception(std::exchange(sent.failure, nullptr));
  return sent.run;
}

void DeviceLanes::wait_for_one() {
  const MutexLock lock(mutex_);
  if (taken_ < over_) return;
  TERRACE_ASSERT(taken_ < sent_, "only what was sent comes back");
  const WatchedWait wait(watch_, update_there_of(sent_at(taken_).run.chunk));
  changed_.wait(mutex_, [this] { return taken_ < over_; });
}

void DeviceLanes::finish() {
  const MutexLock lock(mutex_);
  engine_ = nullptr;
  if (over_ < sent_) {
    const WatchedWait wait(watch_, update_there_of(sent_at(over_).run.chunk));
    changed_.wait(mutex_, [this] { return over_ == sent_; });
  }
  for (; taken_ < sent_; ++taken_) sent_at(taken_).failure = nullptr;
}

DeviceLanes::RunBytes DeviceLanes::bytes_of_run(const LaneRun& run) const {
  return {run.tile_count * tile_bytes_, run.tile_count * tiles_.gradient_tile_bytes(run.chunk),
          run.tile_count * tiles_.parameter_tile_bytes(run.chunk)};
}

// --- The way of a run ---

// The mutex is held, so that runs go up in their order. A lane is free when the run that had it is over.
void DeviceLanes::start_waiting() {
  for (; started_ < sent_ && started_ < over_ + lane_count_; ++started_)
    copy_up(sent_at(started_).run, lane_of(started_));
}

void DeviceLanes::copy_up(const LaneRun& run, Lane& lane) {
  const RunBytes bytes = bytes_of_run(run);
  const auto copy = [&](std::byte* to, const std::byte* from, uint64_t length, TransferRole role) {
    device_.copy_to_work(to, from, length, nullptr, lane.up,
                         to_device_note(watch_.events(), role, TransferReason::update, index_of(run.chunk)));
  };
  lane.up.begin(run.old != nullptr ? 3 : 2);
  copy(lane.records, run.records, bytes.records, TransferRole::state);
  copy(lane.gradients, run.gradients, bytes.gradients, TransferRole::grad);
  if (run.old != nullptr) copy(lane.parameters, run.old, bytes.parameters, TransferRole::param);
}

// If the host cannot reach the device's memory, the arithmetic runs later, in the order of the device's
// operations.
void DeviceLanes::update(const LaneRun& run, const Lane& lane) {
  const RecordedUpdate recorded(watch_.events(), kDeviceUpdateLane, run.chunk, run.tile_count * tile_bytes_);
  std::byte* const parameters = run.there != nullptr ? run.there : lane.parameters;
  const auto update_part = [&](uint64_t first, uint64_t count) {
    tiles_.update_there(
        run.chunk, run.first_tile + first, count,
        {lane.records + first * tile_bytes_, lane.gradients + first * tiles_.gradient_tile_bytes(run.chunk),
         parameters + first * tiles_.parameter_tile_bytes(run.chunk)});
  };
  if (!tiles_.is_on_workers()) return update_part(0, run.tile_count);
  const uint64_t part = divide_up(run.tile_count, workers_.thread_count());
  workers_.parallel_for(divide_up(run.tile_count, part),
                        [&](size_t p) { update_part(p * part, std::min(part, run.tile_count - p * part)); });
}

void DeviceLanes::copy_down(const LaneRun& run, Lane& lane) {
  const RunBytes bytes = bytes_of_run(run);
  const auto copy = [&](std::byte* to, const std::byte* from, uint64_t length, TransferRole role) {
    device_.copy_work_to_host(
        to, from, length, nullptr, lane.down,
        from_device_note(watch_.events(), role, TransferReason::update, index_of(run.chunk)));
  };
  lane.down.begin(run.fresh != nullptr ? 2 : 1);
  copy(run.records, lane.records, bytes.records, TransferRole::state);
  if (run.fresh != nullptr) copy(run.fresh, lane.parameters, bytes.parameters, TransferRole::param);
}

// Takes a run from its arrival to its way down. Returns the failure that keeps it from going there.
std::exception_ptr DeviceLanes::pass_on(const LaneRun& run, Lane& lane) {
  lane.up.wait_done();
  if (const std::exception_ptr failure = lane.up.failure()) return failure;
  try {
    update(run, lane);
  } catch (...) {
    return std::current_exception();
  }
  copy_down(run, lane);
  return nullptr;
}

void DeviceLanes::note_over() {
  for (; over_ < computed_; ++over_) {
    const Lane& lane = lane_of(over_);
    if (!lane.down.done()) return;
    Sent& sent = sent_at(over_);
    if (sent.failure == nullptr) sent.failure = lane.down.failure();
  }
}

// --- The thread ---

void DeviceLanes::work() {
  const DefaultFloatingPoint environment;
  while (true) {
    uint64_t number = 0;
    bool arrives = false;
    LaneRun run;
    {
      const MutexLock lock(mutex_);
      changed_.wait(mutex_, [this] { return over_ < started_ || stopping_; });
      if (over_ == started_) return;
      arrives = computed_ < started_;
      number = arrives ? computed_ : over_;
      run = sent_at(number).run;
    }
    std::exception_ptr failure;
    if (arrives) {
      failure = pass_on(run, lane_of(number));
    } else {
      lane_of(number).down.wait_done();
    }
    {
      const MutexLock lock(mutex_);
      if (arrives) {
        sent_at(number).failure = std::move(failure);
        ++computed_;
      }
      note_over();
      start_waiting();
      if (engine_ != nullptr && taken_ < over_) engine_->wake();
    }
    changed_.notify_all();
  }
}

}  // namespace terrace
