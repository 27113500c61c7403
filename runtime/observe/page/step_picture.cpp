#include <terrace/runtime/observe/page/step_picture.h>

#include <algorithm>
#include <bit>

#include <terrace/base/units.h>

namespace terrace {
namespace {

// A cell is what comes last in ChunkPresence and fills this much of it; else what fills most.
constexpr double kNoticedShare = 0.25;
constexpr double kLeastShare = 0.002;

class ChunkMap {
 public:
  ChunkMap(const StepSpan& span, uint32_t chunk_count)
      : span_(span),
        chunks_per_row_(
            static_cast<uint32_t>(std::max<uint64_t>(1, divide_up(chunk_count, StepPicture::kMostRows)))),
        chunk_count_(chunk_count),
        row_count_(divide_up(chunk_count, chunks_per_row_)),
        part_ns_(static_cast<double>(span.end_ns - span.begin_ns) / StepPicture::kParts),
        covered_(row_count_ * StepPicture::kParts) {}

  uint32_t chunks_per_row() const { return chunks_per_row_; }

  void add(uint32_t chunk, uint64_t begin_ns, uint64_t end_ns, ChunkPresence presence) {
    if (chunk >= chunk_count_) return;
    const double begin = part_at(begin_ns);
    const double end = part_at(end_ns);
    const size_t row = chunk / chunks_per_row_;
    for (auto part = static_cast<size_t>(begin);
         part < StepPicture::kParts && static_cast<double>(part) < end; ++part) {
      const auto at = static_cast<double>(part);
      covered_[row * StepPicture::kParts + part][static_cast<size_t>(presence)] +=
          std::min(end, at + 1) - std::max(begin, at);
    }
  }

  std::vector<std::vector<ChunkPresence>> rows() const {
    std::vector<std::vector<ChunkPresence>> rows(row_count_);
    for (size_t row = 0; row < row_count_; ++row) {
      // The last row may have fewer.
      const auto chunks =
          static_cast<double>(std::min<uint64_t>(chunks_per_row_, chunk_count_ - row * chunks_per_row_));
      for (size_t part = 0; part < StepPicture::kParts; ++part)
        rows[row].push_back(presence_of(covered_[row * StepPicture::kParts + part], chunks));
    }
    return rows;
  }

 private:
  using Shares = std::array<double, kChunkPresenceCount>;

  double part_at(uint64_t ns) const {
    if (ns <= span_.begin_ns || part_ns_ <= 0) return 0;
    return static_cast<double>(std::min(ns, span_.end_ns) - span_.begin_ns) / part_ns_;
  }

  static ChunkPresence presence_of(const Shares& covered, double chunks) {
    for (size_t i = kChunkPresenceCount; i-- > 1;) {
      if (covered[i] >= kNoticedShare * chunks) return static_cast<ChunkPresence>(i);
    }
    const auto most = std::max_element(covered.begin(), covered.end());
    return *most >= kLeastShare * chunks ? static_cast<ChunkPresence>(most - covered.begin())
                                         : ChunkPresence::below;
  }

