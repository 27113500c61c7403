#include <terrace/offload/offloader.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <terrace/base/assert.h>
#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/offload/offloader_parts.h>

namespace terrace {

Offloader::Offloader(const FlatSpace& space, const OffloadOptions& options, std::span<const TensorUse> trace,
                     Device& device, Workers& workers, Log& log, InstructionSet instruction_set)
    : parts_(std::make_unique<Parts>(space, options, trace, device, workers, log, instruction_set)) {}

Offloader::~Offloader() = default;

const MemoryPlan& Offloader::plan() const {
  return parts_->plan;
}
std::span<std::byte> Offloader::work_memory() {
  return parts_->work_memory;
}

ActivationStore* Offloader::activations() {
  return parts_->activations.get();
}

void Offloader::begin_step() {
  Parts& p = *parts_;
  p.order.require_nothing_open("cannot begin a step with");
  if (!p.update_running()) static_cast<void>(p.custody.whole("cannot begin a step with"));
  if (p.committer != nullptr) p.committer->throw_failure();
  p.order.begin_step();
  p.gradients_may_land = false;
  p.forget_early_update();
  p.reset_step();
  p.decisions.made(DecisionKind::step, ++p.step_count);
  p.training_cursor.begin_step();
  p.cursor = &p.training_cursor;
  if (p.records_step()) p.record_step_begin();
}

void Offloader::begin_evaluation() {
  static_cast<void>(parts_->finished_state("cannot evaluate"));
  parts_->decisions.made(DecisionKind::evaluation, ++parts_->evaluation_count);
  parts_->order.begin_evaluation();
  parts_->evaluation_cursor.begin_step();
  parts_->cursor = &parts_->evaluation_cursor;
}

void Offloader::end_evaluation() {
  parts_->order.end_evaluation();
  parts_->evaluation_cursor.end_step();
}

void Offloader::select_micro_batch(uint32_t micro_batch) {
  Parts& p = *parts_;
  if (micro_batch == p.order.micro_batch()) return;
  p.order.require_selectable(micro_batch);
  p.throw_landing_failure();
  const TimeScope managing(p.account, TimeCause::overhead);
  p.land_open_gradients();
  p.order.select_micro_batch(micro_batch);
}

void Offloader::begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) {
  Parts& p = *parts_;
  p.order.require_use(operation, kind);
  p.begin_use(operation, tensors, kind);
  if (p.records_step()) p.record_use_begin();
  p.account.enter(TimeCause::compute);
  p.order.begin_use(p.operation, kind);
}

void Offloader::Parts::begin_use(std::string_view key, std::span<const TensorId> leased, UseKind use) {
  const TimeScope managing(account, TimeCause::overhead);
  throw_landing_failure();
  decisions.made({DecisionKind::use, 0, key});
  operation = key;
  kind = use;
  tensors.assign(leased.begin(), leased.end());
  cache.set_last_operation(operation);
  watch.set_activity(operation);
  collect_chunks(space, tensors, chunks);
  cursor->advance(operation, kind, chunks, slots_of_gradients());
  if (kind == UseKind::backward) {
    before_gradients();
    begin_early_update();
  }
  fetch_missing();
  if (kind == UseKind::backward) open_gradients();
  prefetch();
  wait_for_chunks();
  for (const TensorId tensor : tensors) states.change(tensor, TensorState::compute);
}

void Offloader::end_use() {
  Parts& p = *parts_;
  p.order.end_use();
  p.account.leave();
  if (p.recorded) p.record_use_end();
  const TimeScope managing(p.account, TimeCause::overhead);
  const TensorState released = p.kind == UseKind::forward    ? TensorState::hold_after_forward
                               : p.kind == UseKind::backward ? TensorState::hold_after_backward
                                                             : TensorState::hold;
  for (const TensorId tensor : p.tensors) p.states.change(tensor, released);
  for (const ChunkId chunk : p.chunks) p.cache.unpin_param(chunk);
  try {
    if (p.kind == UseKind::backward) p.close_gradients();
    p.gradients->poll();
    if (p.lands_for_update()) p.update_landed();
  } catch (...) {
    p.landing_failure = std::current_exception();
  }
}

const std::byte* Offloader::parameter(TensorId tensor) const {
  const Parts& p = *parts_;
  p.order.require_leased(tensor, p.tensors);
  return p.cache.param_base() + p.byte_offset(tensor);
}

