#include <terrace/offload/homes/accumulated_in_host.h>

#include <algorithm>
#include <utility>

namespace terrace {

AccumulatedInHost::AccumulatedInHost(const FlatSpace& space, Device& device, DeviceCache& cache,
                                     std::unique_ptr<GradientArithmetic> arithmetic, Places places,
                                     const AccumulationRules& rules, size_t most_runs)
    : GradientsBelowDevice(space, device, cache, std::move(arithmetic), std::move(places)), rules_(rules) {
  for (std::byte* memory : landing_slots_) {
    staged_.push_back({memory, nullptr, {}, {}});
    staged_.back().runs.reserve(most_runs);
  }
}

void AccumulatedInHost::land(const GradientLanding& landing) {
  sums().forget(landing.chunk);
  Staged& to = staged_[next_staged_];
  accumulate(to);
  next_staged_ = (next_staged_ + 1) % static_cast<uint32_t>(staged_.size());
  make_place(landing);
  to.runs.assign(landing.runs.begin(), landing.runs.end());
  to.landing = landing;
  to.landing.runs = to.runs;
  to.source = &copy_out(landing.chunk, to.runs, to.memory);
}

void AccumulatedInHost::accumulate(Staged& from) {
  if (from.source == nullptr) return;
  const ChunkId chunk = from.landing.chunk;
  from.source->out.wait(cache_.watch());
  from.source = nullptr;
  add(from.landing, from.memory);
  if (leaves_after(from.landing)) put_away(chunk);
}

void AccumulatedInHost::add(const GradientLanding& landing, const std::byte* gradient) {
  arithmetic_->add(landing, place(landing.chunk), gradient, takes_sums(landing));
}

void AccumulatedInHost::finish_landing(ChunkId chunk) {
  size_t count = 0;
  for (size_t age = 0; age < staged_.size(); ++age) {
    if (staged(age).source != nullptr && staged(age).landing.chunk == chunk) count = age + 1;
  }
  for (size_t age = 0; age < count; ++age) accumulate(staged(age));
}

void AccumulatedInHost::land_zero(const GradientLanding& landing) {
  finish_landing(landing.chunk);
  if (!is_held(landing.chunk)) return land_zero_spilled(landing);
  if (rules_.changes_with_zeros(landing)) add(landing, nullptr);
}

void AccumulatedInHost::land_zero_spilled(const GradientLanding& landing) {
  const ChunkId chunk = landing.chunk;
  if (landing.begins && landing.runs.front().element_count == space_.chunk(chunk).elements) {
    sums().set_zero(chunk);
    return spilled_->set_zero(chunk);
  }
  if (std::ranges::any_of(landing.runs, &GradientRun::is_first)) {
    make_place(landing);
    add(landing, nullptr);
  }
  if (landing.ends && spilled_->is_filling(chunk)) spilled_->write(chunk);
}

void AccumulatedInHost::poll() {
  for (size_t age = 0; age < staged_.size(); ++age) {
    Staged& next = staged(age);
    if (next.source == nullptr) continue;
    if (!next.source->out.done() || !has_old(next.landing.chunk)) break;
    accumulate(next);
  }
}

void AccumulatedInHost::finish_micro_batch(bool ends_step) {
  for (size_t age = 0; age < staged_.size(); ++age) accumulate(staged(age));
  put_all_away(ends_step);
}

}  // namespace terrace
