#include <terrace/offload/plan/use_trace.h>

#include <algorithm>
#include <array>
#include <unordered_set>
#include <utility>

#include <terrace/base/error.h>

namespace terrace {

void UseRecorder::begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) {
  open_.push_back(trace_.size());
  trace_.push_back({std::string(operation), kind, {tensors.begin(), tensors.end()}, micro_batch_});
}

void UseRecorder::end_use() {
  if (open_.empty())
    throw Error(ErrorKind::misuse, {"cannot end a lease", "of a trace", "none is open", "begin one first"});
  trace_[open_.back()].encloses = static_cast<uint32_t>(trace_.size() - 1 - open_.back());
  open_.pop_back();
}

std::vector<TensorUse> trace_of_units(std::span<const TensorUnit> units, uint32_t micro_batches,
                                      bool layer_major) {
  std::vector<TensorUse> trace;
  trace.reserve(2 * units.size() * micro_batches);
  const auto add = [&](const TensorUnit& unit, UseKind kind, uint32_t micro_batch) {
    trace.push_back(
        {unit.key + (kind == UseKind::forward ? "/forward" : "/backward"), kind, unit.tensors, micro_batch});
  };
  // Those micro-batches that are open together.
  const auto add_pass = [&](uint32_t begin, uint32_t end) {
    for (size_t u = 0; u < 2 * units.size(); ++u) {
      const bool forward = u < units.size();
      for (uint32_t m = begin; m < end; ++m)
        add(units[forward ? u : 2 * units.size() - 1 - u], forward ? UseKind::forward : UseKind::backward, m);
    }
  };
  if (layer_major) {
    add_pass(0, micro_batches);
    return trace;
  }
  for (uint32_t m = 0; m < micro_batches; ++m) add_pass(m, m + 1);
  return trace;
}