GradientView Offloader::gradient(TensorId tensor) {
  Parts& p = *parts_;
  p.order.require_gradient(tensor, p.tensors);
  return {p.cache.gradient_base() + p.byte_offset(tensor), p.backward_uses[index_of(tensor)] > 0};
}

void Offloader::end_micro_batch() {
  Parts& p = *parts_;
  p.order.require_micro_batch("cannot end a micro-batch");
  p.throw_landing_failure();
  p.watch.set_activity("the end of a micro-batch");
  p.before_gradients();
  p.begin_early_update();
  p.complete_unused_gradients();
  const uint64_t start = p.clock.now_ns();
  p.gradients->finish_micro_batch(p.last_is_open());
  if (p.lands_for_update()) p.update_landed();
  p.counters.landing_wait_ns += p.clock.now_ns() - start;
  p.order.end_micro_batch();
  const bool more = p.order.micro_batch() < p.options.accumulation_steps;
  for (uint32_t t = 0; t < p.space.tensor_count(); ++t) {
    const TensorId tensor{t};
    const TensorState state = p.states.state(tensor);
    if (state == TensorState::hold) continue;
    if (state == TensorState::reducing && !more) continue;  // until the update takes it
    if (state == TensorState::updating) continue;
    p.states.change(tensor, TensorState::hold);
  }
  p.reset_micro_batch();
}

UpdateResult Offloader::update(const UpdateSettings& settings) {
  Parts& p = *parts_;
  p.order.require_whole_step("cannot update");
  p.require_settings(settings);
  p.watch.set_activity("the update");
  const TimeScope updating(p.account, TimeCause::update);
  p.decisions.made(DecisionKind::update, p.step_count);
  const uint64_t start = p.clock.now_ns();
  const GradientNorm norm = p.gradients->norm();
  p.counters.norm_ns += p.clock.now_ns() - start;
  UpdateResult result{norm.norm(settings.loss_scale), norm.finite()};
  p.training_cursor.end_step();
  if (p.lands_for_update()) {
    result.applied = p.end_early_update();
    result.partly_applied = p.partly_applied;
  } else if (result.applied) {
    p.make_steps(settings, result.gradient_norm);
    p.forget_device_copies(StaleParams::trainable);
    p.change_trainable(TensorState::updating);
    p.start_update();
  }
  if (result.applied) {
    p.gradients->end_displacement();
  } else {
    p.wait_for_update();  // its states may have been read ahead
    p.drop_gradients();
    p.restore_parameters();
  }
  if (!p.update_running()) {
    p.change_trainable(TensorState::hold);
    if (!result.partly_applied) p.custody.end_change();
  }
  p.gradients_may_land = false;
  p.order.end_step();
  p.counters.update_ns += p.clock.now_ns() - start;
  p.prefetch_first_uses();
  return result;
}

void Offloader::abandon_step() {
  Parts& p = *parts_;
  p.order.require_step_between_uses("cannot abandon a step");
  p.throw_landing_failure();
  p.before_gradients();
  p.gradients->finish_micro_batch(p.last_is_open());
  p.wait_for_update();
  p.drop_gradients();
  p.restore_parameters();
  for (uint32_t t = 0; t < p.space.tensor_count(); ++t) {
    if (p.states.state(TensorId{t}) != TensorState::hold) p.states.change(TensorId{t}, TensorState::hold);
  }
  p.reset_step();
  if (!p.partly_applied) p.custody.end_change();
  p.gradients_may_land = false;
  p.order.end_step();
}

void Offloader::wait_for_copies() const noexcept {
  parts_->cache.drain();
}

bool Offloader::has_whole_state() const {
  return parts_->order.nothing_is_open() && parts_->custody.is_whole();
}

