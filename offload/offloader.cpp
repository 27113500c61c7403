#include <terrace/offload/offloader.h>

#include <algorithm>
#include <utility>

#include <terrace/offload/offloader_rooms.h>
#include <terrace/offload/state/restore.h>

namespace terrace {

Offloader::Offloader(const FlatSpace& space, const OffloadOptions& options, std::span<const TensorUse> trace,
                     Device& device, Workers& workers, Log& log, InstructionSet instruction_set)
    : rooms_(std::make_unique<OffloaderRooms>(space, options, trace, device, workers, log, instruction_set)) {
}

Offloader::~Offloader() = default;

const MemoryPlan& Offloader::plan() const {
  return rooms_->plan;
}
std::span<std::byte> Offloader::work_memory() {
  return rooms_->work_memory;
}
ActivationStore* Offloader::activations() {
  return rooms_->activations.get();
}
TrainingState& Offloader::state() {
  return rooms_->state;
}
const TrainingState& Offloader::state() const {
  return rooms_->state;
}
Commits& Offloader::commits() {
  return rooms_->commits;
}
const Commits& Offloader::commits() const {
  return rooms_->commits;
}
const OffloadReport& Offloader::report() const {
  return rooms_->report;
}
HostBudget& Offloader::budget() {
  return rooms_->budget;
}
const HostBudget& Offloader::budget() const {
  return rooms_->budget;
}
TimeAccount& Offloader::time() {
  return rooms_->account;
}

namespace {

void throw_failure_of(std::exception_ptr& failure) {
  if (failure != nullptr) std::rethrow_exception(std::exchange(failure, nullptr));
}

void change_trainable(const FlatSpace& space, TensorStates& states, TensorState to) {
  for (uint32_t t = 0; t < space.tensor_count(); ++t) {
    if (space.tensor(TensorId{t}).trainable && states.state(TensorId{t}) != to)
      states.change(TensorId{t}, to);
  }
}

}  // namespace

// --- Steps ---

void Offloader::begin_step() {
  OffloaderRooms& r = *rooms_;
  r.boundary.require_whole_or_updating("cannot begin a step with");
  r.commits.throw_failure();
  r.order.begin_step();
  r.boundary.begin_step();
  r.landings.begin_step();
  r.decisions.made(DecisionKind::step, ++r.step_count);
  r.training_cursor.begin_step();
  r.cursor = &r.training_cursor;
  r.recorder.begin_step();
}

// Called before the first gradient of a step lands. The update before is finished, so its state is whole for
// a commit, and the fresh parameters in gradient memory are given up.
void Offloader::begin_change() {
  OffloaderRooms& r = *rooms_;
  if (r.boundary.step_changes_state()) return;
  r.boundary.finish_update();
  r.blocks.forget_fresh();
  r.boundary.begin_change();
}

// An announced update begins when the last micro-batch of the step goes backward.
void Offloader::begin_early_update() {
  if (rooms_->order.last_micro_batch_is_open()) rooms_->early_update.begin();
}

void Offloader::select_micro_batch(uint32_t micro_batch) {
  OffloaderRooms& r = *rooms_;
  if (micro_batch == r.order.micro_batch()) return;
  r.order.require_selectable(micro_batch);
  throw_failure_of(r.landing_failure);
  const TimeScope managing(r.account, TimeCause::overhead);
  r.landings.land_open(r.order.micro_batch());
  r.order.select_micro_batch(micro_batch);
}

void Offloader::end_micro_batch() {
  OffloaderRooms& r = *rooms_;
  r.order.require_micro_batch("cannot end a micro-batch");
  throw_failure_of(r.landing_failure);
  r.watch.set_activity("the end of a micro-batch");
  begin_change();
  begin_early_update();
  if (r.options.layer_major) {
    r.landings.land_open(r.order.micro_batch());
    r.order.select_last_micro_batch();
  }
  r.landings.complete_unused(r.order.micro_batch());
  const uint64_t start = r.clock.now_ns();
  r.gradients->finish_micro_batch(r.order.last_micro_batch_is_open());
  if (r.early_update.takes_landings()) r.early_update.take_landed();
  r.counters.landing_wait_ns += r.clock.now_ns() - start;
  r.order.end_micro_batch();
  const bool more = r.order.micro_batch() < r.options.accumulation_steps;
  for (uint32_t t = 0; t < r.space.tensor_count(); ++t) {
    const TensorId tensor{t};
    const TensorState state = r.states.state(tensor);
    if (state == TensorState::hold || state == TensorState::updating) continue;
    if (state == TensorState::reducing && !more) continue;  // the update takes it
    r.states.change(tensor, TensorState::hold);
  }
  r.landings.begin_micro_batch();
}

UpdateResult Offloader::update(const UpdateSettings& settings) {
  OffloaderRooms& r = *rooms_;
  r.order.require_whole_step("cannot update");
  r.updates.require(settings);
  r.early_update.require_announced(settings);
  r.watch.set_activity("the update");
  const TimeScope updating(r.account, TimeCause::update);
  r.decisions.made(DecisionKind::update, r.step_count);
  const uint64_t start = r.clock.now_ns();
  const GradientNorm norm = r.gradients->norm();
  r.counters.norm_ns += r.clock.now_ns() - start;
  UpdateResult result{norm.norm(settings.loss_scale), norm.finite()};
  r.training_cursor.end_step();
  if (r.early_update.takes_landings()) {
    result.applied = r.early_update.end();
    result.partly_applied = r.early_update.is_partly_applied();
  } else if (result.applied) {
    r.updates.set_constants(settings, result.gradient_norm);
    r.blocks.drop_device_copies(StaleParams::trainable);
    change_trainable(r.space, r.states, TensorState::updating);
    r.updates.run(r.training_cursor.schedule());
  }
  if (result.applied) {
    r.gradients->end_displacement();
  } else {
    r.updates.wait();  // the states may have been read ahead
    r.landings.drop();
    restore_displaced_parameters(r.blocks, r.counters);
  }
  const bool is_over = !r.updates.is_running();
  if (is_over) change_trainable(r.space, r.states, TensorState::hold);
  r.boundary.end_step(is_over && !result.partly_applied);
  r.order.end_step();
  r.counters.update_ns += r.clock.now_ns() - start;
  if (!r.training_cursor.schedule().empty()) r.fetches.fetch_ahead(r.training_cursor.schedule(), kNever, {});
  return result;
}

void Offloader::abandon_step() {
  OffloaderRooms& r = *rooms_;
  r.order.require_step_between_uses("cannot abandon a step");
  throw_failure_of(r.landing_failure);
  begin_change();
  r.gradients->finish_micro_batch(r.order.last_micro_batch_is_open());
  r.updates.wait();
  r.landings.drop();
  restore_displaced_parameters(r.blocks, r.counters);
  for (uint32_t t = 0; t < r.space.tensor_count(); ++t) {
    if (r.states.state(TensorId{t}) != TensorState::hold) r.states.change(TensorId{t}, TensorState::hold);
  }
  const bool is_whole = !r.early_update.is_partly_applied();
  r.landings.begin_step();
  r.boundary.end_step(is_whole);
  r.order.end_step();
}

void Offloader::wait_for_copies() const noexcept {
  rooms_->cache.drain();
}

bool Offloader::has_whole_state() const {
  return rooms_->order.nothing_is_open() && rooms_->custody.is_whole();
}

// --- Updates ---

void Offloader::set_update_mode(UpdateMode mode) {
  OffloaderRooms& r = *rooms_;
  r.order.require_nothing_open("cannot set the update mode of");
  require_mode(mode, r.space, r.plan, r.options);
  r.boundary.finish_update();
  r.updates.set_mode(mode);
}

UpdateMode Offloader::update_mode() const {
  return rooms_->updates.mode();
}

std::string Offloader::why_not(UpdateMode mode) const {
  return terrace::why_not(mode, rooms_->space, rooms_->plan, rooms_->options);
}

void Offloader::announce_update(const UpdateSettings& settings) {
  rooms_->order.require_micro_batch("cannot announce an update");
  rooms_->early_update.announce(settings);
}

void Offloader::finish_update() {
  rooms_->watch.set_activity("the end of an update");
  rooms_->boundary.finish_update();
}

bool Offloader::update_pending() const {
  return rooms_->updates.is_running();
}

// --- Evaluations ---

void Offloader::begin_evaluation() {
  OffloaderRooms& r = *rooms_;
  static_cast<void>(r.boundary.whole("cannot evaluate"));
  r.decisions.made(DecisionKind::evaluation, ++r.evaluation_count);
  r.order.begin_evaluation();
  r.evaluation_cursor.begin_step();
  r.cursor = &r.evaluation_cursor;
}

void Offloader::end_evaluation() {
  rooms_->order.end_evaluation();
  rooms_->evaluation_cursor.end_step();
}

// --- Uses ---

void Offloader::begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) {
  OffloaderRooms& r = *rooms_;
  r.order.require_use(operation, kind);
  fetch_for_use(operation, tensors, kind);
  r.recorder.begin_use(r.use, r.order.micro_batch());
  r.account.enter(TimeCause::compute);
  r.order.begin_use(r.use.operation, kind);
}

