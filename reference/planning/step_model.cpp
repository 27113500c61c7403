#include <terrace/reference/planning/step_model.h>

#include <algorithm>
#include <deque>
#include <unordered_map>
#include <utility>

#include <terrace/memory/space/chunk_shards.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/reference/planning/step_disk.h>
#include <terrace/reference/planning/step_lines.h>
#include <terrace/reference/planning/training_schedule.h>

namespace terrace {
namespace {

using Kind = RecordedEvent::Kind;

}  // namespace

class StepModel::Replay {
 public:
  explicit Replay(const StepModelInput& input)
      : in_(input),
        space_(input.setup.tensors, input.setup.plan.chunk_elements),
        threads_(static_cast<double>(input.times.rates.thread_count)),
        device_(input.times.rates.device ? &*input.times.rates.device : nullptr),
        in_link_(device_ != nullptr ? device_->link.to_device : input.times.rates.copy_bytes),
        out_link_(device_ != nullptr ? device_->link.to_host : input.times.rates.copy_bytes),
        shards_(space_, input.setup.offload.rank, input.setup.offload.ranks),
        ranks_line_(rank_links(input.times.rates, input.config), input.config.batch),
        passes_engine_(engine_of_passes(input.setup)),
        updated_at_(space_.chunk_count(), 0) {
    const std::vector<uint64_t> elements = elements_of_uses(*input.setup.model, input.setup.dry.trace);
    for (size_t u = 0; u < elements.size(); ++u)
      times_.push_back(input.times.operation_time(input.setup.dry.trace[u].operation, elements[u]));
    for (const Section& section : space_.sections()) {
      if (section.trainable && !has_ranks()) trainable_elements_ += static_cast<double>(section.elements);
    }
    const std::vector<bool>& on_device = input.setup.plan.memory.device_side;
    for (uint32_t c = 0; c < space_.chunk_count(); ++c) {
      if (on_device[c]) device_elements_ += own_elements(ChunkId{c});
      if (has_ranks() && space_.section_of(ChunkId{c}).trainable)
        trainable_elements_ += own_elements(ChunkId{c});
    }
  }

  StepSeconds run(const PlannedStep& step) {
    seconds_ = {};
    in_link_.busy = out_link_.busy = 0;
    passes_read_bytes_ = 0;
    find_targets(step.events);
    for (size_t e = 0; e < step.events.size(); ++e) take(step, e);
    seconds_.copy_in_busy += in_link_.busy;
    seconds_.copy_out_busy += out_link_.busy;
    seconds_.ranks = ranks_line_.take_use();
    return seconds_;
  }

 private:
  bool has_ranks() const { return shards_.count() > 1; }
  // Those that this rank updates.
  double own_elements(ChunkId chunk) const {
    return static_cast<double>(has_ranks() ? shards_.elements(chunk) : space_.chunk(chunk).elements);
  }

  // --- The step thread, and the device beside it ---

  // When both have come to the end of what they have begun.
  double reached() const { return std::max(now_, operations_end_); }
  // What that is later than it was before is due to `cause`.
  void charge(TimeCause cause) {
    const double until = reached();
    seconds_.parts[cause] += static_cast<uint64_t>((until - charged_until_) * 1e9);
    charged_until_ = until;
  }
  void spend(double seconds, TimeCause cause) {
    now_ += seconds;
    charge(cause);
  }
  void wait_until(double time, TimeCause cause) {
    if (time > now_) spend(time - now_, cause);
  }
  // All threads compute; what runs beside them takes its part of the processor.
  void compute(double seconds, TimeCause cause) {
    const double beside = std::min(beside_, seconds);
    beside_ -= beside;
    seconds_.processor_busy += seconds;
    spend(seconds + beside / threads_, cause);
  }
  // Where the model's operations are computed.
  void operate(double seconds, TimeCause cause) {
    if (device_ == nullptr) return compute(seconds, cause);
    operations_end_ = reached() + seconds;
    seconds_.device_busy += seconds;
    charge(cause);
  }

  // --- Links ---

