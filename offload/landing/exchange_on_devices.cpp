#include <terrace/offload/landing/exchange_on_devices.h>

#include <algorithm>

namespace terrace {

ExchangeOnDevices::ExchangeOnDevices(const ExchangeRanks& ranks, const Memory& memory, size_t most_runs)
    : ranks_(ranks), memory_(memory), own_(ranks, most_runs), parts_(memory.slots) {
  const uint64_t slot_bytes = (ranks.size() - (adds_on_device() ? 0 : 1)) * memory.place_bytes;
  for (size_t s = 0; s < parts_.size(); ++s) {
    parts_[s].on_device = memory.on_device.data() + s * slot_bytes;
    if (!adds_on_device()) parts_[s].on_host = memory.on_host[s];
    if (ranks_.dry) continue;
    parts_[s].to.resize(ranks_.size());
    parts_[s].from.resize(ranks_.size());
  }
}

ExchangeOnDevices::~ExchangeOnDevices() {
  for (const Parts& parts : parts_) {
    parts.left.wait_done();
    parts.exchanged.wait_done();
    parts.arrived.wait_done();
  }
}

// The exchange reads the slot, so it is free behind an empty copy that waits for that.
void ExchangeOnDevices::send(const StagedLanding& staged) {
  Parts& parts = parts_[staged.slot];
  const ChunkId chunk = staged.landing.chunk;
  CacheSlot& source = *staged.source;
  take_own_part(staged);
  parts.exchanged.begin({kExchangedGradients, index_of(chunk), CopyName::Link::exchange});
  exchange(staged);
  source.out.begin({kExchangedGradients, index_of(chunk), CopyName::Link::exchange});
  memory_.device.copy_to_host(nullptr, source.id, 0, 0, &parts.exchanged, source.out);
  bring_to_host(staged);
  if (ranks_.overlaps) return;
  parts.exchanged.wait_done(ranks_.watch);  // a failure is that of the addition
  parts.arrived.wait_done(ranks_.watch);
}

// A rank without a micro-batch in the round has no part, and an empty copy says that its slot is not used.
void ExchangeOnDevices::take_own_part(const StagedLanding& staged) {
  Parts& parts = parts_[staged.slot];
  const ChunkId chunk = staged.landing.chunk;
  const DeviceSlot source = staged.source->id;
  const uint64_t bytes = ranks_.element_bytes(chunk);
  const uint64_t first = ranks_.shards.own(chunk).first_element();
  const bool has_data = ranks_.rounds.has(staged.landing.micro_batch, ranks_.rank());
  const std::span<const GradientRun> runs =
      has_data ? own_.of(staged.landing).runs : std::span<const GradientRun>();
  std::byte* const place = adds_on_device() ? parts.on_device + place_of(ranks_.rank()) : staged.memory;
  parts.left.begin({kExchangedGradients, index_of(chunk),
                    adds_on_device() ? CopyName::Link::within_device : CopyName::Link::device_to_host},
                   static_cast<uint32_t>(std::max<size_t>(runs.size(), 1)));
  const auto copy = [&](const GradientRun& run) {
    const uint64_t to = run.first_element * bytes, from = (first + run.first_element) * bytes;
    const uint64_t count = run.element_count * bytes;
    if (adds_on_device())
      return memory_.device.copy_slot_to_work(place + to, source, from, count, nullptr, parts.left);
    d2h_bytes_ += count;
    memory_.device.copy_to_host(
        place + to, source, from, count, nullptr, parts.left,
        from_device_note(ranks_.watch.events(), TransferRole::grad, TransferReason::step, index_of(chunk)));
  };
  for (const GradientRun& run : runs) copy(run);
  if (runs.empty()) copy({});
}

void ExchangeOnDevices::exchange(const StagedLanding& staged) {
  Parts& parts = parts_[staged.slot];
  const ChunkId chunk = staged.landing.chunk;
  const RankBytes moving = ranks_.bytes_with_all(staged);
  moved_ += moving;
  const CommNote note = ranks_.next_note(chunk, sent_);
  if (ranks_.dry) {
    const CommPart out{parts.on_device, moving.out};
    CommPart in{parts.on_device, moving.in};
    return ranks_.communicator.exchange(Lane::exchange, {&out, 1}, {&in, 1}, &parts.left, parts.exchanged,
                                        note);
  }
  const uint64_t bytes = ranks_.element_bytes(chunk);
  const bool has_data = ranks_.rounds.has(staged.landing.micro_batch, ranks_.rank());
  const ShardTiles own = ranks_.shards.own(chunk);
  const PartSpan mine = part_in(staged.runs, own);
  // Nobody writes to what is sent.
  auto* const gradient = const_cast<std::byte*>(memory_.device.home(staged.source->id));
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    parts.to[rank] = parts.from[rank] = {};
    if (rank == ranks_.rank()) continue;
    const PartSpan part = part_in(staged.runs, ranks_.shards.of(chunk, rank));
    parts.to[rank] = {gradient + part.begin * bytes, part.elements() * bytes, !has_data};
    parts.from[rank] = {parts.on_device + place_of(rank) + mine.offset_in(own) * bytes,
                        mine.elements() * bytes};
  }
  ranks_.communicator.exchange(Lane::exchange, parts.to, parts.from, &parts.left, parts.exchanged, note);
}

