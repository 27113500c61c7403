#include <terrace/offload/update/early_update.h>

#include <fmt/format.h>

#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>

namespace terrace {

EarlyUpdate::EarlyUpdate(const RunContext& run, const StateHomes& homes, DeviceCache& cache,
                         TensorStates& states, UpdateRunner& runner)
    : run_(run),
      homes_(homes),
      cache_(cache),
      states_(states),
      runner_(runner),
      taken_(run.space.chunk_count()),
      unfinished_chunks_(run.space.tensor_count()) {
  landing_.reserve(run.space.chunk_count());
}

void EarlyUpdate::begin_step() {
  announced_ = begun_ = as_landed_ = found_infinite_ = partly_applied_ = false;
  landing_.clear();
  callers_.clear();
  taken_.assign(taken_.size(), false);
  landed_count_ = 0;
  for (uint32_t t = 0; t < run_.space.tensor_count(); ++t)
    unfinished_chunks_[t] = run_.space.place(TensorId{t}).chunk_count;
}

void EarlyUpdate::announce(const UpdateSettings& settings) {
  if (runner_.mode() != UpdateMode::during_backward) return;
  if (begun_)
    throw Error(ErrorKind::misuse,
                {"cannot announce an update", "of this step", "its last micro-batch goes backward already",
                 "announce it before the first backward use of that"});
  runner_.require(settings);
  announced_ = true;
  as_landed_ = settings.clip_norm == 0 && settings.loss_scale == 1;
  if (as_landed_) runner_.set_constants(settings, 0);
}

void EarlyUpdate::begin() {
  if (std::exchange(begun_, true) || !announced_) return;
  // Which states are read is known at the end of backward only, where tensors without a gradient are left
  // out.
  if (!as_landed_ && homes_.steps.are_counted()) return;
  runner_.begin_beside(as_landed_);
}

void EarlyUpdate::require_announced(const UpdateSettings& settings) const {
  if (!takes_landings() || (settings.clip_norm == 0 && settings.loss_scale == 1)) return;
  throw Error(
      ErrorKind::misuse,
      {"cannot update", fmt::format("clip_norm {}, loss_scale {}", settings.clip_norm, settings.loss_scale),
       "the update was announced without both, and has begun", "update as it was announced"});
}

void EarlyUpdate::note_landing(ChunkId chunk) {
  if (run_.is_callers(chunk)) {
    callers_.push_back(chunk);
  } else {
    if (!run_.params_stay_on_device()) cache_.drop_stale_param(chunk);
    homes_.params.forget_gathered(chunk);
    landing_.push_back(chunk);
  }
  taken_[index_of(chunk)] = true;
  for (const TensorId tensor : run_.space.tensors_of(chunk)) {
    if (--unfinished_chunks_[index_of(tensor)] == 0) states_.change(tensor, TensorState::updating);
  }
}

// Chunks are taken in the order in which they were sent off, so that an infinite gradient stops the same
// chunks in every run.
void EarlyUpdate::take_landed() {
  for (; landed_count_ < landing_.size() && homes_.gradients.is_complete(landing_[landed_count_]);
       ++landed_count_)
    give_if_finite(landing_[landed_count_]);
}

void EarlyUpdate::give_if_finite(ChunkId chunk) {
  found_infinite_ = found_infinite_ || !homes_.gradients.is_finite(chunk);
  if (found_infinite_) return;
  partly_applied_ = true;  // stays true until all are applied
  runner_.give(chunk);
}

bool EarlyUpdate::end() {
  landing_.insert(landing_.end(), callers_.begin(), callers_.end());
  take_landed();
  TERRACE_ASSERT(landed_count_ == landing_.size(), "every gradient is complete at the end of backward");
  runner_.wait();
  taken_.assign(taken_.size(), false);
  if (!found_infinite_) partly_applied_ = false;
  return !found_infinite_;
}

}  // namespace terrace
