// ParameterGathers: how the shares of all ranks come together in a device slot. A rank brings its own share
// to its place there, and the others bring theirs. Every rank gathers the same chunks in the same order.
//
// Where the host reaches device memory, ranks read and write the slots themselves; elsewhere the communicator
// moves shares from slot to slot (gather_on_devices()), or a gather passes through a slot on the host
// (OffloadOptions::gathers_by_copies): the other ranks' shares come there, and are copied from there to the
// device. The own share leaves from where it lies on the host, or is copied out of the slot first.
//
// Where ranks are on several hosts, a share crosses to each other host once, to the rank of the same place
// there, and goes on from there to the ranks of that host. A sub-group of hosts keeps what the plan has room
// for (MemoryPlan::kept_gathers), each rank what has come to it from other sub-groups: until forget() the
// chunk comes together without them. Shares that are rounded (OffloadOptions::parameter_bits) cross as codes,
// which lose nothing, and are parameters again on the host.
//
// The step thread uses it; it allocates in its constructor only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <terrace/comm/operations/communicator.h>
#include <terrace/memory/host/host_arena.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/parameters/gather_comparison.h>
#include <terrace/offload/parameters/gather_stages.h>
#include <terrace/offload/parameters/gathers.h>
#include <terrace/offload/parameters/quantized_copies.h>
#include <terrace/offload/plan/rank_bytes.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/transfer/device_copy.h>

namespace terrace {

// SlotGather: the gathers into one slot of the device.
struct SlotGather {
  DeviceCopy share;  // of the own share into the slot
  // By rank: of the ranks of this host, once for the shares of each host; and where there are several hosts,
  // of the ranks across them.
  std::vector<std::vector<CommPart>> to, from;
  DeviceCopy crossed;  // of the shares from other hosts
};

class ParameterGathers final : public Gathers {
 public:
  // `run` has ranks; `cache` gets its part in the gathers of its slots. Both outlive this.
  ParameterGathers(const RunContext& run, HostArena& arena, DeviceCache& cache);
  // Waits for what is under way.
  ~ParameterGathers() override;

  DeviceCopy& share(CacheSlot& slot) override { return slots_[cache_.number_of(slot)].share; }
  const DeviceCopy& share_left(CacheSlot& slot) override { return goes_by_copies() ? slot.in : share(slot); }
  // Waits for an earlier gather where all slots on the host are taken.
  void gather(ChunkId chunk, CacheSlot& slot, const HostShare& own, TransferReason reason) override;
  CopyName::Link link() const override { return CopyName::Link::gather; }
  bool overlap() const override { return run_.options.ranks_overlap; }
  bool has_room() const override { return !goes_by_copies() || stages_.has_room(); }
  void forget(ChunkId chunk) override {
    if (index_of(chunk) < kept_.size()) kept_[index_of(chunk)].is_current = false;
  }
  void finished(ChunkId chunk) override { stages_.finished(chunk); }
  void begin_step(uint64_t count) override { comparison_.begin_step(count); }
  void note_use(ChunkId chunk, const std::byte* parameters) override {
    comparison_.note_use(chunk, parameters);
  }
  void compare(uint64_t step) override { comparison_.compare(step); }
  RankBytes moved() const override { return moved_; }
  uint64_t h2d_bytes() const override { return h2d_bytes_; }
  uint64_t d2h_bytes() const override { return d2h_bytes_; }

 private:
  bool goes_by_copies() const { return !stages_.empty(); }
  // Of a chunk whose shares from other sub-groups are kept.
  struct Kept {
    std::byte* memory = nullptr;  // one share for each of their hosts; null: nothing is kept of the chunk
    bool is_current = false;
  };
  // Shares on their way between hosts as codes; slots are taken in turns.
  struct Codes {
    std::byte* memory = nullptr;    // of one share from each host, the own one too
    DeviceCopy made, arrived;       // of the own share, and from other hosts
    DeviceCopy* crossed = nullptr;  // of the last gather whose shares were here
  };
  struct Gather {
    ChunkId chunk;
    TransferReason reason;
    SlotGather& slot;
    std::byte* own;    // where the own share is
    std::byte* whole;  // where the shares of others come
    const Kept& kept;
    const Event* after;  // the own share is there, and the slot free
  };
  // Completes `done` once for each host.
  void bring_together(const Gather& gather, Event& done);
  // Shares of this rank's place cross between hosts; begins the event `crossed` of the slot.
  void cross(const Gather& gather);
  // The same as codes: waits for an earlier gather where all their slots are taken.
  void cross_as_codes(const Gather& gather);
  // Where the share of the rank of this one's place on `host` comes from there.
  std::byte* crossing(const Gather& gather, uint32_t host) const;
  // Copies what is kept of the chunk to the slot, once it is there; completes `done` once for each share.
  void copy_kept(const Gather& gather, const CacheSlot& slot, Event& done);
  uint32_t kept_shares(const Kept& kept) const {
    return kept.memory != nullptr ? hosts_.hosts - sub_group_.count : 0;
  }
  // True if the share from that host is kept, or will be.
  bool keeps(const Kept& kept, uint32_t host) const {
    return kept.memory != nullptr && !sub_group_.has(hosts_.rank(host, hosts_.place_on_host(ranks_.rank())));
  }
  // The ranks of this one's place among which shares cross, this one alone where all others are kept.
  RankGroup crossing_ranks(const Gather& gather) const {
    return gather.kept.is_current ? sub_group_ : hosts_.across_hosts_of(ranks_.rank());
  }
  // Each rank of the group sends one share to the others: its own, or that of the rank of its place on
  // `host`. With `codes` the shares are these.
  void exchange(const Gather& gather, const RankGroup& group, std::optional<uint32_t> host,
                const Event* after, Event& done, const Codes* codes = nullptr);
  // Of the share of this rank's place on the host.
  std::byte* code_memory(const Codes& codes, uint32_t host) const {
    return codes.memory +
           host * quantized_bytes(run_.plan.share_bytes / sizeof(Bf16), run_.options.parameter_bits);
  }
  void copy_from_stage(const Gather& gather, const GatherStages::Stage& stage, CacheSlot& slot,
                       const Event& share);
  void count(const Gather& gather);
  void gather_by_copies(ChunkId chunk, CacheSlot& slot, const HostShare& own, TransferReason reason);

  const RunContext& run_;
  DeviceCache& cache_;
  Communicator& ranks_;
  const HostLayout hosts_;
  const RankGroup sub_group_;  // the ranks of this one's place on the hosts of its sub-group
  GatherComparison comparison_;
  std::vector<SlotGather> slots_;
  std::vector<Kept> kept_;  // by chunk, of the first ones
  Kept not_kept_;           // of all others
  GatherStages stages_;
  const std::unique_ptr<Codes[]> codes_;  // MemoryPlan::code_slots
  uint32_t next_codes_ = 0;
  const std::unique_ptr<QuantizedCopies> quantized_;  // null: shares cross as they are
  uint64_t count_ = 0;
  RankBytes moved_;
  uint64_t h2d_bytes_ = 0;
  uint64_t d2h_bytes_ = 0;
};

}  // namespace terrace
