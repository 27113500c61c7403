#include <terrace/offload/offloader.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/offload/offloader_rooms.h>
#include <terrace/offload/state/restore.h>

namespace terrace {

Offloader::Offloader(const FlatSpace& space, const OffloadOptions& options, std::span<const TensorUse> trace,
                     Device& device, Workers& workers, Log& log, InstructionSet instruction_set)
    : rooms_(std::make_unique<OffloaderRooms>(space, options, trace, device, workers, log, instruction_set)) {
  if (rooms_->custody.is_whole()) rooms_->gathers->end_load();  // of a commit
}

Offloader::~Offloader() = default;
bool Offloader::nothing_is_open() const {
  return rooms_->order.nothing_is_open();
}
void Offloader::end_with_ranks() noexcept {
  rooms_->end_with_ranks();
}

const MemoryPlan& Offloader::plan() const {
  return rooms_->plan;
}
std::span<std::byte> Offloader::work_memory() {
  return rooms_->work_memory;
}
ActivationStore* Offloader::activations() {
  return rooms_->activations.get();
}
SavedActivations* Offloader::saved_activations() {
  return rooms_->saved.get();
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
StepWatch& Offloader::watch() {
  return rooms_->watch;
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

bool is_updated(const OffloaderRooms& r, TensorId tensor) {
  const TensorPlace& place = r.space.place(tensor);
  for (uint32_t i = 0; i < place.chunk_count; ++i) {
    if (r.updates.is_updated(ChunkId{place.first_chunk + i})) return true;
  }
  return false;
}

void begin_updating(OffloaderRooms& r) {
  for (uint32_t t = 0; t < r.space.tensor_count(); ++t) {
    if (is_updated(r, TensorId{t})) r.states.change(TensorId{t}, TensorState::updating);
  }
}

void count_steps(OffloaderRooms& r) {
  if (!r.steps.are_counted()) return;
  for (uint32_t t = 0; t < r.space.tensor_count(); ++t) {
    if (r.runs.has_gradient(TensorId{t})) r.steps.note_update(TensorId{t});
  }
}
}  // namespace

void Offloader::move_caller_tensor(TensorId tensor, std::byte* address) {
  OffloaderRooms& r = *rooms_;
  r.order.require_tensor("cannot move the parameters of", tensor);
  r.boundary.require_rest("cannot move the parameters of");
  r.params.callers().move(tensor, address);
}

// --- Steps ---

void Offloader::begin_step() {
  OffloaderRooms& r = *rooms_;
  r.boundary.require_whole_or_updating("cannot begin a step with");
  r.commits.throw_failure();
  r.order.begin_step();
  r.boundary.begin_step();
  r.landings.begin_step();
  r.gradients->begin_step();
  r.decisions.made(DecisionKind::step, ++r.step_count);
  r.gathers->begin_step(r.step_count);
  if (r.saved != nullptr) r.saved->begin_step();
  (r.cursor = &r.training_cursor)->begin_step();
  r.recorder.begin_step();
}

// Called before the first gradient of a step lands. The update before is finished, so its state is whole for
// a commit, and the fresh parameters in gradient memory are given up.
void Offloader::begin_change() {
  OffloaderRooms& r = *rooms_;
  if (r.boundary.step_changes_state()) return;
  r.boundary.finish_update();
  r.blocks.forget_fresh();
  if (r.pulls != nullptr) r.pulls->begin_step();
  r.boundary.begin_change();
  r.gradients->allow_step();
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
  try {
    throw_failure_of(r.landing_failure);
    finish_micro_batch();
  } catch (const std::exception& failure) {
    r.leave_ranks(failure);
    throw;
  }
}

void Offloader::finish_micro_batch() {
  OffloaderRooms& r = *rooms_;
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
  const bool more = r.order.micro_batch() < rounds_of(r.options).count();
  for (uint32_t t = 0; t < r.space.tensor_count(); ++t) {
    const TensorId tensor{t};
    const TensorState state = r.states.state(tensor);
    if (state == TensorState::hold || state == TensorState::updating) continue;
    if (state == TensorState::reducing && !more) continue;  // the update takes it
    r.states.change(tensor, TensorState::hold);
  }
  r.landings.begin_micro_batch();
}

void Offloader::compare_ranks(uint64_t step) {
  rooms_->order.require_whole_step("cannot compare the ranks of");
  rooms_->gathers->compare(step);
}

ExactSum Offloader::gradient_squares() const {
  return rooms_->squares_of_all();
}

UpdateResult Offloader::update(const UpdateSettings& settings) {
  OffloaderRooms& r = *rooms_;
  r.order.require_whole_step("cannot update");
  r.updates.require(settings);
  r.early_update.require_announced(settings);
  try {
    return run_update(settings);
  } catch (const std::exception& failure) {
    r.leave_ranks(failure);
    throw;
  }
}

UpdateResult Offloader::run_update(const UpdateSettings& settings) {
  OffloaderRooms& r = *rooms_;
  r.watch.set_activity("the update");
  const TimeScope updating(r.account, TimeCause::update);
  r.decisions.made(DecisionKind::update, r.step_count);
  const uint64_t start = r.clock.now_ns();
  r.gathers->finish_reads();
  r.gradients->agree(StepEnd::update, r.runs, r.run);
  const GradientNorm norm = r.norm_of_all(settings);
  r.counters.norm_ns += r.clock.now_ns() - start;
  // Where ranks cannot update together the step ends without an update, as one that overflows does.
  UpdateResult result{norm.norm(settings.loss_scale), norm.finite() && !r.difference};
  r.training_cursor.end_step();
  if (r.early_update.takes_landings()) {
    result.applied = r.early_update.end() && result.applied;
    // A rank whose own gradients are finite has updated them.
    result.partly_applied = r.early_update.is_partly_applied() || (!result.applied && r.has_others());
  } else if (result.applied) {
    r.updates.set_constants(settings, result.gradient_norm);
    r.blocks.drop_device_copies(StaleParams::trainable);
    begin_updating(r);
    r.gathers->begin_update();
    r.updates.run(r.training_cursor.schedule());
  }
  if (result.applied) {
    count_steps(r);
    r.gradients->end_displacement();
  } else {
    r.updates.wait();  // the states may have been read ahead
    r.landings.drop();
    restore_displaced_parameters(r.blocks, r.counters);
  }
  const bool is_over = !r.updates.is_running();
  r.gathers->end_update([&](ChunkId chunk) { return !is_over && r.updates.is_updated(chunk); });
  if (is_over) r.gradients->allow_step();
  if (is_over) change_trainable(r.space, r.states, TensorState::hold);
  r.boundary.end_step(is_over && !result.partly_applied);
  r.order.end_step();
  r.counters.update_ns += r.clock.now_ns() - start;
  if (!r.training_cursor.schedule().empty()) r.fetches.fetch_ahead(r.training_cursor.schedule(), kNever, {});
  if (r.difference) throw *r.difference;
  return result;
}

// Where ranks pull, a step that has nothing to say to the others yet is this rank's own.
void Offloader::abandon_step() {
  OffloaderRooms& r = *rooms_;
  r.order.require_step_between_uses("cannot abandon a step");
  throw_failure_of(r.landing_failure);
  if (r.pulls != nullptr && !r.boundary.step_changes_state()) {
    r.boundary.finish_update();
    r.landings.begin_step();
    return r.order.end_step();
  }
  begin_change();
  r.gradients->give_up(r.order.last_micro_batch_is_open());
  r.gradients->agree(StepEnd::give_up, r.runs, r.run);
  r.updates.wait();
  r.landings.drop();
  restore_displaced_parameters(r.blocks, r.counters);
  for (uint32_t t = 0; t < r.space.tensor_count(); ++t) {
    if (r.states.state(TensorId{t}) != TensorState::hold) r.states.change(TensorId{t}, TensorState::hold);
  }
  // Where the update has begun, another rank may have applied a part of it.
  const bool is_whole =
      !r.early_update.is_partly_applied() && !(r.early_update.takes_landings() && r.options.ranks > 1);
  r.landings.begin_step();
  r.boundary.end_step(is_whole);
  r.order.end_step();
  r.gradients->allow_step();
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
  begin_lease(operation, tensors, kind);
}

uint64_t Offloader::begin_lease(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) {
  OffloaderRooms& r = *rooms_;
  r.order.require_use(operation, kind);
  OpenUse& use = r.leases.begin(operation, tensors, kind);
  try {
    const TimeScope managing(r.account, TimeCause::overhead);
    throw_failure_of(r.landing_failure);
    r.landings.require_usable(use.operation, use.tensors, kind, r.order.micro_batch());
    fetch_for_use(use);
  } catch (const std::exception& failure) {
    r.leases.end(use);
    r.leave_ranks(failure);
    throw;
  }
  r.recorder.begin_use(use, r.order.micro_batch());
  if (r.leases.is_only(use)) r.account.enter(TimeCause::compute);
  r.order.begin_use(use.operation);
  return use.number;
}

// A use that cannot begin leaves nothing pinned.
void Offloader::fetch_for_use(OpenUse& use) {
  OffloaderRooms& r = *rooms_;
  r.decisions.made({DecisionKind::use, 0, use.operation});
  r.cache.set_last_operation(use.operation);
  r.watch.set_activity(use.operation);
  r.cursor->advance(use.operation, use.kind, r.leases.chunks(), r.landings.slots_with(use));
  const bool goes_backward = use.kind == UseKind::backward;
  if (goes_backward) {
    begin_change();
    begin_early_update();
  }
  if (!r.fetches.are_there(use)) r.gradients->ask();
  r.fetches.pin(use);
  bool is_open = false;
  try {
    r.fetches.fetch_missing(use, r.now());
    if (goes_backward)
      r.landings.open(use, [&]() -> CacheSlot& { return r.fetches.require_slot("gradients", use, r.now()); });
    is_open = goes_backward;
    if (r.cursor->position() != kNever)
      r.fetches.fetch_ahead(r.cursor->schedule(), r.cursor->position(), r.leases.chunks());
    r.fetches.wait_for_chunks(use);
  } catch (...) {
    if (is_open) r.landings.give_up(use);
    r.fetches.unpin(use);
    throw;
  }
  for (const TensorId tensor : use.tensors) {
    if (r.states.state(tensor) != TensorState::compute) r.states.change(tensor, TensorState::compute);
  }
}

void Offloader::end_use() {
  rooms_->order.require_use_to_end();
  end_use(rooms_->leases.youngest());
}

void Offloader::end_lease(uint64_t number) {
  rooms_->order.require_use_to_end();
  OpenUse* const use = rooms_->leases.find(number);
  if (use == nullptr)
    throw Error(ErrorKind::misuse, {"cannot end a lease", fmt::format("number {}", number), "it is not open",
                                    "end every lease once, by the number of its begin"});
  end_use(*use);
}

void Offloader::end_use(OpenUse& use) {
  OffloaderRooms& r = *rooms_;
  if (r.leases.is_only(use)) r.account.leave();
  r.recorder.end_use(use);
  const TimeScope managing(r.account, TimeCause::overhead);
  r.leases.end(use);
  r.order.end_use(r.leases.operation());
  for (const auto [tensor, kind] : r.leases.released()) {
    r.states.change(tensor, kind == UseKind::forward    ? TensorState::hold_after_forward
                            : kind == UseKind::backward ? TensorState::hold_after_backward
                                                        : TensorState::hold);
  }
  r.fetches.unpin(use);
  try {
    if (use.kind == UseKind::backward) r.landings.close(use, r.order.micro_batch());
    for (const auto& [tensor, kind] : r.leases.released()) r.landings.released(tensor, r.order.micro_batch());
    r.landings.tell_update();
    r.gradients->poll();
    if (r.early_update.takes_landings()) r.early_update.take_landed();
  } catch (...) {
    r.landing_failure = std::current_exception();
  }
}

const std::byte* Offloader::parameter(TensorId tensor) const {
  const OffloaderRooms& r = *rooms_;
  r.order.require_leased(tensor, r.leases.has(tensor));
  return parameter_address(tensor);
}

GradientView Offloader::gradient(TensorId tensor) {
  OffloaderRooms& r = *rooms_;
  r.order.require_gradient(tensor, r.leases.goes_backward(tensor));
  require_origin("cannot add to the gradient of", tensor, true);
  return {gradient_address(tensor), r.landings.has_gradient(tensor)};
}

std::byte* Offloader::parameter_address(TensorId tensor) const {
  rooms_->order.require_tensor("cannot give the address of", tensor);
  return rooms_->cache.param_base() + rooms_->byte_offset(tensor);
}

std::byte* Offloader::gradient_address(TensorId tensor) const {
  rooms_->order.require_tensor("cannot give the address of", tensor);
  return rooms_->cache.gradient_base() + rooms_->byte_offset(tensor);
}

void Offloader::hand_over_gradient(TensorId tensor, std::span<const std::byte> gradient) {
  OffloaderRooms& r = *rooms_;
  r.order.require_hand_over(tensor);
  require_origin("cannot take the gradient of", tensor, false);
  const TensorSpec& spec = r.space.tensor(tensor);
  const auto refuse = [&](std::string reason, const char* advice) {
    throw Error(ErrorKind::misuse, {"cannot take the gradient of", spec.name, std::move(reason), advice});
  };
  const uint64_t bytes = r.space.place(tensor).elements * bytes_of(spec.type);
  if (gradient.size() != bytes)
    refuse(fmt::format("{} bytes were handed over for {} of {}", gradient.size(), bytes, name_of(spec.type)),
           "hand over all elements, in the type of the tensor");
  if (r.landings.is_complete(tensor, r.order.micro_batch()))
    refuse("it was handed over in this micro-batch already",
           "add the parts of a gradient up, and hand it over once");
  const TimeScope managing(r.account, TimeCause::overhead);
  throw_failure_of(r.landing_failure);
  begin_change();
  begin_early_update();
  r.landings.hand_over(tensor, gradient.data(), r.order.micro_batch(), r.now());
  r.landings.released(tensor, r.order.micro_batch());
  if (r.early_update.takes_landings()) r.early_update.take_landed();
}

void Offloader::require_origin(std::string_view action, TensorId tensor, bool is_leased) const {
  const bool handed_over = rooms_->options.gradients != GradientOrigin::leases;
  if (handed_over != is_leased) return;
  throw Error(ErrorKind::misuse,
              {std::string(action), rooms_->space.tensor(tensor).name,
               handed_over ? "the gradients of this offloader are handed over"
                           : "leases write the gradients of this offloader",
               handed_over ? Wording("hand the gradient over (hand_over_gradient)")
                           : "make the offloader with " + Option::gradients + " = handed_over"});
}

}  // namespace terrace
