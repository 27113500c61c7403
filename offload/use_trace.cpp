#include <terrace/offload/use_trace.h>

#include <algorithm>

namespace terrace {

void UseRecorder::begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) {
  trace_.push_back({std::string(operation), kind, {tensors.begin(), tensors.end()}, micro_batch_});
}

void collect_chunks(const FlatSpace& space, std::span<const TensorId> tensors, std::vector<ChunkId>& chunks) {
  chunks.clear();
  for (const TensorId tensor : tensors) {
    const TensorPlace& place = space.place(tensor);
    for (uint32_t i = 0; i < place.chunk_count; ++i) chunks.push_back(ChunkId{place.first_chunk + i});
  }
  std::sort(chunks.begin(), chunks.end());
  chunks.erase(std::unique(chunks.begin(), chunks.end()), chunks.end());
}

std::vector<bool> renewed_chunks(const FlatSpace& space) {
  std::vector<bool> renewed(space.chunk_count());
  for (uint32_t c = 0; c < space.chunk_count(); ++c) renewed[c] = space.section_of(ChunkId{c}).trainable;
  return renewed;
}

namespace {

// Follows which gradients are incomplete along a trace. When another micro-batch goes on, those of the one
// before have left: they were complete, or those micro-batches come one after the other.
class LiveGradients {
 public:
  explicit LiveGradients(const FlatSpace& space)
      : space_(space),
        used_(space.tensor_count()),
        completed_(space.tensor_count()),
        is_live_(space.chunk_count()) {}

  void select_micro_batch(uint32_t micro_batch) {
    if (micro_batch == micro_batch_) return;
    micro_batch_ = micro_batch;
    std::fill(is_live_.begin(), is_live_.end(), false);
    std::fill(used_.begin(), used_.end(), 0);
    live_count_ = 0;
  }

  void begin(const TensorUse& use) {
    for (const TensorId tensor : use.tensors) {
      for_each_chunk(tensor, [&](uint32_t chunk) {
        live_count_ += is_live_[chunk] ? 0 : 1;
        is_live_[chunk] = true;
      });
    }
  }

  void end(const TensorUse& use) {
    for (const TensorId tensor : use.tensors) {
      if (!space_.tensor(tensor).trainable || ++used_[index_of(tensor)] < space_.tensor(tensor).backward_uses)
        continue;
      used_[index_of(tensor)] = 0;
      uint32_t& completed = completed_[index_of(tensor)];
      completed = std::max(completed, micro_batch_) + 1;  // a trace may not say which micro-batch it is
      for_each_chunk(tensor, [&](uint32_t chunk) {
        if (!is_live_[chunk] || !is_complete(ChunkId{chunk}, completed)) return;
        is_live_[chunk] = false;
        --live_count_;
      });
    }
  }

  uint32_t count() const { return live_count_; }

 private:
  bool is_complete(ChunkId chunk, uint32_t micro_batches) const {
    return std::ranges::all_of(space_.tensors_of(chunk), [&](TensorId tensor) {
      return completed_[index_of(tensor)] >= micro_batches;
    });
  }
  template <typename Body>
  void for_each_chunk(TensorId tensor, Body body) {
    if (!space_.tensor(tensor).trainable) return;
    const TensorPlace& place = space_.place(tensor);
    for (uint32_t c = place.first_chunk; c < place.first_chunk + place.chunk_count; ++c) body(c);
  }

  const FlatSpace& space_;
  std::vector<uint32_t> used_;       // per tensor: backward uses so far in this micro-batch
  std::vector<uint32_t> completed_;  // per tensor: micro-batches
  std::vector<bool> is_live_;        // per chunk
  uint32_t live_count_ = 0;
  uint32_t micro_batch_ = 0;
};

}  // namespace

Schedule schedule_of(const FlatSpace& space, std::span<const TensorUse> trace, CompleteGradients complete) {
  std::vector<ScheduledUse> uses;
  uses.reserve(trace.size());
  LiveGradients gradients(space);
  for (const TensorUse& use : trace) {
    ScheduledUse& scheduled = uses.emplace_back(ScheduledUse{use.operation, use.kind, {}});
    collect_chunks(space, use.tensors, scheduled.chunks);
    gradients.select_micro_batch(use.micro_batch);
    if (use.kind == UseKind::backward) gradients.begin(use);
    scheduled.occupied_slots = gradients.count();
    if (use.kind == UseKind::backward && complete == CompleteGradients::leave) gradients.end(use);
  }
  return Schedule(std::move(uses), space.chunk_count(), renewed_chunks(space));
}

SlotDemand minimum_slots(const FlatSpace& space, std::span<const TensorUse> trace, bool resident_parameters,
                         bool resident_gradients) {
  uint32_t trainable_chunks = 0;
  for (const Section& section : space.sections())
    trainable_chunks += section.trainable ? section.chunk_count : 0;
  SlotDemand demand;
  LiveGradients gradients(space);
  std::vector<ChunkId> chunks;
  for (const TensorUse& use : trace) {
    collect_chunks(space, use.tensors, chunks);
    gradients.select_micro_batch(use.micro_batch);
    if (use.kind == UseKind::backward) gradients.begin(use);
    const uint32_t parameters =
        resident_parameters ? space.chunk_count() : static_cast<uint32_t>(chunks.size());
    const uint32_t slots = parameters + (resident_gradients ? trainable_chunks : gradients.count());
    if (slots > demand.slots) demand = {slots, use.operation};
    if (use.kind == UseKind::backward) gradients.end(use);
  }
  return demand;
}

}  // namespace terrace