  const StepSpan span_;
  const uint32_t chunks_per_row_;
  const uint32_t chunk_count_;
  const size_t row_count_;
  const double part_ns_;
  std::vector<Shares> covered_;  // of a part, by the chunks of the row
};

std::optional<ChunkPresence> presence_of(const TraceEvent& transfer) {
  const bool comes = transfer.link != TraceLink::d2h && transfer.link != TraceLink::nvme_write;
  switch (transfer.role) {
    case TransferRole::param:
      return comes ? std::optional(ChunkPresence::coming) : std::nullopt;
    case TransferRole::grad:
      return comes ? std::nullopt : std::optional(ChunkPresence::gradient_leaves);
    case TransferRole::state:
      return comes ? ChunkPresence::state_comes : ChunkPresence::state_leaves;
    case TransferRole::activation:
      break;
  }
  return std::nullopt;
}

void draw_chunks(StepPicture& picture, std::span<const TraceEvent> events, const StepSpan& span) {
  ChunkMap map(span, picture.facts.chunk_count);
  for (const Residence& residence : residences(events, span)) {
    map.add(residence.chunk, residence.begin_ns, residence.end_ns,
            residence.role == TransferRole::param ? ChunkPresence::parameters : ChunkPresence::gradients);
  }
  for (const TraceEvent& event : events) {
    if (event.begin_ns >= span.end_ns || event.end_ns <= span.begin_ns) continue;
    std::optional<ChunkPresence> presence;
    if (event.kind == TraceKind::transfer) presence = presence_of(event);
    if (event.kind == TraceKind::update) presence = ChunkPresence::updated;
    if (presence) map.add(event.chunk, event.begin_ns, event.end_ns, *presence);
  }
  picture.chunks_per_row = map.chunks_per_row();
  picture.rows = map.rows();
}

size_t part_of(uint64_t at_ns, const StepSpan& span) {
  const uint64_t length_ns = std::max<uint64_t>(1, span.end_ns - span.begin_ns);
  const uint64_t from_begin = std::min(at_ns, span.end_ns) - std::min(at_ns, span.begin_ns);
  return std::min<size_t>(StepPicture::kParts - 1,
                          static_cast<size_t>(static_cast<double>(from_begin) /
                                              static_cast<double>(length_ns) * StepPicture::kParts));
}

// By part the most of what a part has seen: what it began with, and each change within it.
template <typename Sample, typename Amount>
std::vector<Sample> most_by_part(const std::vector<Sample>& samples, const StepSpan& span, Amount amount) {
  std::vector<Sample> parts(StepPicture::kParts);
  Sample now{};
  size_t next = 0;
  for (size_t part = 0; part < StepPicture::kParts; ++part) {
    Sample most = now;
    for (; next < samples.size() && part_of(samples[next].at_ns, span) == part; ++next) {
      now = samples[next];
      if (amount(now) > amount(most)) most = now;
    }
    parts[part] = most;
  }
  return parts;
}

std::vector<uint64_t> gauge_by_part(std::span<const TraceEvent> events, const StepSpan& span,
                                    TraceGauge gauge) {
  std::vector<uint64_t> values;
  for (const GaugeSample& sample :
       most_by_part(gauge_over(events, span, gauge), span, [](const GaugeSample& s) { return s.value; }))
    values.push_back(sample.value);
  return values;
}

// Uses of one kind after each other are a phase; so is the update, which may lie beside them.
void find_phases(StepPicture& picture, std::span<const TraceEvent> events, const StepSpan& span) {
  std::vector<const TraceEvent*> uses;
  StepPhase update{"update", UINT64_MAX, 0};
  for (const TraceEvent& event : events) {
    if (event.begin_ns >= span.end_ns || event.end_ns <= span.begin_ns) continue;
    if (event.kind == TraceKind::use) uses.push_back(&event);
    if (event.kind != TraceKind::update) continue;
    update.begin_ns = std::min(update.begin_ns, std::max(event.begin_ns, span.begin_ns) - span.begin_ns);
    update.end_ns = std::max(update.end_ns, std::min(event.end_ns, span.end_ns) - span.begin_ns);
  }
  std::ranges::sort(uses, {}, &TraceEvent::begin_ns);
  std::optional<UseKind> kind;
  for (const TraceEvent* use : uses) {
    const uint64_t begin_ns = std::max(use->begin_ns, span.begin_ns) - span.begin_ns;
    const uint64_t end_ns = std::min(use->end_ns, span.end_ns) - span.begin_ns;
    if (kind != use->use) {
      if (picture.phases.size() == StepPicture::kMostPhases) break;
      picture.phases.push_back({use->use == UseKind::backward ? "backward" : "forward", begin_ns, end_ns});
      kind = use->use;
    }
    picture.phases.back().end_ns = std::max(picture.phases.back().end_ns, end_ns);
  }
  if (update.begin_ns < update.end_ns) picture.phases.push_back(update);
}

}  // namespace

std::optional<StepPicture> make_step_picture(std::span<const TraceEvent> events, const TraceFacts& facts,
                                             uint32_t step) {
  const std::optional<StepSpan> span = span_of_step(events, step);
  if (!span || span->end_ns <= span->begin_ns) return std::nullopt;
  StepPicture picture;
  picture.step = step;
  picture.length_ns = span->end_ns - span->begin_ns;
  picture.facts = facts;
  for (const TraceLink link : kTraceLinks) {
    const auto i = static_cast<size_t>(link);
    picture.busy_shares[i] = link_busy_shares(events, *span, link, StepPicture::kParts);
    picture.busy_ns[i] = link_use(events, *span, link).busy_ns;
    picture.bytes[i] = link_bytes(events, step, link);
  }
  picture.device = most_by_part(device_occupancy(events, *span), *span, [](const DeviceSample& sample) {
    return sample.param_slots + sample.grad_slots + sample.leaving_slots;
  });
  picture.ring_slots = gauge_by_part(events, *span, TraceGauge::ring_slots);
  picture.host_bytes = gauge_by_part(events, *span, TraceGauge::host_bytes);
  find_phases(picture, events, *span);
  draw_chunks(picture, events, *span);
  return picture;
}

bool is_pictured_step(uint64_t completed, uint64_t step) {
  return step > completed && std::has_single_bit(step - completed);
}

}  // namespace terrace
