// When updates run, and how the step thread goes on beside one: what it does with a chunk whose update is
// pending is queued behind that update, or waits for it. Nothing here asks whether an update is over already.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/offload/offloader_parts.h>

namespace terrace {

// --- Starting one ---

// As torch.nn.utils.clip_grad_norm_ has it: max_norm / (norm + 1e-6), never above 1.
void Offloader::Parts::make_steps(const UpdateSettings& settings, double gradient_norm) {
  const double clip =
      settings.clip_norm > 0 ? std::min(1.0, settings.clip_norm / (gradient_norm + 1e-6)) : 1.0;
  steps.clear();
  for (const OptimizerSettings& group : settings.groups)
    steps.push_back(
        make_optimizer_step(group, settings.step, static_cast<float>(clip / settings.loss_scale)));
}

// Gradients are complete and `steps` are made.
void Offloader::Parts::start_update() {
  if (options.step_events != nullptr)
    options.step_events->begin_update(update_mode == UpdateMode::next_forward);
  if (device_update != nullptr) return device_update->run(steps);
  if (update_running()) {  // its states are being read ahead
    for (const ChunkId chunk : update_order) await_update(chunk);
    update_thread->allow(steps);
    return wait_for_update();
  }
  update_totals();  // as they are without it
  progress.begin_update();
  if (update_mode != UpdateMode::next_forward) return run_update();
  update_thread->begin(true);
  update_thread->allow(steps);
  collect_in_forward_order();
  for (const ChunkId chunk : update_order) give_to_update(chunk);
  update_thread->close();
}

// On this thread, to the end.
void Offloader::Parts::run_update() {
  collect_by_residence();
  pipeline->begin({.engine = tiers.engine(), .workers = &workers, .device = &cache});
  try {
    pipeline->allow(steps);
    for (const ChunkId chunk : update_order) {
      progress.begin(chunk);
      pipeline->add(chunk);
    }
    while (pipeline->advance()) {
    }
    TERRACE_ASSERT(pipeline->idle(), "an update ends when every chunk is updated");
  } catch (...) {
    pipeline->fail(std::current_exception());
  }
  std::exception_ptr failure;
  try {
    pipeline->end();
  } catch (...) {
    failure = std::current_exception();
  }
  for (const ChunkId chunk : update_order) {
    if (!progress.updated(chunk).done()) progress.complete(chunk, failure);
  }
  progress.end_update();
  if (failure != nullptr) std::rethrow_exception(failure);
}

// What streams first: what is resident fills its pauses.
void Offloader::Parts::collect_by_residence() {
  update_order.clear();
  for (const bool streamed : {true, false}) {
    for (uint32_t c = 0; c < space.chunk_count(); ++c) {
      if (space.section_of(ChunkId{c}).trainable && records->is_streamed(ChunkId{c}) == streamed)
        update_order.push_back(ChunkId{c});
    }
  }
}

// As the next step first needs them, by the schedule; then the others.
void Offloader::Parts::collect_in_forward_order() {
  update_order.clear();
  std::fill(in_update_order.begin(), in_update_order.end(), false);
  const auto add = [this](ChunkId chunk) {
    if (in_update_order[index_of(chunk)] || !space.section_of(chunk).trainable) return;
    in_update_order[index_of(chunk)] = true;
    update_order.push_back(chunk);
  };
  for (const ScheduledUse& use : training_cursor.schedule().uses()) {
    for (const ChunkId chunk : use.chunks) add(chunk);
  }
  for (uint32_t c = 0; c < space.chunk_count(); ++c) add(ChunkId{c});
}

// Its gradient is complete. From now on its parameters are those that the update makes.
void Offloader::Parts::give_to_update(ChunkId chunk) {
  progress.begin(chunk);
  await_update(chunk);
  update_thread->add(chunk);
}

void Offloader::Parts::await_update(ChunkId chunk) {
  const bool keeps_fresh = gradients->is_held(chunk) &&
                           (update_mode == UpdateMode::next_forward || home->placement() == Placement::none);
  home->expect(chunk, progress.updated(chunk), keeps_fresh ? gradients->gradient(chunk) : nullptr);
  unsettled[index_of(chunk)] = true;
  if (home->placement() == Placement::none) unsent[index_of(chunk)] = true;
  for (const TensorId tensor : space.tensors_of(chunk)) ++unsettled_chunks[index_of(tensor)];
}

// --- Beside one ---

bool Offloader::Parts::update_running() const {
  return update_thread != nullptr && update_thread->busy();
}

// An operation goes no further without the chunk's new parameters.
void Offloader::Parts::wait_updated(ChunkId chunk) {
  progress.note_needed(chunk);
  const Event& updated = progress.updated(chunk);
  if (updated.done()) return;
  const uint64_t start = clock.now_ns();
  wait_done_watched(updated, watch, ParamHome::update_subject(chunk));
  counters.pending_update_wait_ns += clock.now_ns() - start;
}

// The chunk's update is over.
void Offloader::Parts::settle(ChunkId chunk) {
  if (!unsettled[index_of(chunk)]) return;
  unsettled[index_of(chunk)] = false;
  home->stop_expecting(chunk);
  for (const TensorId tensor : space.tensors_of(chunk)) {
    if (--unsettled_chunks[index_of(tensor)] == 0 && states.state(tensor) == TensorState::updating)
      states.change(tensor, TensorState::hold);
  }
}

// Parameters that live on the device go there when they are needed, or soon will be.
void Offloader::Parts::send_updated(ChunkId chunk) {
  if (!unsent[index_of(chunk)]) return;
  unsent[index_of(chunk)] = false;
  cache.detach_param(chunk);
  home->send_to_device(chunk, cache.param_slot(chunk));
}

void Offloader::Parts::send_updated_ahead() {
  if (cursor->position() == kNever) return;
  const Schedule& schedule = cursor->schedule();
  const uint64_t end =
      std::min<uint64_t>(schedule.size(), uint64_t{cursor->position()} + 1 + options.prefetch_uses);
  for (uint64_t p = cursor->position() + 1; p < end; ++p) {
    for (const ChunkId chunk : schedule.use(static_cast<uint32_t>(p)).chunks) send_updated(chunk);
  }
}

// Of a step that is over, the update is what changes the state still: then that is whole. A step that is open
// goes on changing it.
void Offloader::Parts::finish_update() {
  if (!update_running()) return;
  wait_for_update();
  if (gradients_may_land) return;
  custody.end_change();
  if (put_off_commit) {
    const PutOffCommit commit = *std::exchange(put_off_commit, std::nullopt);
    commit_now(commit.info, commit.retain);
  }
}

// What the rest of an update takes for granted.
void Offloader::Parts::require_settings(const UpdateSettings& settings) const {
  const auto refuse = [](std::string subject, std::string_view reason, std::string_view advice) {
    throw Error(ErrorKind::misuse,
                {"cannot update", std::move(subject), std::string(reason), std::string(advice)});
  };
  if (!(settings.loss_scale > 0) || !std::isfinite(settings.loss_scale))
    refuse(fmt::format("loss_scale {}", settings.loss_scale), "a loss scale is positive and finite",
           "give what the loss was multiplied by");
  if (lands_for_update() && (settings.clip_norm != 0 || settings.loss_scale != 1))
    refuse(fmt::format("clip_norm {}, loss_scale {}", settings.clip_norm, settings.loss_scale),
           "the update was announced without both, and has begun", "update as it was announced");
  for (uint32_t t = 0; t < space.tensor_count(); ++t) {
    const TensorSpec& tensor = space.tensor(TensorId{t});
    if (tensor.trainable && tensor.group >= settings.groups.size())
      refuse(tensor.name,
             fmt::format("it belongs to parameter group {}, and settings are given for {}", tensor.group,
                         settings.groups.size()),
             "give UpdateSettings::groups a setting for every group of TensorSpec::group");
  }
}

const WholeState& Offloader::Parts::finished_state(std::string_view action) {
  order.require_nothing_open(action);
  finish_update();
  return custody.whole(action);
}

void Offloader::Parts::wait_for_update() {
  if (!update_running()) return;
  const TimeScope updating(account, TimeCause::update);
  std::exception_ptr failure;
  const uint64_t start = clock.now_ns();
  try {
    update_thread->finish();
  } catch (...) {
    failure = std::current_exception();
  }
  counters.pending_update_wait_ns += clock.now_ns() - start;
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    settle(ChunkId{c});
    if (failure == nullptr) send_updated(ChunkId{c});
  }
  progress.end_update();
  if (failure != nullptr) {
    put_off_commit.reset();
    std::rethrow_exception(failure);
  }
}

