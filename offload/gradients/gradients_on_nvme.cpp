#include <terrace/offload/gradients/gradients_on_nvme.h>

#include <algorithm>

namespace terrace {

void GradientsOnNvme::make_room(const GradientLanding& landing, Finish finish) {
  if (spilled_.is_filling(landing.chunk)) return;  // the chunk has kept its slot since it last landed
  if (const std::optional<ChunkId> before = spilled_.filling_next()) {
    finish(*before);
    if (spilled_.is_filling(*before)) spilled_.write(*before);
  }
  spilled_.begin(landing.chunk, !landing.begins);
}

std::byte* GradientsOnNvme::filled(ChunkId chunk) {
  spilled_.wait_old(chunk);
  return spilled_.landing(chunk);
}

// The sums are taken at every landing: a last micro-batch without a gradient does not read the gradient back.
// Where a group of micro-batches joins then, it does, and they are taken once more.
void GradientsOnNvme::sum_up(const GradientLanding& own, const std::byte* gradient, bool is_last) {
  if (own.runs.empty()) {
    if (own.ends) arithmetic_.sums().note_complete(own.chunk);
    return;
  }
  std::byte* const to = filled(own.chunk);
  if (gradient == to) return arithmetic_.take(own.chunk, type(own.chunk), to);
  arithmetic_.add(own, to, gradient, is_last);
}

void GradientsOnNvme::add(const GradientLanding& own, const std::byte* gradient, bool is_last) {
  sum_up(own, gradient, is_last);
  if (rules_.layer_major ? own.ends : own.completes) spilled_.write(own.chunk);
}

void GradientsOnNvme::add_zeros(const GradientLanding& landing, const GradientLanding& own, Finish finish) {
  const ChunkId chunk = own.chunk;
  if (own.begins && !own.runs.empty() && own.runs.front().element_count == shards_.elements(chunk)) {
    arithmetic_.sums().set_zero(chunk);
    return spilled_.set_zero(chunk);
  }
  const bool joins = rules_.is_last(own) &&
                     std::ranges::any_of(own.runs, [](const GradientRun& run) { return run.open_group > 0; });
  if (joins || std::ranges::any_of(own.runs, &GradientRun::is_first)) {
    make_room(landing, finish);
    sum_up(own, nullptr, true);
  }
  if (landing.ends && spilled_.is_filling(chunk)) spilled_.write(chunk);
}

bool GradientsOnNvme::take(const GradientLanding& landing, const HandedPart& part, const EvictionContext&,
                           Finish finish) {
  arithmetic_.sums().forget(landing.chunk);
  make_room(landing, finish);
  add_handed_part(*this, landing, part, bytes_of(shards_.space().section_of(landing.chunk).type));
  return false;
}

void GradientsOnNvme::finish(bool ends_step) {
  while (const std::optional<ChunkId> filling = spilled_.filling()) spilled_.write(*filling);
  if (ends_step) spilled_.finish_writes();
}

void GradientsOnNvme::release(ChunkId chunk) {
  arithmetic_.sums().forget(chunk);
  spilled_.release(chunk);
}

}  // namespace terrace