  // What an update puts on the device leaves while it goes on; copies of a simulated one take threads of it.
  double asked_at() const {
    if (!in_update_ || in_.setup.offload.parameters != Placement::none) return now_;
    return device_ != nullptr ? update_began_ : phase_began_;
  }
  double copy(LinkLine& link, const LinkLine& other, uint64_t bytes, double earliest) {
    double seconds = quotient(static_cast<double>(bytes), link.rate);
    const double begin = std::max({asked_at(), link.free_at, earliest});
    if (device_ == nullptr) {
      beside_ += seconds;
    } else {
      seconds = beside_other(device_->link, seconds, other.free_at - begin);
    }
    link.free_at = begin + seconds;
    link.busy += seconds;
    return link.free_at;
  }
  double disk(uint64_t bytes, double rate) {
    const double seconds = quotient(static_cast<double>(bytes), rate);
    disk_free_at_ = std::max(now_, disk_free_at_) + seconds;
    seconds_.disk_busy += seconds;
    return seconds;
  }

  // Which chunk each copy is of: the one at whose addresses the slot is used next.
  void find_targets(const std::deque<RecordedEvent>& events) {
    target_of_copy_.clear();
    std::unordered_map<uint32_t, uint32_t> next;  // by slot
    for (size_t e = events.size(); e-- > 0;) {
      const RecordedEvent& event = events[e];
      if (event.kind == Kind::attach) next[event.number] = static_cast<uint32_t>(event.amount);
      if (event.kind != Kind::copy_in && event.kind != Kind::read_in) continue;
      const auto found = next.find(event.number);
      if (found != next.end() && found->second < updated_at_.size()) target_of_copy_[e] = found->second;
    }
  }

  void take(const PlannedStep& step, size_t index) {
    const RecordedEvent& event = step.events[index];
    switch (event.kind) {
      case Kind::begin_use:
        return begin_use(event.number);
      case Kind::ready:
        return operate(times_[event.number].leased_seconds, TimeCause::compute);
      case Kind::end_use:
        rest_ = times_[event.number].after_seconds;
        return;
      case Kind::copy_in:
        return copy_in(event, index);
      case Kind::copy_out:
        return copy_out(event, step.events[index + 1].kind == Kind::gather);
      case Kind::attach:
        wait_for_slot(slots_[event.number]);
        return spend(in_.times.rates.chunk_seconds, TimeCause::overhead);
      case Kind::detach:
        slots_[event.number].used_until = operations_end_;
        return;
      case Kind::clear:
        return clear(event.amount);
      case Kind::work_in:
        copy(in_link_, out_link_, event.amount, operations_end_);
        return;
      case Kind::work_out:
        if (comes_of_exchange(step.events, index)) return;  // behind it
        copy(out_link_, in_link_, event.amount, operations_end_);
        return;
      case Kind::read_in:
        if (step.events[index + 1].kind == Kind::gather) return;  // they fill it
        return read_in(event, index);
      case Kind::gather:
        return gather(step, index);
      case Kind::exchange:
        return exchange(step, index);
      case Kind::between:
        return;
      case Kind::read:
        return read(event);
      case Kind::write:
        return write(event);
      case Kind::end_forward:
        return end_forward();
      case Kind::begin_backward:
        return begin_backward();
      case Kind::end_micro_batch:
        return end_micro_batch();
      case Kind::begin_update:
        return begin_update(step);
      case Kind::end_step:
        in_update_ = false;
        return;
    }
  }

  void begin_use(uint32_t use) {
    compute_rest();
    land_what_is_there();
    if (in_.setup.dry.trace[use].kind != UseKind::backward || in_backward_) return;
    turn_backward();
  }
  void turn_backward() {
    in_backward_ = true;
    loss_known_at_ = operations_end_;
    wait_until(update_ends_at_, TimeCause::update);  // gradients are about to land
    seconds_.forward += end_phase();
  }
  // The passes of a stage, whose order is not that of one micro-batch after the other.
  void end_forward() {
    compute_rest();
    seconds_.passes.push_back(end_phase());
    seconds_.forward += seconds_.passes.back();
  }
  void begin_backward() {
    const double before = seconds_.forward;
    turn_backward();
    // What it has waited for is a part of its own time.
    backward_waited_ = seconds_.forward - before;
  }
  // What follows a use and needs no tensors.
  void compute_rest() {
    operate(rest_, TimeCause::compute);
    rest_ = 0;
  }
  double end_phase() { return reached() - std::exchange(phase_began_, reached()); }