void collect_chunks(const SpaceLayout& space, std::span<const TensorId> tensors,
                    std::vector<ChunkId>& chunks) {
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

// ChunksOfTensors: the chunks of every tensor, told apart by whether they hold elements of other tensors.
// Only its first and last chunk may be shared. The time to make this depends on the number of tensors, not of
// chunks.
class ChunksOfTensors {
 public:
  explicit ChunksOfTensors(const SpaceLayout& space) : of_(space.tensor_count()) {
    std::vector<std::pair<uint32_t, uint32_t>> ends;  // chunk, tensor
    for (uint32_t t = 0; t < space.tensor_count(); ++t) {
      const TensorPlace& place = space.places()[t];
      of_[t].own = place.chunk_count;
      ends.emplace_back(place.first_chunk, t);
      if (place.chunk_count > 1) ends.emplace_back(place.first_chunk + place.chunk_count - 1, t);
    }
    std::ranges::sort(ends);
    for (size_t begin = 0, end = 0; begin < ends.size(); begin = end) {
      while (end < ends.size() && ends[end].first == ends[begin].first) ++end;
      if (end - begin == 1) continue;
      std::vector<uint32_t>& tensors = tensors_of_shared_.emplace_back();
      for (size_t e = begin; e < end; ++e) {
        Chunks& chunks = of_[ends[e].second];
        --chunks.own;
        chunks.shared[chunks.shared_count++] = static_cast<uint32_t>(tensors_of_shared_.size() - 1);
        tensors.push_back(ends[e].second);
      }
    }
  }

  uint32_t own_count(TensorId tensor) const { return of_[index_of(tensor)].own; }
  // Returns their numbers among all shared chunks.
  std::span<const uint32_t> shared(TensorId tensor) const {
    const Chunks& chunks = of_[index_of(tensor)];
    return {chunks.shared.data(), chunks.shared_count};
  }
  size_t shared_count() const { return tensors_of_shared_.size(); }
  std::span<const uint32_t> tensors_of_shared(uint32_t number) const { return tensors_of_shared_[number]; }

 private:
  struct Chunks {
    uint32_t own = 0;
    uint32_t shared_count = 0;
    std::array<uint32_t, 2> shared = {};
  };
  std::vector<Chunks> of_;
  std::vector<std::vector<uint32_t>> tensors_of_shared_;
};

// ChunkCounter: a set of tensors' chunks, of which only the size is known.
class ChunkCounter {
 public:
  explicit ChunkCounter(const ChunksOfTensors& chunks)
      : chunks_(chunks), has_shared_(chunks.shared_count()) {}

  void clear() {
    has_own_.clear();
    std::fill(has_shared_.begin(), has_shared_.end(), false);
    count_ = 0;
  }
  void add(TensorId tensor) {
    if (has_own_.insert(tensor).second) count_ += chunks_.own_count(tensor);
    for (const uint32_t shared : chunks_.shared(tensor)) {
      count_ += has_shared_[shared] ? 0 : 1;
      has_shared_[shared] = true;
    }
  }
  // `goes` says of each shared chunk whether it is removed too.
  template <typename Goes>
  void remove(TensorId tensor, Goes goes) {
    if (has_own_.erase(tensor) > 0) count_ -= chunks_.own_count(tensor);
    for (const uint32_t shared : chunks_.shared(tensor)) {
      if (!has_shared_[shared] || !goes(shared)) continue;
      has_shared_[shared] = false;
      --count_;
    }
  }
  uint32_t count() const { return count_; }

 private:
  const ChunksOfTensors& chunks_;
  std::unordered_set<TensorId> has_own_;
  std::vector<bool> has_shared_;
  uint32_t count_ = 0;
};

// Follows along a trace which gradients are incomplete. When another micro-batch goes on, the gradients of
// the one before have left: they were complete, or the micro-batches come one after the other.
class LiveGradients {
 public:
  LiveGradients(const SpaceLayout& space, const ChunksOfTensors& chunks)
      : space_(space),
        chunks_(chunks),
        used_(space.tensor_count()),
        completed_(space.tensor_count()),
        live_(chunks) {}

  void select_micro_batch(uint32_t micro_batch) {
    if (micro_batch == micro_batch_) return;
    micro_batch_ = micro_batch;
    std::fill(used_.begin(), used_.end(), 0);
    live_.clear();
  }

  void begin(const TensorUse& use) {
    for (const TensorId tensor : use.tensors) {
      if (space_.tensor(tensor).trainable) live_.add(tensor);
    }
  }

  void end(const TensorUse& use) {
    for (const TensorId tensor : use.tensors) {
      if (!space_.tensor(tensor).trainable || ++used_[index_of(tensor)] < space_.tensor(tensor).backward_uses)
        continue;
      used_[index_of(tensor)] = 0;
      uint32_t& completed = completed_[index_of(tensor)];
      completed = std::max(completed, micro_batch_) + 1;  // a trace may not say which micro-batch it is
      live_.remove(tensor, [&](uint32_t shared) { return is_complete(shared, completed); });
    }
  }

  uint32_t count() const { return live_.count(); }

 private:
  bool is_complete(uint32_t shared, uint32_t micro_batches) const {
    return std::ranges::all_of(chunks_.tensors_of_shared(shared),
                               [&](uint32_t tensor) { return completed_[tensor] >= micro_batches; });
  }

  const SpaceLayout& space_;
  const ChunksOfTensors& chunks_;
  std::vector<uint32_t> used_;       // per tensor: its backward uses in this micro-batch
  std::vector<uint32_t> completed_;  // per tensor: its complete micro-batches
  ChunkCounter live_;
  uint32_t micro_batch_ = 0;
};

// TraceWalk: goes through the uses of a trace in the order in which they begin, and says which of them are
// open meanwhile.
class TraceWalk {
 public:
  TraceWalk(std::span<const TensorUse> trace, LiveGradients& gradients, LeasedGradients leased)
      : trace_(trace), gradients_(gradients), leased_(leased) {}

  // Begins the use at `position`, after those that end before it.
  void begin(size_t position) {
    std::erase_if(open_, [&](size_t open) {
      if (open + trace_[open].encloses >= position) return false;
      if (trace_[open].kind == UseKind::backward && leased_ == LeasedGradients::leave)
        gradients_.end(trace_[open]);
      return true;
    });
    open_.push_back(position);
    gradients_.select_micro_batch(trace_[position].micro_batch);
    if (trace_[position].kind == UseKind::backward && leased_ != LeasedGradients::elsewhere)
      gradients_.begin(trace_[position]);
  }
  // The positions of the open uses; the last one began last.
  std::span<const size_t> open() const { return open_; }

 private:
  std::span<const TensorUse> trace_;
  LiveGradients& gradients_;
  const LeasedGradients leased_;
  std::vector<size_t> open_;
};

}  // namespace