// Gradients are about to land: what lies in their memory has been used by then, and the state of the last
// update is whole for a commit.
void Offloader::Parts::before_gradients() {
  if (gradients_may_land) return;
  finish_update();
  forget_fresh();
  custody.begin_change("a step");
  gradients_may_land = true;
}

void Offloader::Parts::forget_fresh() {
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    const ChunkId chunk{c};
    if (!home->has_fresh(chunk)) continue;
    const Event* const arriving =
        home->placement() == Placement::none ? &cache.param_slot(chunk).in : cache.arriving(chunk);
    if (arriving != nullptr) home->wait_arrived(chunk, *arriving);
  }
  home->forget_fresh();
}

const Offloader::Parts::UpdateTotals& Offloader::Parts::update_totals() {
  if (!update_running())
    settled_totals = {pipeline->totals(), home->publication().nvme_write_bytes(),
                      home->old().nvme_read_bytes(), gradients->opening_read_bytes(),
                      turns != nullptr ? turns->wait_ns() : 0};
  return settled_totals;
}

// --- During backward ---

// The last micro-batch goes backward, and the end of the step is known: with its settings, where they depend
// on no gradient, chunks are updated as they land; else their states are read ahead.
void Offloader::Parts::begin_early_update() {
  if (!announced || !last_is_open() || update_running()) return;
  update_totals();  // as they are without it
  progress.begin_update();
  update_thread->begin(!updates_as_landed);
  if (updates_as_landed) return update_thread->allow(steps);
  collect_by_residence();
  for (const ChunkId chunk : update_order) {
    progress.begin(chunk);
    update_thread->add(chunk);
  }
}