  void clear(uint64_t bytes) {
    const double rate = device_ != nullptr ? device_->clear_bytes : in_.times.rates.clear_bytes;
    operate(quotient(static_cast<double>(bytes), rate), TimeCause::overhead);
  }
  void copy_in(const RecordedEvent& event, size_t index) {
    SlotTimes& slot = slots_[event.number];
    double earliest = ready_to_fill(slot, index);
    slot.behind_read = reads_pending_;
    slot.behind_ranks = slot.behind_ranks && slot.free_at > now_;  // what has crossed is copied behind it
    if (reads_pending_) earliest = std::max(earliest, disk_free_at_);
    reads_pending_ = false;
    slot.free_at = copy(in_link_, out_link_, event.amount, earliest);
  }
  // The shares of the others come behind the own one.
  void gather(const PlannedStep& step, size_t index) {
    SlotTimes& slot = slots_[step.events[index - 1].number];
    slot.free_at =
        ranks_line_.gather(step.events, index, std::max({asked_at(), slot.free_at, slot.used_until}));
    slot.behind_ranks = true;
    beside_ += ranks_line_.copied();
  }
  // Once it has left and is not used any more, and an update has made what it is going to hold.
  double ready_to_fill(const SlotTimes& slot, size_t index) const {
    const double unused_at = std::max(slot.free_at, slot.used_until);
    const auto target = target_of_copy_.find(index);
    return target == target_of_copy_.end() ? unused_at : std::max(unused_at, updated_at_[target->second]);
  }
  // Past the host: the disk's time and no other.
  void read_in(const RecordedEvent& event, size_t index) {
    SlotTimes& slot = slots_[event.number];
    const auto target = target_of_copy_.find(index);
    const uint64_t bytes = target == target_of_copy_.end() ? event.amount
                                                           : space_.chunk(ChunkId{target->second}).elements *
                                                                 bytes_of(in_.config.precision);
    disk_free_at_ = std::max(disk_free_at_, ready_to_fill(slot, index));
    passes_read_bytes_ += bytes;
    disk(bytes, in_.times.rates.disk_read_bytes);
    slot.behind_read = true;
    slot.free_at = disk_free_at_;
  }

  void copy_out(const RecordedEvent& event, bool is_for_gather) {
    SlotTimes& slot = slots_[event.number];
    slot.free_at = copy(out_link_, in_link_, event.amount, std::max(slot.free_at, slot.used_until));
    // New parameters that go home: the update goes on when they are there.
    if (device_ != nullptr && in_update_) return wait_until(slot.free_at, TimeCause::device_copy);
    if (is_for_gather) return;
    if (has_ranks()) {
      leave_at_ = std::max(leave_at_, slot.free_at);
      return;
    }
    landings_.push_back({slot.free_at, static_cast<double>(event.amount / bytes_of(in_.config.precision))});
  }
  // What has left the device goes to its owners, and the own part comes from all that have a micro-batch.
  void exchange(const PlannedStep& step, size_t index) {
    const StepRounds rounds = in_.config.batch.rounds();
    const double senders = static_cast<double>(rounds.micro_batches) / rounds.count();
    double at = ranks_line_.exchange(step.events, index, std::max(now_, leave_at_));
    if (comes_of_exchange(step.events, index + 2))
      at = copy(out_link_, in_link_, step.events[index + 2].amount, at);
    landings_.push_back({at, own_elements(ChunkId{step.events[index].number}) * senders});
    beside_ += ranks_line_.copied();
    leave_at_ = 0;
  }

  void wait_for_slot(SlotTimes& slot) {
    const TimeCause by_disk = slot.behind_read ? TimeCause::read : TimeCause::device_copy;
    wait_until(slot.free_at, slot.behind_ranks ? TimeCause::ranks : by_disk);
  }

  void read(const RecordedEvent& event) {
    if (event.number != passes_engine_) return;  // the update's, which is modelled as a whole
    passes_read_bytes_ += event.amount;
    const double seconds = disk(event.amount, in_.times.rates.disk_read_bytes);
    if (update_ends_at_ > now_) update_ends_at_ += seconds;  // they share the disk
    reads_pending_ = true;
  }
  void write(const RecordedEvent& event) {
    if (event.number == passes_engine_) disk(event.amount, in_.times.rates.disk_mixed_bytes);
  }

  // --- Gradients ---

