// The order in which the blocks of an update are read from two paths, one of which is busy.
#include <terrace/offload/update/read_order.h>

#include <gtest/gtest.h>

#include "memory/tier/block_store_rig.h"

namespace terrace::read_order_test {
namespace {

constexpr uint32_t kChunks = 3, kBlocks = 8;

// The chunks of the blocks as they are taken.
std::vector<uint32_t> chunks_in_order(bool chunk_by_chunk) {
  BlockStoreRig rig(2);
  BlockStoreOptions options;
  options.name = "records";
  options.block_bytes = BlockStoreRig::kBlock;
  options.chunk_bytes.assign(kChunks, kBlocks * BlockStoreRig::kBlock);
  const std::unique_ptr<BlockStore> store = rig.make_store(options);
  for (uint32_t c = 0; c < kChunks; ++c) {
    for (uint32_t b = 0; b < kBlocks; ++b) rig.write(*store, ChunkId{c}, b, b);
  }
  rig.space->balancer().started(0, kGiB);
  const std::vector<ChunkId> chunks = {ChunkId{2}, ChunkId{0}, ChunkId{1}};
  ReadOrder order(store.get(), chunks);
  order.begin(chunk_by_chunk);
  for (const ChunkId chunk : chunks) order.add(chunk);
  std::vector<uint32_t> taken;
  while (!order.empty()) taken.push_back(index_of(order.take().chunk));
  rig.space->balancer().completed(0, kGiB);
  return taken;
}

TEST(ReadOrder, GoesToThePathThatIsFreeUnlessOneChunkComesAfterTheOther) {
  std::vector<uint32_t> in_turn;
  for (const uint32_t chunk : {2u, 0u, 1u}) in_turn.insert(in_turn.end(), kBlocks, chunk);
  EXPECT_EQ(chunks_in_order(true), in_turn);
  const std::vector<uint32_t> free_first = chunks_in_order(false);
  EXPECT_NE(free_first, in_turn);
  EXPECT_TRUE(std::ranges::is_permutation(free_first, in_turn));
}

}  // namespace
}  // namespace terrace::read_order_test