void Offloader::fetch_for_use(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) {
  OffloaderRooms& r = *rooms_;
  const TimeScope managing(r.account, TimeCause::overhead);
  throw_failure_of(r.landing_failure);
  r.decisions.made({DecisionKind::use, 0, operation});
  r.use.operation = operation;
  r.use.kind = kind;
  r.use.tensors.assign(tensors.begin(), tensors.end());
  r.cache.set_last_operation(r.use.operation);
  r.watch.set_activity(r.use.operation);
  collect_chunks(r.space, r.use.tensors, r.use.chunks);
  r.cursor->advance(r.use.operation, kind, r.use.chunks, r.landings.slots_with(r.use));
  if (kind == UseKind::backward) {
    begin_change();
    begin_early_update();
  }
  r.fetches.fetch_missing(r.use, r.now());
  if (kind == UseKind::backward)
    r.landings.open(r.use, r.order.micro_batch(),
                    [&r]() -> CacheSlot& { return r.fetches.require_slot("gradients", r.use, r.now()); });
  if (r.cursor->position() != kNever)
    r.fetches.fetch_ahead(r.cursor->schedule(), r.cursor->position(), r.use.chunks);
  r.fetches.wait_for_chunks(r.use);
  for (const TensorId tensor : r.use.tensors) r.states.change(tensor, TensorState::compute);
}