// Of every other rank that has a micro-batch in the round. Where nothing comes an empty copy does: it is
// behind the one that frees the slot, so that nothing waits for the exchange any more when it is over.
void ExchangeOnDevices::bring_to_host(const StagedLanding& staged) {
  Parts& parts = parts_[staged.slot];
  const ChunkId chunk = staged.landing.chunk;
  const StepRounds& rounds = ranks_.rounds;
  const uint32_t round = staged.landing.micro_batch;
  const PartSpan mine = part_in(staged.runs, ranks_.shards.own(chunk));
  const uint64_t bytes = mine.elements() * ranks_.element_bytes(chunk);
  const uint64_t before_mine = mine.offset_in(ranks_.shards.own(chunk)) * ranks_.element_bytes(chunk);
  const uint32_t senders = rounds.ranks_with_data(round) - (rounds.has(round, ranks_.rank()) ? 1 : 0);
  const auto copy = [&](uint64_t place, uint64_t count) {
    d2h_bytes_ += count;
    std::byte* const to = count > 0 ? parts.on_host + place : nullptr;
    memory_.device.copy_work_to_host(
        to, parts.on_device + place, count, &parts.exchanged, parts.arrived,
        from_device_note(ranks_.watch.events(), TransferRole::grad, TransferReason::step, index_of(chunk)));
  };
  const bool comes = !adds_on_device() && senders > 0 && bytes > 0;
  parts.arrived.begin(to_host_copy(kExchangedGradients, chunk), comes && !ranks_.dry ? senders : 1);
  if (!comes || ranks_.dry) return copy(0, comes ? senders * bytes : 0);
  for (uint32_t rank = 0; rank < ranks_.size() && rounds.has(round, rank); ++rank) {
    if (rank != ranks_.rank()) copy(place_of(rank) + before_mine, bytes);
  }
}

bool ExchangeOnDevices::has_arrived(const StagedLanding& staged) {
  const Parts& parts = parts_[staged.slot];
  return parts.left.done() && parts.exchanged.done() && parts.arrived.done();
}

void ExchangeOnDevices::add(const StagedLanding& staged, Add add) {
  const Parts& parts = parts_[staged.slot];
  // All are over before a failure is thrown.
  for (const DeviceCopy* const copy : {&parts.left, &parts.exchanged, &parts.arrived})
    copy->wait_done(ranks_.watch);
  for (const DeviceCopy* const copy : {&parts.left, &parts.exchanged, &parts.arrived}) copy->wait();
  own_.add_all(
      staged,
      [&](uint32_t rank) -> const std::byte* {
        if (!adds_on_device() && rank == ranks_.rank()) return staged.memory;
        return (adds_on_device() ? parts.on_device : parts.on_host) + place_of(rank);
      },
      add);
}

}  // namespace terrace
