#include <terrace/offload/step/gradient_landings.h>

#include <fmt/format.h>

#include <algorithm>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/option.h>

namespace terrace {

GradientLandings::GradientLandings(const RunContext& run, GradientRuns& runs, GradientStore& gradients,
                                   DeviceCache& cache, TensorStates& states, EarlyUpdate& early_update)
    : run_(run),
      runs_(runs),
      gradients_(gradients),
      cache_(cache),
      states_(states),
      early_update_(early_update),
      uses_(run.space.tensor_count()),
      unlanded_chunks_(run.space.tensor_count()) {
  if (run.options.layer_major) holding_.reserve(run.plan.device_slots);
}

void GradientLandings::begin_step() {
  runs_.begin_step();
  holding_.clear();
  untold_.clear();
  early_update_.begin_step();
  begin_micro_batch();
}

void GradientLandings::begin_micro_batch() {
  std::ranges::fill(uses_, Uses{});
  for (uint32_t t = 0; t < run_.space.tensor_count(); ++t)
    unlanded_chunks_[t] = run_.space.place(TensorId{t}).chunk_count;
}

uint32_t GradientLandings::slots_with(const OpenUse& use) const {
  uint32_t count = cache_.gradient_slot_count();
  if (use.kind != UseKind::backward || !writes_gradients()) return count;
  for (const ChunkId chunk : use.chunks)
    count += run_.is_trained(chunk) && !cache_.has_gradient(chunk) ? 1 : 0;
  return count;
}

void GradientLandings::require_usable(std::string_view operation, std::span<const TensorId> tensors,
                                      UseKind kind, uint32_t micro_batch) const {
  const auto refuse = [&](TensorId tensor, std::string_view reason, Wording advice) {
    throw Error(ErrorKind::misuse, {fmt::format("cannot lease {} to", run_.space.tensor(tensor).name),
                                    std::string(operation), std::string(reason), std::move(advice)});
  };
  for (const TensorId tensor : tensors) {
    if (run_.space.tensor(tensor).home == TensorHome::caller)
      refuse(tensor, "its parameters lie in memory of the program", "read them there, without a lease");
    if (!run_.space.tensor(tensor).trainable) continue;
    const Uses& uses = uses_[index_of(tensor)];
    if (kind == UseKind::backward && writes_gradients()) {
      if (uses.begun > uses.ended)
        refuse(tensor, "another lease that goes backward writes its gradient", "end that lease first");
      // Where micro-batches are open together, a gradient that has left counts no uses any more.
      if (uses.begun >= run_.space.tensor(tensor).backward_uses || runs_.is_complete(tensor, micro_batch))
        refuse(
            tensor, "its gradient is complete in this micro-batch",
            run_.options.layer_major
                ? "select the micro-batch that the lease belongs to, or lease the tensor to read; a larger " +
                      Option::backward_uses + " allows more leases in one micro-batch"
                : "describe it with a larger " + Option::backward_uses + ", or lease it to read");
    }
    if (!runs_.is_complete(tensor, micro_batch)) continue;
    const TensorPlace& place = run_.space.place(tensor);
    for (uint32_t i = 0; i < place.chunk_count; ++i) {
      const ChunkId chunk{place.first_chunk + i};
      if (gradients_.is_displaced(chunk))
        refuse(tensor, "its gradient is complete and has taken the place of its parameters",
               "read parameters before the last backward use of their tensor ends");
      if (early_update_.has_taken(chunk))
        refuse(tensor, "its gradient is complete and its update has begun",
               "read parameters before that, or update after the backward pass");
    }
  }
}

void GradientLandings::open(const OpenUse& use, FunctionRef<CacheSlot&()> take_slot) {
  if (!writes_gradients()) return;
  size_t pinned = 0;
  try {
    for (; pinned < use.chunks.size(); ++pinned) {
      const ChunkId chunk = use.chunks[pinned];
      if (!run_.is_trained(chunk)) continue;
      if (!cache_.has_gradient(chunk)) {
        cache_.begin_gradient(chunk, take_slot());
        if (run_.options.layer_major) holding_.push_back(chunk);
      }
      cache_.pin_gradient(chunk);
    }
  } catch (...) {
    unpin(std::span(use.chunks).first(pinned));
    throw;
  }
  for (const TensorId tensor : use.tensors) ++uses_[index_of(tensor)].begun;
}

void GradientLandings::give_up(const OpenUse& use) {
  if (!writes_gradients()) return;
  unpin(use.chunks);
  for (const TensorId tensor : use.tensors) --uses_[index_of(tensor)].begun;
}

void GradientLandings::unpin(std::span<const ChunkId> chunks) {
  for (const ChunkId chunk : chunks) {
    if (run_.is_trained(chunk)) cache_.unpin_gradient(chunk);
  }
}

void GradientLandings::close(const OpenUse& use, uint32_t micro_batch) {
  if (!writes_gradients()) return;
  unpin(use.chunks);
  for (const TensorId tensor : use.tensors) {
    if (!run_.space.tensor(tensor).trainable) continue;
    note_gradient(tensor, micro_batch);
    if (++uses_[index_of(tensor)].ended < run_.space.tensor(tensor).backward_uses) continue;
    runs_.complete(tensor, micro_batch);
    follow(tensor, micro_batch);
  }
  for (const ChunkId chunk : use.chunks) {
    if (cache_.has_gradient(chunk) && runs_.is_complete(chunk, micro_batch) &&
        !runs_.has_landed(chunk, micro_batch))
      land(chunk, micro_batch);
  }
}

void GradientLandings::note_gradient(TensorId tensor, uint32_t micro_batch) {
  if (!pulls(run_.options) || rounds_of(run_.options).has(micro_batch, run_.options.rank))
    runs_.note_gradient(tensor);
}

// The complete parts of the chunk's gradient leave the device.
void GradientLandings::land(ChunkId chunk, uint32_t micro_batch) {
  note_tensors_landing(chunk, micro_batch);
  const bool is_on_device = writes_gradients() && cache_.has_gradient(chunk);
  const GradientLanding leaving = runs_.take(chunk, micro_batch, is_on_device);
  if (is_on_device) std::erase(holding_, chunk);
  if (leaving.ends && !runs_.is_updated(chunk)) {
    if (is_on_device) cache_.drop_gradient(chunk);  // of a use that could not begin
    return gradients_.leave_out(chunk);
  }
  if (is_on_device) {
    gradients_.land(leaving);
  } else {
    gradients_.land_zero(leaving);
  }
  note_landed(leaving);
}

void GradientLandings::hand_over(TensorId tensor, const std::byte* gradient, uint32_t micro_batch,
                                 const EvictionContext& now) {
  const TensorPlace& place = run_.space.place(tensor);
  const uint64_t element_bytes = bytes_of(run_.space.tensor(tensor).type);
  note_gradient(tensor, micro_batch);
  runs_.complete(tensor, micro_batch);
  for (uint32_t i = 0; i < place.chunk_count; ++i) {
    const ChunkId chunk{place.first_chunk + i};
    const FlatSpace::Part part = run_.space.part_of(tensor, chunk);
    note_tensors_landing(chunk, micro_batch);
    const GradientLanding landing = runs_.take(chunk, micro_batch, true);
    gradients_.land_from(
        landing,
        {tensor, part.first_in_tensor, gradient + part.first_in_tensor * element_bytes, part.elements}, now);
    note_landed(landing);
  }
}

// The update changes the parameters of a chunk that it is told of, so nobody may read them any more.
void GradientLandings::note_landed(const GradientLanding& landing) {
  if (!landing.ends || !early_update_.takes_landings()) return;
  if (cache_.is_pinned(landing.chunk)) {
    untold_.push_back(landing.chunk);
  } else {
    early_update_.note_landing(landing.chunk);
  }
}

void GradientLandings::tell_update() {
  std::erase_if(untold_, [this](ChunkId chunk) {
    if (cache_.is_pinned(chunk)) return false;
    early_update_.note_landing(chunk);
    return true;
  });
}

// A leased tensor is in the state compute whatever becomes of its gradient; the last lease's end makes up for
// it.
void GradientLandings::follow(TensorId tensor, uint32_t micro_batch) {
  const TensorState state = states_.state(tensor);
  if (state == TensorState::compute || !run_.space.tensor(tensor).trainable ||
      !runs_.is_complete(tensor, micro_batch))
    return;
  if (state == TensorState::hold_after_forward || state == TensorState::hold_after_backward)
    states_.change(tensor, TensorState::grad_ready);
  if (states_.state(tensor) == TensorState::grad_ready && unlanded_chunks_[index_of(tensor)] == 0)
    states_.change(tensor, TensorState::reducing);
}

// A tensor is reducing once the gradients of all its chunks are on their way. If the step's next micro-batch
// is open already, the tensor is made ready for it at once.
void GradientLandings::note_tensors_landing(ChunkId chunk, uint32_t micro_batch) {
  const std::span<const TensorId> held = run_.space.tensors_of(chunk);
  for (size_t i = 0; i < held.size(); ++i) {
    const TensorId tensor = held[i];
    if (!runs_.is_pending(chunk, i) || --unlanded_chunks_[index_of(tensor)] > 0) continue;
    follow(tensor, micro_batch);
    if (!run_.options.layer_major || rounds_of(run_.options).is_last(micro_batch)) continue;
    unlanded_chunks_[index_of(tensor)] = run_.space.place(tensor).chunk_count;
    uses_[index_of(tensor)] = {};
    if (states_.state(tensor) == TensorState::reducing) states_.change(tensor, TensorState::hold);
  }
}

void GradientLandings::land_open(uint32_t micro_batch) {
  while (!holding_.empty()) {
    const ChunkId chunk = holding_.front();
    for (const TensorId tensor : run_.space.tensors_of(chunk)) {
      if (uses_[index_of(tensor)].ended == 0 || runs_.is_complete(tensor, micro_batch)) continue;
      throw Error(
          ErrorKind::misuse,
          {"cannot go on with another micro-batch than that of", run_.space.tensor(tensor).name,
           fmt::format("it has had {} of {} backward uses", uses_[index_of(tensor)].ended,
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
    if (!runs_.is_complete(tensor, micro_batch)) runs_.complete(tensor, micro_batch);
    follow(tensor, micro_batch);
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