bool Offloader::Parts::lands_for_update() const {
  return updates_as_landed && update_running();
}

// Its copy on the device is stale from now on, whenever its update begins.
void Offloader::Parts::note_landing(ChunkId chunk) {
  if (home->placement() != Placement::none) cache.drop_stale_param(chunk);
  landing.push_back(chunk);
  for (const TensorId tensor : space.tensors_of(chunk)) {
    if (--unfinished_chunks[index_of(tensor)] == 0) states.change(tensor, TensorState::updating);
  }
}

// In the order in which they were sent off, so that an infinite gradient stops the same chunks in every run.
void Offloader::Parts::update_landed() {
  for (; landed_count < landing.size() && gradients->is_complete(landing[landed_count]); ++landed_count)
    update_if_finite(landing[landed_count]);
}

void Offloader::Parts::update_if_finite(ChunkId chunk) {
  found_infinite = found_infinite || !gradients->is_finite(chunk);
  if (found_infinite) return;
  partly_applied = true;  // until all are
  give_to_update(chunk);
}

// Every chunk has landed. Returns whether all were updated.
bool Offloader::Parts::end_early_update() {
  update_landed();
  TERRACE_ASSERT(landed_count == landing.size(), "every gradient is complete at the end of backward");
  wait_for_update();
  if (!found_infinite) partly_applied = false;
  return !found_infinite;
}

void Offloader::Parts::forget_early_update() {
  announced = updates_as_landed = found_infinite = partly_applied = false;
  landing.clear();
  landed_count = 0;
}

// --- Offloader ---

std::string Offloader::why_not(UpdateMode mode) const {
  return terrace::why_not(mode, parts_->space, parts_->plan, parts_->options);
}

void Offloader::set_update_mode(UpdateMode mode) {
  Parts& p = *parts_;
  p.order.require_nothing_open("cannot set the update mode of");
  require_mode(mode, p.space, p.plan, p.options);
  p.finish_update();
  p.update_mode = mode;
  if (mode == UpdateMode::after_backward || p.update_thread != nullptr) return;
  std::unique_ptr<io::Engine> own;
  if (p.tiers.engine() != nullptr) {
    own = p.tiers.make_engine("updates");
    own->register_buffer(p.arena.memory());
  }
  p.update_thread = std::make_unique<UpdateThread>(p.space.chunk_count(), *p.pipeline, p.progress,
                                                   std::move(own), p.workers, p.watch);
}

UpdateMode Offloader::update_mode() const {
  return parts_->update_mode;
}

void Offloader::announce_update(const UpdateSettings& settings) {
  Parts& p = *parts_;
  p.order.require_micro_batch("cannot announce an update");
  if (p.update_mode != UpdateMode::during_backward) return;
  if (p.update_running())
    throw Error(ErrorKind::misuse,
                {"cannot announce an update", "", "the last micro-batch goes backward already",
                 "announce it before the first backward use of that"});
  p.require_settings(settings);
  p.announced = true;
  p.updates_as_landed = settings.clip_norm == 0 && settings.loss_scale == 1;
  if (p.updates_as_landed) p.make_steps(settings, 0);
}

void Offloader::finish_update() {
  parts_->watch.set_activity("the end of an update");
  parts_->finish_update();
}

bool Offloader::update_pending() const {
  return parts_->update_running();
}

std::span<const ChunkTimes> Offloader::last_update_times() const {
  return parts_->progress.last_times();
}

}  // namespace terrace
