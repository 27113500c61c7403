// A rank that gathers parameters, alone with those of a ThreadWorld: chunks of a tile for each rank, and a
// device cache with a slot for each chunk.
#pragma once

#include <gtest/gtest.h>

#include "comm/thread_world.h"
#include "offload/homes_rig.h"
#include "support/rank_threads.h"

namespace terrace {

struct GatherRig : HomesRig {
  GatherRig(Communicator& communicator, const OffloadOptions& asked)
      : HomesRig({.budget_bytes = 8 * kMiB},
                 {{"w", {kChunks * communicator.size() * kTileElements}, DataType::bf16}},
                 communicator.size(), communicator.rank(), communicator.size()) {
    wishes = asked;
    wishes.rank = communicator.rank();
    wishes.ranks = communicator.size();
    wishes.hooks.communicator = &communicator;
    plan.share_bytes = shards.param_bytes(ChunkId{0});
    plan.device_slots = kChunks;
  }
  // The share of a rank, whose values are of few bits.
  static std::vector<Bf16> share_of(ChunkId chunk, uint32_t rank, uint32_t version = 0) {
    std::vector<Bf16> share(kTileElements);
    for (uint64_t e = 0; e < kTileElements; ++e)
      share[e] = to_bf16(static_cast<float>(e % 2) + static_cast<float>(1 + index_of(chunk) + 8 * rank) +
                         64.0f * static_cast<float>(version));
    return share;
  }
  std::vector<Bf16> whole(ChunkId chunk, uint32_t version = 0) const {
    std::vector<Bf16> all;
    for (uint32_t r = 0; r < wishes.ranks; ++r) {
      const std::vector<Bf16> share = share_of(chunk, r, version);
      all.insert(all.end(), share.begin(), share.end());
    }
    return all;
  }
};

}  // namespace terrace