void Offloader::end_use() {
  OffloaderRooms& r = *rooms_;
  r.order.end_use();
  r.account.leave();
  r.recorder.end_use();
  const TimeScope managing(r.account, TimeCause::overhead);
  const TensorState released = r.use.kind == UseKind::forward    ? TensorState::hold_after_forward
                               : r.use.kind == UseKind::backward ? TensorState::hold_after_backward
                                                                 : TensorState::hold;
  for (const TensorId tensor : r.use.tensors) r.states.change(tensor, released);
  for (const ChunkId chunk : r.use.chunks) r.cache.unpin_param(chunk);
  try {
    if (r.use.kind == UseKind::backward) r.landings.close(r.use, r.order.micro_batch());
    r.gradients->poll();
    if (r.early_update.takes_landings()) r.early_update.take_landed();
  } catch (...) {
    r.landing_failure = std::current_exception();
  }
}

const std::byte* Offloader::parameter(TensorId tensor) const {
  const OffloaderRooms& r = *rooms_;
  r.order.require_leased(tensor, r.use.tensors);
  return r.cache.param_base() + r.byte_offset(tensor);
}

GradientView Offloader::gradient(TensorId tensor) {
  OffloaderRooms& r = *rooms_;
  r.order.require_gradient(tensor, r.use.tensors);
  return {r.cache.gradient_base() + r.byte_offset(tensor), r.landings.has_gradient(tensor)};
}

}  // namespace terrace