  void land(const Landing& landing) {
    const bool accumulates = in_.config.batch.micro_batches > 1;
    const double rate = accumulates ? in_.times.rates.accumulate_elements : in_.times.rates.sum_elements;
    compute(quotient(landing.elements, rate), TimeCause::compute);
  }
  void land_what_is_there() {
    while (!landings_.empty() && landings_.front().at <= now_) {
      land(landings_.front());
      landings_.pop_front();
    }
  }
  void end_micro_batch() {
    compute_rest();
    now_ = std::max(now_, loss_known_at_);
    for (; !landings_.empty(); landings_.pop_front()) {
      wait_until(landings_.front().at, has_ranks() ? TimeCause::ranks : TimeCause::device_copy);
      land(landings_.front());
    }
    const bool adds_up = in_.config.batch.micro_batches > 1;
    if (rests_on_device() && adds_up)
      operate(quotient(trainable_elements_, device_->accumulate_elements), TimeCause::compute);
    const double backward = end_phase();
    seconds_.backward += backward;
    if (in_.setup.model->config().part)
      seconds_.passes.push_back(backward + std::exchange(backward_waited_, 0.0));
    in_backward_ = false;
  }
  // Gradients and states are where the device computes, and no thread of the host touches them.
  bool rests_on_device() const { return device_ != nullptr && in_.setup.offload.states == Placement::none; }

  // --- The update ---

  // What its arithmetic takes of one thread, or of all of them where records are in memory.
  struct UpdateWork {
    double disk = 0;
    double alone = 0;     // on one thread: what streams
    double together = 0;  // on all threads; the simulated device computes on them too
    double there = 0;     // on a device that computes beside them
    double up = 0;        // to the device, of what is updated there,
    double down = 0;      // and back
    double copies() const { return std::max(up, down); }
    double arithmetic() const { return alone + together; }
    double seconds() const { return std::max({disk, arithmetic(), there, copies()}); }
  };
  UpdateWork update_work(const OffloadCounters& moved) const {
    UpdateWork work;
    work.disk = quotient(static_cast<double>(update_disk_bytes(moved, passes_read_bytes_)),
                         in_.times.rates.disk_mixed_bytes);
    const double tile_bytes = static_cast<double>(in_.setup.plan.memory.record_layout.tile_bytes());
    const double streamed = static_cast<double>(moved.record_read_bytes) / tile_bytes * kTileElements;
    const bool hashes = in_.setup.offload.verify_checksums || in_.setup.plan.memory.keeps_commits;
    work.alone = quotient(streamed, in_.times.rates.update_elements);
    // What streams and what rests in memory is spread evenly over both sides.
    const double share = trainable_elements_ > 0 ? device_elements_ / trainable_elements_ : 0;
    work.alone *= 1 - share;
    const double resident = (trainable_elements_ - streamed) * (1 - share);
    if (device_ != nullptr) work.there = quotient(device_elements_, device_->update_elements);
    work.together = quotient(resident + (device_ != nullptr ? 0 : device_elements_),
                             in_.times.rates.update_together_elements);
    if (hashes)
      work.alone += quotient(static_cast<double>(moved.record_read_bytes + moved.record_write_bytes),
                             in_.times.rates.checksum_bytes);
    add_copies(work);
    return work;
  }
  // As DeviceLanes has them.
  void add_copies(UpdateWork& work) const {
    const OffloadOptions& options = in_.setup.offload;
    const DataType summed = accumulates(options) ? options.accumulation_type : in_.config.precision;
    const auto parameter = static_cast<double>(bytes_of(in_.config.precision));
    const auto gradient = static_cast<double>(bytes_of(summed));
    const double record = static_cast<double>(options.record_layout.tile_bytes()) / kTileElements;
    const bool made_there = options.parameters == Placement::none && in_.mode == UpdateMode::after_backward;
    const double parameters = made_there ? 0 : parameter;
    const bool has_old = options.record_layout.master == MasterForm::remainder;
    // Both directions are busy all the time.
    const double both = device_ != nullptr ? device_->link.each_way : in_.times.rates.copy_bytes;
    work.up = quotient(device_elements_ * (record + gradient + (has_old ? parameters : 0)), both);
    work.down = quotient(device_elements_ * (record + parameters), both);
    if (device_ == nullptr) work.together += (work.up + work.down) / threads_;
  }