LeasedGradients leased_gradients(const OffloadOptions& options) {
  if (options.gradients != GradientOrigin::leases) return LeasedGradients::elsewhere;
  return gradients_stay(options) ? LeasedGradients::stay : LeasedGradients::leave;
}

Schedule schedule_of(const FlatSpace& space, std::span<const TensorUse> trace, LeasedGradients leased) {
  std::vector<ScheduledUse> uses;
  uses.reserve(trace.size());
  const ChunksOfTensors chunks_of(space);
  LiveGradients gradients(space, chunks_of);
  TraceWalk walk(trace, gradients, leased);
  std::vector<TensorId> tensors;
  for (size_t position = 0; position < trace.size(); ++position) {
    const TensorUse& use = trace[position];
    walk.begin(position);
    tensors.clear();
    for (const size_t open : walk.open())
      tensors.insert(tensors.end(), trace[open].tensors.begin(), trace[open].tensors.end());
    ScheduledUse& scheduled = uses.emplace_back(ScheduledUse{use.operation, use.kind, {}});
    collect_chunks(space, tensors, scheduled.chunks);
    scheduled.occupied_slots = gradients.count();
  }
  return Schedule(std::move(uses), space.chunk_count(), renewed_chunks(space));
}

// The chunks with parameters to place.
static uint32_t placed_chunks(const SpaceLayout& space) {
  uint32_t count = 0;
  for (const Section& section : space.sections())
    count += section.home == TensorHome::managed ? section.chunk_count : 0;
  return count;
}

static uint32_t trainable_chunks(const SpaceLayout& space) {
  uint32_t count = 0;
  for (const Section& section : space.sections()) count += section.trainable ? section.chunk_count : 0;
  return count;
}

SlotDemand minimum_slots(const SpaceLayout& space, std::span<const TensorUse> trace, bool resident_parameters,
                         bool resident_gradients, LeasedGradients leased) {
  SlotDemand demand;
  const ChunksOfTensors chunks_of(space);
  LiveGradients gradients(space, chunks_of);
  // Gradients that stay are counted as resident.
  TraceWalk walk(trace, gradients, leased == LeasedGradients::stay ? LeasedGradients::leave : leased);
  ChunkCounter used(chunks_of);
  for (size_t position = 0; position < trace.size(); ++position) {
    const TensorUse& use = trace[position];
    walk.begin(position);
    used.clear();
    for (const size_t open : walk.open()) {
      for (const TensorId tensor : trace[open].tensors) used.add(tensor);
    }
    const uint32_t parameters = resident_parameters ? placed_chunks(space) : used.count();
    const uint32_t slots = parameters + (resident_gradients ? trainable_chunks(space) : gradients.count());
    if (slots > demand.slots) demand = {slots, use.operation};
  }
  return demand;
}

SlotDemand least_slots(const SpaceLayout& space, bool resident_parameters, bool resident_gradients,
                       LeasedGradients leased) {
  SlotDemand demand;
  for (uint32_t t = 0; t < space.tensor_count(); ++t) {
    if (space.tensor(TensorId{t}).home == TensorHome::caller) continue;
    const uint32_t chunks = space.place(TensorId{t}).chunk_count;
    const uint32_t parameters = resident_parameters ? placed_chunks(space) : chunks;
    const bool has_gradient = space.tensor(TensorId{t}).trainable && leased != LeasedGradients::elsewhere;
    const uint32_t gradient = has_gradient ? chunks : 0;
    const uint32_t slots = parameters + (resident_gradients ? trainable_chunks(space) : gradient);
    if (slots > demand.slots) demand = {slots, space.tensor(TensorId{t}).name};
  }
  return demand;
}

}  // namespace terrace