OffloadCounters Offloader::counters() const {
  const Parts& p = *parts_;
  OffloadCounters counters = p.counters;
  const Parts::UpdateTotals& updates = parts_->update_totals();
  counters.h2d_bytes = p.home->h2d_bytes() + p.home->publication().h2d_bytes() + updates.pipeline.h2d_bytes;
  counters.d2h_bytes = p.gradients->d2h_bytes() + p.home->old().d2h_bytes() + updates.pipeline.d2h_bytes;
  if (p.device_update != nullptr) counters.d2h_bytes += p.device_update->d2h_bytes();
  counters.param_read_bytes = p.home->nvme_read_bytes() + updates.old_param_read_bytes;
  counters.direct_read_bytes = p.home->direct_read_bytes();
  counters.param_write_bytes = updates.param_write_bytes;
  counters.record_read_bytes = updates.pipeline.record_read_bytes;
  counters.record_write_bytes = updates.pipeline.record_write_bytes;
  counters.cache_read_bytes = p.records->entered_bytes();
  counters.cache_write_bytes = p.records->left_bytes();
  counters.gradient_read_bytes = p.gradients->landing_read_bytes() + updates.gradient_read_bytes;
  counters.gradient_write_bytes = p.gradients->landing_write_bytes();
  counters.update_gradient_read_bytes = updates.gradient_read_bytes;
  if (p.activations != nullptr) {
    counters.activation_d2h_bytes = p.activations->d2h_bytes();
    counters.activation_h2d_bytes = p.activations->h2d_bytes();
    counters.activation_read_bytes = p.activations->read_bytes();
    counters.activation_write_bytes = p.activations->write_bytes();
    counters.activation_wait_ns = p.activations->wait_ns();
  }
  if (p.committer != nullptr) {
    const EpochCommitter::Counters commits = p.committer->counters();
    counters.commit_count = commits.commits;
    counters.commit_write_bytes += commits.written_bytes;
    counters.manifest_bytes = commits.manifest_bytes;
    counters.commit_wait_ns = commits.wait_ns;
  }
  counters.eviction_count = p.cache.eviction_count();
  const OptimizerPipeline::Times& times = updates.pipeline.times;
  counters.update_wait_ns = times.read_wait_ns + times.write_wait_ns;
  counters.update_write_wait_ns = times.write_wait_ns;
  counters.update_compute_ns = times.compute_ns;
  counters.update_check_ns = times.check_ns;
  counters.update_device_wait_ns = times.device_wait_ns;
  counters.turn_wait_ns = updates.turn_wait_ns;
  counters.h2d_busy_ns = p.device.h2d_busy_ns();
  counters.d2h_busy_ns = p.device.d2h_busy_ns();
  if (p.tiers.tier() != nullptr) counters.disk_busy_ns = p.tiers.tier()->balancer().busy_ns();
  counters.time = parts_->account.parts();
  return counters;
}

std::vector<TierUse> Offloader::host_ledger() const {
  std::vector<TierUse> uses;
  for (const HostArena::LedgerEntry& entry : parts_->arena.ledger())
    uses.push_back({entry.purpose, entry.bytes});
  const uint64_t given_back = parts_->records->given_back_bytes();
  for (const HostArena::LedgerEntry& entry : parts_->record_arena.ledger())
    uses.push_back({entry.purpose, entry.bytes - given_back});
  uses.push_back({"bookkeeping of chunks", parts_->plan.bookkeeping_bytes});
  return uses;
}

uint64_t Offloader::host_peak_bytes() const {
  uint64_t bytes = parts_->plan.bookkeeping_bytes;
  for (const HostArena* arena : {&parts_->arena, &parts_->record_arena}) {
    for (const HostArena::LedgerEntry& entry : arena->ledger()) bytes += entry.bytes;
  }
  return bytes;
}

bool Offloader::host_budget_has_changed() const {
  return parts_->host_budget_has_changed;
}

const Schedule& Offloader::schedule() const {
  return parts_->training_cursor.schedule();
}

uint64_t Offloader::tier_file_bytes() const {
  uint64_t bytes = 0;
  for (const BlockStore* store :
       {parts_->tiers.params(), parts_->tiers.frozen(), parts_->tiers.records(), parts_->tiers.copied(),
        parts_->tiers.gradients(), parts_->tiers.activations()}) {
    if (store != nullptr) bytes += store->file_bytes();
  }
  return bytes;
}

std::vector<NvmePathUse> Offloader::nvme_paths() const {
  std::vector<NvmePathUse> paths;
  if (parts_->tiers.tier() == nullptr) return paths;
  PathBalancer& balancer = parts_->tiers.tier()->balancer();
  const std::vector<PathUse> uses = balancer.uses();
  const std::vector<double> rates = balancer.rates();
  for (size_t p = 0; p < uses.size(); ++p)
    paths.push_back(
        {parts_->tiers.tier()->paths()[p].path.string(), uses[p].bytes, uses[p].busy_ns, rates[p]});
  return paths;
}

TimeAccount& Offloader::time() {
  return parts_->account;
}

const StepWatch& Offloader::watch() const {
  return parts_->watch;
}

const TensorStates& Offloader::states() const {
  return parts_->states;
}

}  // namespace terrace