  void begin_update(const PlannedStep& step) {
    in_update_ = true;
    if (has_ranks()) spend(ranks_line_.ballot(), TimeCause::ranks);  // the norm is a sum over all of them
    update_began_ = now_;
    if (rests_on_device()) return update_there();
    const UpdateWork work = update_work(step.moved);
    // Where records stream, arithmetic fills the time of the disk.
    seconds_.disk_busy += work.disk;
    seconds_.copy_in_busy += work.up;
    seconds_.copy_out_busy += work.down;
    seconds_.device_busy += work.there;
    seconds_.processor_busy += work.arithmetic();
    if (in_.mode == UpdateMode::next_forward) {
      begin_update_beside(step, work);
    } else {
      const double left = work.seconds() - hidden_seconds(work);
      const double arithmetic = std::min(work.arithmetic(), left);
      spend(arithmetic, TimeCause::update);
      spend(left - arithmetic, waits_for(work));
    }
    seconds_.update += end_phase();
  }
  // For what the update takes longer than the threads' arithmetic.
  static TimeCause waits_for(const UpdateWork& work) {
    if (work.there > std::max(work.copies(), work.disk)) return TimeCause::update;
    return work.copies() > work.disk ? TimeCause::device_copy : TimeCause::read;
  }
  // The step thread waits for the norm, and for nothing else.
  void update_there() {
    operate(quotient(trainable_elements_, device_->sum_elements), TimeCause::update);
    now_ = reached();
    operate(quotient(trainable_elements_, device_->update_elements), TimeCause::update);
    seconds_.update += end_phase();
  }

  double hidden_seconds(const UpdateWork& work) const {
    if (in_.mode != UpdateMode::during_backward) return 0;
    // The processor that computes backward cannot update meanwhile; beside a device it can.
    const bool all = device_ != nullptr && lands_to_stay();
    return std::min(work.seconds() - (all ? 0 : work.arithmetic()), hidden_in_backward());
  }
  // Gradients can be applied as they land.
  bool lands_to_stay() const {
    return in_.config.gradient_clipping == 0 && in_.config.precision != DataType::fp16;
  }
  // The disk's time that a backward pass covers: as gradients land, or what fills the ring before the norm.
  double hidden_in_backward() const {
    const double pass = seconds_.backward / in_.config.batch.rounds().count();
    if (lands_to_stay()) return pass;
    const MemoryPlan& plan = in_.setup.plan.memory;
    const double ring = static_cast<double>(plan.ring_slots * plan.ring_slot_bytes) / 2;
    return std::min(pass, quotient(ring, in_.times.rates.disk_mixed_bytes));
  }

  // In forward order; each chunk is there when its part of the work is over.
  void begin_update_beside(const PlannedStep& step, const UpdateWork& work) {
    const double seconds = work.seconds();
    double done = 0;
    for (const ChunkId chunk : step.update_order) {
      done += own_elements(chunk);
      updated_at_[index_of(chunk)] = now_ + seconds * done / trainable_elements_;
    }
    update_ends_at_ = now_ + seconds;
    beside_ += work.alone + work.together * threads_;
  }

  const StepModelInput in_;
  const FlatSpace space_;
  const double threads_;
  const DeviceRates* const device_;  // null: it is simulated by these threads
  LinkLine in_link_, out_link_;
  const ChunkShards shards_;
  RankLine ranks_line_;
  double leave_at_ = 0;  // gradients have left the device and are for the ranks
  const uint32_t passes_engine_;
  std::vector<OperationTime> times_;  // by use
  double trainable_elements_ = 0;
  double device_elements_ = 0;  // of these, updated on the device though their states are below it

  double now_ = 0, phase_began_ = 0;
  double rest_ = 0;    // to be computed before the next use
  double beside_ = 0;  // seconds of one thread that copies and updates still take beside the operations
  double operations_end_ = 0;  // of those that a device has been asked for
  double charged_until_ = 0;
  double loss_known_at_ = 0;
  double backward_waited_ = 0;  // before it began
  double update_began_ = 0;
  double disk_free_at_ = 0;
  bool reads_pending_ = false;  // the next copy comes behind them
  bool in_backward_ = false;
  bool in_update_ = false;
  uint64_t passes_read_bytes_ = 0;  // by forward and backward of this step
  double update_ends_at_ = 0;
  std::unordered_map<uint32_t, SlotTimes> slots_;
  std::unordered_map<size_t, uint32_t> target_of_copy_;
  std::deque<Landing> landings_;
  std::vector<double> updated_at_;  // by chunk
  StepSeconds seconds_;
};

StepModel::StepModel(const StepModelInput& input) : replay_(std::make_unique<Replay>(input)) {}

StepModel::~StepModel() = default;

StepSeconds StepModel::next(const PlannedStep& step) {
  return replay_->run(step);
}

}  // namespace terrace
