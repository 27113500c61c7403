#include <terrace/offload/update/update_runner.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/option.h>

namespace terrace {

UpdateRunner::UpdateRunner(const RunContext& run, const StateHomes& homes, DeviceCache& cache,
                           TierStores& tiers, const Memory& memory, TensorStates& states)
    : run_(run),
      homes_(homes),
      cache_(cache),
      tiers_(tiers),
      states_(states),
      progress_(run.space.chunk_count()),
      matrices_(run, homes.runs, memory.arena),
      tiles_(run.shards, homes.gradients, homes.params, run.plan.record_layout, run.options.parameter_bits,
             run.instruction_set, run.options.hooks.device_arithmetic, run.options.dry),
      lanes_(run.plan.device_lanes == 0
                 ? nullptr
                 : std::make_unique<DeviceLanes>(tiles_, run.device, run.workers, run.watch, run.plan,
                                                 run.options.dry)),
      pipeline_(run.shards, {homes.records, homes.gradients, homes.params}, tiles_, progress_, run.watch,
                memory.ring, run.plan, {.on_device = run.plan.device_side, .lanes = lanes_.get()}),
      in_order_(run.space.chunk_count()),
      unsettled_(run.space.chunk_count()),
      unsettled_chunks_(run.space.tensor_count()),
      unsent_(run.space.chunk_count()) {
  progress_.set_on_completion([this](ChunkId chunk, const std::exception_ptr& failure) {
    homes_.params.update_over(chunk, failure);
  });
  if (lanes_ != nullptr && run.options.lock_host_memory && !run.options.dry)
    homes.records.lock_for_device(run.plan.device_side);
  if (run.options.states == Placement::none)
    device_update_ = std::make_unique<DeviceUpdate>(run, homes, tiles_, cache, tiers.engine());
  order_.reserve(run.space.chunk_count());
}

void UpdateRunner::set_mode(UpdateMode mode) {
  mode_ = mode;
  if (mode == UpdateMode::after_backward || thread_ != nullptr) return;
  std::unique_ptr<io::Engine> own;
  if (tiers_.engine() != nullptr) own = tiers_.make_engine_with_memory("updates");
  thread_ = std::make_unique<UpdateThread>(run_.space.chunk_count(), pipeline_, progress_, std::move(own),
                                           run_.workers, run_.watch);
}

void UpdateRunner::require(const UpdateSettings& settings) const {
  const auto refuse = [](std::string subject, std::string_view reason, Wording advice) {
    throw Error(ErrorKind::misuse,
                {"cannot update", std::move(subject), std::string(reason), std::move(advice)});
  };
  if (!(settings.loss_scale > 0) || !std::isfinite(settings.loss_scale))
    refuse(fmt::format("loss_scale {}", settings.loss_scale), "a loss scale is positive and finite",
           "give what the loss was multiplied by");
  if (!(settings.clip_norm >= 0))
    refuse(fmt::format("clip_norm {}", settings.clip_norm), "a norm is not negative",
           "give the largest norm, or 0 for none");
  if (settings.step == 0) refuse("step 0", "steps count from 1", "count the updates that were applied");
  for (size_t g = 0; g < settings.groups.size(); ++g) {
    const OptimizerSettings& group = settings.groups[g];
    if (const std::string reason = why_not(group); !reason.empty())
      refuse(fmt::format("parameter group {}", g), reason, "give what OptimizerSettings allows");
    // Matrices have a moment beside other optimizers' two: the second of their records stays as it is.
    const bool may_have_more = group.kind == OptimizerKind::muon && run_.plan.record_layout.moment_count > 0;
    const uint32_t moments = moment_count(group.kind, group.momentum);
    if (!may_have_more && moments != run_.plan.record_layout.moment_count)
      refuse(fmt::format("parameter group {}", g),
             fmt::format("its optimizer has {} moments, and records have {}", moments,
                         run_.plan.record_layout.moment_count),
             "give every group an optimizer of the moments that " + Option::masters + " says");
  }
  for (uint32_t t = 0; t < run_.space.tensor_count(); ++t) {
    const TensorSpec& tensor = run_.space.tensor(TensorId{t});
    if (tensor.trainable && tensor.group >= settings.groups.size())
      refuse(tensor.name,
             fmt::format("it belongs to parameter group {}, and settings are given for {}", tensor.group,
                         settings.groups.size()),
             "give " + Option::update_groups + " a setting for every group of " + Option::tensor_group);
    if (!tensor.trainable) continue;
    if (tensor.by_matrix != (settings.groups[tensor.group].kind == OptimizerKind::muon))
      refuse(tensor.name,
             fmt::format("it is {} a matrix that Muon updates, and the optimizer of group {} is {}",
                         tensor.by_matrix ? "declared as" : "not declared as", tensor.group,
                         tensor.by_matrix ? "another one" : "Muon"),
             "let " + Option::by_matrix + " be true for the tensors of Muon's groups alone");
  }
}

bool UpdateRunner::is_updated(ChunkId chunk) const {
  return run_.is_trained(chunk) && homes_.runs.is_updated(chunk);
}

// --- One update ---

// The factor is that of torch.nn.utils.clip_grad_norm_: max_norm / (norm + 1e-6), never above 1.
void UpdateRunner::set_constants(const UpdateSettings& settings, double gradient_norm) {
  const double clip =
      settings.clip_norm > 0 ? std::min(1.0, settings.clip_norm / (gradient_norm + 1e-6)) : 1.0;
  const auto scale = static_cast<float>(clip / settings.loss_scale);
  group_steps_.clear();
  for (const OptimizerSettings& group : settings.groups)
    group_steps_.push_back(make_optimizer_step(group, settings.step, scale));
  const bool are_counted = homes_.steps.are_counted();
  if (!are_counted && matrices_.empty()) return;
  tensor_steps_.assign(run_.space.tensor_count(), keep_step());
  settled_tensors_.assign(run_.space.tensor_count(), false);
  if (!matrices_.empty()) matrices_.begin(settings.groups);
  for (uint32_t t = 0; t < run_.space.tensor_count(); ++t) {
    const TensorSpec& tensor = run_.space.tensor(TensorId{t});
    if (!tensor.trainable) continue;
    const uint64_t step = are_counted ? homes_.steps.counts()[t] + 1 : settings.step;
    tensor_steps_[t] = tensor.by_matrix ? matrices_.set_constants(TensorId{t}, step, scale)
                                        : make_optimizer_step(settings.groups[tensor.group], step, scale);
  }
}

// A tensor is settled with the first of its chunks, before any thread computes with it.
void UpdateRunner::settle_tensors(ChunkId chunk) {
  if (!homes_.steps.are_counted()) return;
  for (const TensorId tensor : run_.space.tensors_of(chunk)) {
    if (settled_tensors_[index_of(tensor)]) continue;
    settled_tensors_[index_of(tensor)] = true;
    if (!homes_.runs.has_gradient(tensor)) tensor_steps_[index_of(tensor)] = keep_step();
  }
}

void UpdateRunner::run(const Schedule& schedule) {
  if (StepEvents* events = run_.options.hooks.step_events)
    events->begin_update(mode_ == UpdateMode::next_forward);
  if (device_update_ != nullptr) {
    run_here();
    return gather_updated();
  }
  if (is_running()) {  // the update's states are being read ahead
    for (const ChunkId chunk : order_) await(chunk);
    thread_->allow(constants());
    return wait();
  }
  totals();  // until the update ends the totals leave it out
  progress_.begin_update();
  if (mode_ != UpdateMode::next_forward) {
    run_here();
    return gather_updated();
  }
  thread_->begin(true);
  thread_->allow(constants());
  collect_in_order_of(schedule);
  for (const ChunkId chunk : order_) give(chunk);
  thread_->close();
  // The program reads its own parameters when it likes.
  for (const ChunkId chunk : order_) {
    if (run_.is_callers(chunk)) wait_updated(chunk);
  }
}

void UpdateRunner::begin_beside(bool allowed) {
  totals();  // until the update ends the totals leave it out
  progress_.begin_update();
  thread_->begin(!allowed);
  if (allowed) return thread_->allow(constants());
  collect_by_residence([](ChunkId) { return true; });
  for (const ChunkId chunk : order_) {
    progress_.begin(chunk);
    thread_->add(chunk);
  }
}

// Runs the update on this thread, to its end. A turn's chunks are those whose matrices have their steps then.
void UpdateRunner::run_here() {
  const auto groups = static_cast<uint32_t>(matrices_.groups().size());
  for (uint32_t turn = 0; turn <= groups; ++turn) {
    if (turn < groups) make_steps(turn);
    collect_by_residence([&](ChunkId chunk) { return matrices_.turn_of(chunk) == turn; });
    device_update_ != nullptr ? device_update_->run(constants(), order_) : update_here();
  }
  if (device_update_ == nullptr) progress_.end_update();
}

void UpdateRunner::make_steps(uint32_t group) {
  const MatrixGroup& chunks = matrices_.groups()[group];
  matrices_.begin_look(group);
  collect_by_residence([&](ChunkId chunk) {
    return index_of(chunk) >= chunks.first_chunk && index_of(chunk) < chunks.end_chunk;
  });
  if (device_update_ != nullptr) {
    device_update_->look(constants(), order_);
  } else {
    const UpdateRun looking = {.engine = tiers_.engine(), .workers = &run_.workers, .looks = true};
    const std::exception_ptr failure = pipeline_.run(looking, [this] { carry_out(); });
    if (failure != nullptr) std::rethrow_exception(failure);
  }
  matrices_.make_steps(group);
}

// Carries out what a run of the pipeline does with the chunks of order_.
void UpdateRunner::carry_out() {
  pipeline_.allow(constants());
  for (const ChunkId chunk : order_) pipeline_.add(chunk);
  while (pipeline_.advance()) {
  }
  TERRACE_ASSERT(pipeline_.idle(), "an update ends when every chunk is updated");
}

void UpdateRunner::update_here() {
  for (const ChunkId chunk : order_) progress_.begin(chunk);
  const UpdateRun here = {.engine = tiers_.engine(), .workers = &run_.workers, .device = &cache_};
  const std::exception_ptr failure = pipeline_.run(here, [this] { carry_out(); });
  for (const ChunkId chunk : order_) {
    if (!progress_.updated(chunk).done()) progress_.complete(chunk, failure);
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

// Ranks end the updates of their shares in orders of their own, and gather in the order of chunks.
void UpdateRunner::gather_updated() {
  if (run_.options.hooks.communicator == nullptr) return;
  for (uint32_t c = 0; c < run_.space.chunk_count(); ++c) {
    const ChunkId chunk{c};
    if (run_.is_callers(chunk) || !is_updated(chunk) || cache_.param_state(chunk) == ChunkState::absent)
      continue;
    cache_.detach_param(chunk);
    homes_.params.gather_in_place(chunk, cache_.param_slot(chunk), TransferReason::update);
  }
}

// Chunks whose records are streamed come first; resident ones fill the pauses of the drive.
void UpdateRunner::collect_by_residence(FunctionRef<bool(ChunkId)> is_taken) {
  order_.clear();
  for (const bool streamed : {true, false}) {
    for (uint32_t c = 0; c < run_.space.chunk_count(); ++c) {
      const ChunkId chunk{c};
      if (!is_updated(chunk) || !is_taken(chunk) || homes_.records.is_streamed(chunk) != streamed) continue;
      settle_tensors(chunk);
      order_.push_back(chunk);
    }
  }
}

// Orders chunks by their first use in the schedule of the next step; chunks without a use come last, and the
// caller's, which are waited for, first.
void UpdateRunner::collect_in_order_of(const Schedule& schedule) {
  order_.clear();
  std::fill(in_order_.begin(), in_order_.end(), false);
  const auto add = [this](ChunkId chunk) {
    if (in_order_[index_of(chunk)] || !is_updated(chunk)) return;
    in_order_[index_of(chunk)] = true;
    order_.push_back(chunk);
  };
  for (uint32_t c = 0; c < run_.space.chunk_count(); ++c) {
    if (run_.is_callers(ChunkId{c})) add(ChunkId{c});
  }
  for (const ScheduledUse& use : schedule.uses()) {
    for (const ChunkId chunk : use.chunks) add(chunk);
  }
  for (uint32_t c = 0; c < run_.space.chunk_count(); ++c) add(ChunkId{c});
}

void UpdateRunner::give(ChunkId chunk) {
  settle_tensors(chunk);
  progress_.begin(chunk);
  await(chunk);
  thread_->add(chunk);
}

// From here on the step thread sees the chunk as the update will leave it.
void UpdateRunner::await(ChunkId chunk) {
  const bool keeps_fresh = !run_.is_callers(chunk) && homes_.gradients.is_held(chunk) &&
                           (mode_ == UpdateMode::next_forward || !run_.params_live_below());
  homes_.params.expect(chunk, progress_.updated(chunk),
                       keeps_fresh ? homes_.gradients.gradient(chunk) : nullptr);
  unsettled_[index_of(chunk)] = true;
  if (!run_.params_live_below() && !run_.is_callers(chunk)) unsent_[index_of(chunk)] = true;
  for (const TensorId tensor : run_.space.tensors_of(chunk)) ++unsettled_chunks_[index_of(tensor)];
}

void UpdateRunner::wait() {
  if (!is_running()) return;
  const TimeScope updating(run_.account, TimeCause::update);
  std::exception_ptr failure;
  const uint64_t start = clock_.now_ns();
  try {
    thread_->finish();
  } catch (...) {
    failure = std::current_exception();
  }
  wait_ns_ += clock_.now_ns() - start;
  for (uint32_t c = 0; c < run_.space.chunk_count(); ++c) {
    settle(ChunkId{c});
    if (failure == nullptr) send_updated(ChunkId{c});
  }
  progress_.end_update();
  if (failure != nullptr) std::rethrow_exception(failure);
}

// --- Chunks of an update that may not be over ---

void UpdateRunner::wait_updated(ChunkId chunk) {
  progress_.note_needed(chunk);
  const Event& updated = progress_.updated(chunk);
  if (updated.done()) return;
  const uint64_t start = clock_.now_ns();
  wait_done_watched(updated, run_.watch, ParamHome::update_subject(chunk));
  wait_ns_ += clock_.now_ns() - start;
}

void UpdateRunner::settle(ChunkId chunk) {
  if (!unsettled_[index_of(chunk)]) return;
  unsettled_[index_of(chunk)] = false;
  homes_.params.stop_expecting(chunk);
  for (const TensorId tensor : run_.space.tensors_of(chunk)) {
    if (--unsettled_chunks_[index_of(tensor)] == 0 && states_.state(tensor) == TensorState::updating)
      states_.change(tensor, TensorState::hold);
  }
}

void UpdateRunner::send_updated(ChunkId chunk) {
  if (!unsent_[index_of(chunk)]) return;
  unsent_[index_of(chunk)] = false;
  if (!run_.params_stay_on_device()) return homes_.params.send_to_share(chunk);
  cache_.detach_param(chunk);
  homes_.params.send_to_device(chunk, cache_.param_slot(chunk));
}

// --- Counters ---

const UpdateRunner::Totals& UpdateRunner::totals() {
  if (!is_running())
    totals_ = {pipeline_.totals(), homes_.params.publication().nvme_write_bytes(),
               homes_.params.old().nvme_read_bytes(), homes_.gradients.opening_read_bytes()};
  return totals_;
}

void UpdateRunner::count(OffloadCounters& counters) {
  const Totals& totals = this->totals();
  counters.h2d_bytes += totals.pipeline.h2d_bytes;
  counters.d2h_bytes += totals.pipeline.d2h_bytes;
  if (device_update_ != nullptr) counters.d2h_bytes += device_update_->d2h_bytes();
  counters.param_read_bytes += totals.old_param_read_bytes;
  counters.param_write_bytes += totals.param_write_bytes;
  counters.record_read_bytes += totals.pipeline.record_read_bytes;
  counters.record_write_bytes += totals.pipeline.record_write_bytes;
  counters.gradient_read_bytes += totals.gradient_read_bytes;
  counters.update_gradient_read_bytes += totals.gradient_read_bytes;
  const OptimizerPipeline::Times& times = totals.pipeline.times;
  counters.update_wait_ns += times.read_wait_ns + times.write_wait_ns;
  counters.update_write_wait_ns += times.write_wait_ns;
  counters.update_compute_ns += times.compute_ns;
  counters.update_check_ns += times.check_ns;
  counters.update_device_wait_ns += times.device_wait_ns;
  counters.pending_update_wait_ns += wait_ns_;
}

}  // namespace terrace
