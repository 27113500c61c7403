// PulledParameters: gathers for which nobody waits but the rank that asks. It reads the shares of the others
// out of their host memory, each at the version that this rank is at: the number of updates so far. An owner
// answers on its communication side, from the host slot of its share, from device memory that the host
// reaches, or from a ring of its own that it reads the share of a chunk on nvme into.
//
// A share is overwritten by an update alone, which begins when all ranks have come to it, each without a read
// under way; or by a load of the state, before which and after which all ranks meet. So what is read is never
// written meanwhile, and no rank says so.
//
// Where the host reaches device memory shares are read into the slots themselves, else into slots on the host
// (OffloadOptions::gathers_by_copies), and copied from there.
//
// The step thread uses it, but for updated(), which any thread may call, and the functions of ShareSource.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include <terrace/memory/host/host_arena.h>
#include <terrace/offload/device/device_cache.h>
#include <terrace/offload/parameters/gather_stages.h>
#include <terrace/offload/parameters/gathers.h>
#include <terrace/offload/plan/run_context.h>
#include <terrace/offload/pull/rank_pulls.h>
#include <terrace/offload/transfer/chunk_transfer.h>
#include <terrace/offload/transfer/device_copy.h>

namespace terrace {

class PulledParameters final : public Gathers, public ShareSource {
 public:
  // All references outlive this.
  PulledParameters(const RunContext& run, HostArena& arena, DeviceCache& cache, RankPulls& pulls);
  // Waits for what is under way.
  ~PulledParameters() override;

  DeviceCopy& share(CacheSlot& slot) override { return shares_[cache_.number_of(slot)]; }
  const DeviceCopy& share_left(CacheSlot& slot) override { return share(slot); }
  // Waits for an earlier gather where all slots on the host are taken.
  void gather(ChunkId chunk, CacheSlot& slot, const HostShare& own, TransferReason reason) override;
  CopyName::Link link() const override { return CopyName::Link::gather; }
  bool overlap() const override { return run_.options.ranks_overlap; }
  bool has_room() const override { return stages_.empty() || stages_.has_room(); }
  void finished(ChunkId chunk) override { stages_.finished(chunk); }
  void forget(ChunkId) override {}
  void begin_step(uint64_t) override {}
  void note_use(ChunkId, const std::byte*) override {}
  void compare(uint64_t) override {}
  RankBytes moved() const override;
  uint64_t h2d_bytes() const override { return h2d_bytes_; }
  uint64_t d2h_bytes() const override { return 0; }

  void serve(const ParameterHomes& homes) override { homes_ = homes; }
  void begin_load() override;
  void end_load() override;
  void finish_reads() override;
  void begin_update() override { updating_to_.store(version_ + 1); }
  void updated(ChunkId chunk) override;
  void end_update(FunctionRef<bool(ChunkId)> is_pending) override;

  bool open_share(uint32_t chunk, uint64_t version, std::span<const std::byte>& bytes) override;
  void close_share(uint32_t chunk) override;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  // A share that was read from nvme for other ranks.
  struct Answer {
    std::byte* memory = nullptr;
    uint32_t chunk = kNone;
    uint32_t readers = 0;
    ChunkTransfer transfer;
  };
  uint64_t element_bytes(ChunkId chunk) const { return bytes_of(run_.space.section_of(chunk).type); }
  // The version of the chunk that this rank is at: frozen chunks have one.
  uint64_t version_of(ChunkId chunk) const { return run_.is_trained(chunk) ? version_ : 0; }
  // The ranks that have a share of the chunk which this one lacks.
  uint32_t others(ChunkId chunk) const;
  // Reads them to their places in `memory` behind `after`, and completes `done` once for each; if there are
  // none, once behind `after`.
  void pull(ChunkId chunk, std::byte* memory, TransferReason reason, const Event* after, Event& done);
  void gather_by_copies(ChunkId chunk, CacheSlot& slot, TransferReason reason);
  Answer* answer_of(uint32_t chunk);
  // Where the share lies at all times; null: on nvme.
  const std::byte* resident(uint32_t chunk) const;
  void meet(std::string_view what);

  const RunContext& run_;
  DeviceCache& cache_;
  RankPulls& pulls_;
  GatherStages stages_;
  const std::unique_ptr<DeviceCopy[]> shares_;  // by slot: of the own share
  uint64_t version_ = 0;
  bool is_loading_ = true;
  std::atomic<uint64_t> updating_to_{0};
  const std::unique_ptr<std::atomic<uint64_t>[]> there_;  // by chunk: the version of the own share
  RankBytes moved_;
  std::atomic<uint64_t> out_bytes_{0};
  uint64_t h2d_bytes_ = 0;

  // The communication side's.
  ParameterHomes homes_;
  const uint32_t answer_count_;
  const std::unique_ptr<Answer[]> answers_;
};

}  // namespace terrace
