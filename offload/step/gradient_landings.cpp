#include <terrace/offload/step/gradient_landings.h>

#include <fmt/format.h>

#include <algorithm>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>

namespace terrace {

GradientLandings::GradientLandings(const RunContext& run, GradientRuns& runs, GradientStore& gradients,
                                   DeviceCache& cache, TensorStates& states, EarlyUpdate& early_update)
    : run_(run),
      runs_(runs),
      gradients_(gradients),
      cache_(cache),
      states_(states),
      early_update_(early_update),
      backward_uses_(run.space.tensor_count()),
      unlanded_chunks_(run.space.tensor_count()) {
  if (run.options.layer_major) holding_.reserve(run.plan.device_slots);
}

void GradientLandings::begin_step() {
  runs_.begin_step();
  holding_.clear();
  early_update_.begin_step();
  begin_micro_batch();
}

void GradientLandings::begin_micro_batch() {
  std::fill(backward_uses_.begin(), backward_uses_.end(), 0);
  for (uint32_t t = 0; t < run_.space.tensor_count(); ++t)
    unlanded_chunks_[t] = run_.space.place(TensorId{t}).chunk_count;
}

uint32_t GradientLandings::slots_with(const OpenUse& use) const {
  uint32_t count = cache_.gradient_slot_count();
  if (use.kind != UseKind::backward) return count;
  for (const ChunkId chunk : use.chunks)
    count += run_.is_trained(chunk) && !cache_.has_gradient(chunk) ? 1 : 0;
  return count;
}

void GradientLandings::open(const OpenUse& use, uint32_t micro_batch, FunctionRef<CacheSlot&()> take_slot) {
  for (const ChunkId chunk : use.chunks) {
    if (!run_.is_trained(chunk)) continue;
    if (!cache_.has_gradient(chunk)) {
      TERRACE_ASSERT(
          !runs_.has_landed(chunk, micro_batch),
          fmt::format("{} adds to a gradient that is complete: TensorSpec::backward_uses is too low",
                      use.operation));
      cache_.begin_gradient(chunk, take_slot());
      if (run_.options.layer_major) holding_.push_back(chunk);
    }
    cache_.pin_gradient(chunk);
  }
}

void GradientLandings::close(const OpenUse& use, uint32_t micro_batch) {
  for (const ChunkId chunk : use.chunks) {
    if (run_.is_trained(chunk)) cache_.unpin_gradient(chunk);
  }
  for (const TensorId tensor : use.tensors) {
    if (!run_.space.tensor(tensor).trainable ||
        ++backward_uses_[index_of(tensor)] < run_.space.tensor(tensor).backward_uses)
      continue;
    states_.change(tensor, TensorState::grad_ready);
    runs_.complete(tensor, micro_batch);
  }
  for (const ChunkId chunk : use.chunks) {
    if (cache_.has_gradient(chunk) && runs_.is_complete(chunk, micro_batch) &&
        !runs_.has_landed(chunk, micro_batch))
      land(chunk, micro_batch);
  }
}

// The complete parts of the chunk's gradient leave the device.
void GradientLandings::land(ChunkId chunk, uint32_t micro_batch) {
  note_tensors_landing(chunk, micro_batch);
  const GradientLanding leaving = runs_.take(chunk, micro_batch);
  if (cache_.has_gradient(chunk)) {
    std::erase(holding_, chunk);
    gradients_.land(leaving);
  } else {
    gradients_.land_zero(leaving);
  }
  if (leaving.ends && early_update_.takes_landings()) early_update_.note_landing(chunk);
}

// A tensor is reducing once the gradients of all its chunks are on their way. If the step's next micro-batch
// is open already, the tensor is made ready for it at once.
void GradientLandings::note_tensors_landing(ChunkId chunk, uint32_t micro_batch) {
  const std::span<const TensorId> held = run_.space.tensors_of(chunk);
  for (size_t i = 0; i < held.size(); ++i) {
    const TensorId tensor = held[i];
    if (!runs_.is_pending(chunk, i) || --unlanded_chunks_[index_of(tensor)] > 0) continue;
    if (states_.state(tensor) == TensorState::grad_ready) states_.change(tensor, TensorState::reducing);
    if (!run_.options.layer_major || micro_batch + 1 == run_.options.accumulation_steps) continue;
    unlanded_chunks_[index_of(tensor)] = run_.space.place(tensor).chunk_count;
    backward_uses_[index_of(tensor)] = 0;
    if (states_.state(tensor) == TensorState::reducing) states_.change(tensor, TensorState::hold);
  }
}

void GradientLandings::land_open(uint32_t micro_batch) {
  while (!holding_.empty()) {
    const ChunkId chunk = holding_.front();
    for (const TensorId tensor : run_.space.tensors_of(chunk)) {
      if (backward_uses_[index_of(tensor)] == 0 || runs_.is_complete(tensor, micro_batch)) continue;
      throw Error(
          ErrorKind::misuse,
          {"cannot go on with another micro-batch than that of", run_.space.tensor(tensor).name,
           fmt::format("it has had {} of {} backward uses", backward_uses_[index_of(tensor)],
                       run_.space.tensor(tensor).backward_uses),
           "where micro-batches are open together, let the backward uses of a tensor follow each other"});
    }
    land(chunk, micro_batch);
  }
}

void GradientLandings::complete_unused(uint32_t micro_batch) {
  for (uint32_t t = 0; t < run_.space.tensor_count(); ++t) {
    const TensorId tensor{t};
    if (!run_.space.tensor(tensor).trainable) continue;
    const TensorState state = states_.state(tensor);
    if (state == TensorState::hold_after_forward || state == TensorState::hold_after_backward)
      states_.change(tensor, TensorState::grad_ready);
    if (!runs_.is_complete(tensor, micro_batch)) runs_.complete(tensor, micro_batch);
  }
  for (uint32_t c = 0; c < run_.space.chunk_count(); ++c) {
    if (run_.is_trained(ChunkId{c}) && !runs_.has_landed(ChunkId{c}, micro_batch))
      land(ChunkId{c}, micro_batch);
  }
}

void GradientLandings::drop() {
  for (uint32_t c = 0; c < run_.space.chunk_count(); ++c) {
    if (cache_.has_gradient(ChunkId{c})) cache_.drop_gradient(ChunkId{c});
  }
}

}  // namespace terrace
