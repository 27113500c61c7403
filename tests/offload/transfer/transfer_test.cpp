// Blocks and chunks between a store and memory, on an engine that goes wrong as planned.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <terrace/aio/io_thread.h>
#include <terrace/offload/transfer/chunk_transfer.h>

#include "memory/tier/block_store_rig.h"

namespace terrace::transfer_test {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBlock = BlockStoreRig::kBlock;
constexpr ChunkId kChunk{1};
constexpr uint32_t kBlocks = 3;

class Transfers : public ::testing::Test {
 protected:
  std::unique_ptr<BlockStore> make_store(bool in_place = true) {
    BlockStoreOptions options;
    options.name = "records";
    options.block_bytes = kBlock;
    options.chunk_bytes = {kBlock, kBlocks * kBlock};
    options.in_place = in_place;
    options.spare_slots = in_place ? 0 : 4;
    return rig.make_store(options);
  }
  TransferPort port() { return TransferPort(*rig.engine); }
  std::span<std::byte> source() { return rig.pages.memory().first(kBlocks * kBlock); }
  std::span<std::byte> destination() { return rig.pages.memory().subspan(kMiB, kBlocks * kBlock); }
  void write(BlockStore& store, BlockTransfer& transfer, uint32_t block) {
    ASSERT_TRUE(store.begin_write(kChunk, block, source().first(kBlock), transfer.write()));
    transfer.start_write(store, port(), {.what = "optimizer states"});
  }
  bool arrived() { return std::ranges::equal(source(), destination()); }

  BlockStoreRig rig;
  StepWatch watch;
};

using BlockTransferTest = Transfers;
using ChunkTransferTest = Transfers;

TEST_F(BlockTransferTest, ReadsBackWhatItWroteAndIsNamedMeanwhile) {
  const auto store = make_store();
  fill_random(source(), 1);
  BlockTransfer transfer;
  write(*store, transfer, 2);
  EXPECT_EQ(transfer.subject().what, "optimizer states");
  EXPECT_EQ(transfer.subject().link, "host -> nvme");
  EXPECT_EQ(transfer.subject().cause, TimeCause::write);
  EXPECT_EQ(transfer.subject().chunk, kChunk);
  EXPECT_THAT(std::string(transfer.subject().file), HasSubstr("records"));
  transfer.finish(watch);
  EXPECT_FALSE(transfer.under_way());
  transfer.start_read(*store, kChunk, 2, destination(), port(),
                      {.what = "x", .tag = 7, .link = "nvme -> device"});
  EXPECT_EQ(transfer.request().tag, 7u);
  EXPECT_EQ(transfer.subject().link, "nvme -> device");
  transfer.finish(watch);
  EXPECT_TRUE(std::ranges::equal(source().first(kBlock), transfer.bytes()));
}

TEST_F(BlockTransferTest, ThrowsItsFailureOnceAndIsOfUseAgain) {
  const auto store = make_store();
  rig.write(*store, kChunk, 0, 5);
  rig.make_engine({{.index = 0, .error = EIO, .operation = io::OpKind::read}});
  BlockTransfer transfer;
  transfer.start_read(*store, kChunk, 0, destination(), port(), {.what = "x"});
  EXPECT_EQ(error_of([&] { transfer.finish(watch); }).kind(), ErrorKind::io);
  transfer.finish(watch);
  transfer.start_read(*store, kChunk, 0, destination(), port(), {.what = "x"});
  transfer.finish(watch);
  transfer.start_read(*store, kChunk, 0, destination(), port(), {.what = "x"});
  transfer.settle(watch);
}

TEST_F(BlockTransferTest, ComparesWhatWasReadAtOnceOrWhenItIsAsked) {
  const auto store = make_store();
  rig.write(*store, kChunk, 0, 5);
  rig.make_engine({{.kind = io::FaultKind::corrupt_read, .bytes = 100}});
  BlockTransfer transfer;
  transfer.start_read(*store, kChunk, 0, destination(), port(), {.what = "x"});
  EXPECT_EQ(error_of([&] { transfer.finish(watch); }).kind(), ErrorKind::corrupt);
  transfer.start_read(*store, kChunk, 0, destination(), port(), {.what = "x"}, BlockTransfer::Check::later);
  transfer.finish(watch);
  EXPECT_EQ(error_of([&] { transfer.verify(); }).kind(), ErrorKind::corrupt);
}

TEST_F(BlockTransferTest, WritesAgainWhereTheStoreLeadsItToAnotherSlot) {
  const auto store = make_store(false);
  rig.make_engine({{.index = 0, .error = EIO, .operation = io::OpKind::write}});
  fill_random(source(), 3);
  BlockTransfer transfer;
  write(*store, transfer, 0);
  transfer.finish(watch);
  EXPECT_EQ(rig.engine->faults_done(), 1u);
  EXPECT_EQ(store->bad_slot_count(), 1u);
  transfer.start_read(*store, kChunk, 0, destination(), port(), {.what = "x"});
  transfer.finish(watch);
  EXPECT_TRUE(std::ranges::equal(source().first(kBlock), transfer.bytes()));
}

TEST_F(BlockTransferTest, ReadsABlockAsItWasAtASnapshot) {
  const auto store = make_store(false);
  rig.write(*store, kChunk, 0, 5);
  const BlockStore::Snapshot snapshot = store->snapshot();
  rig.write(*store, kChunk, 0, 6);
  BlockTransfer transfer;
  transfer.start_read(*store, snapshot, kChunk, 0, destination(), port(), {.what = "x"});
  transfer.finish();
  fill_random(source(), 5);
  EXPECT_TRUE(std::ranges::equal(source().first(kBlock), destination().first(kBlock)));
  transfer.start_read(*store, kChunk, 0, destination(), port(), {.what = "x"});
  transfer.finish(watch);  // compares with what is there now
  fill_random(source(), 6);
  EXPECT_TRUE(std::ranges::equal(source().first(kBlock), destination().first(kBlock)));
}

TEST_F(BlockTransferTest, GivesItsRequestsThePriorityOfTheirPort) {
  const auto store = make_store();
  BlockTransfer transfer;
  for (const io::Priority priority : {io::Priority::background, io::Priority::critical}) {
    ASSERT_TRUE(store->begin_write(kChunk, 0, source().first(kBlock), transfer.write()));
    transfer.start_write(*store, TransferPort(*rig.engine, priority), {.what = "x"});
    EXPECT_EQ(transfer.request().priority, priority);
    transfer.finish(watch);
  }
}

TEST_F(BlockTransferTest, TellsWhoeverWantsToKnowInsteadOfThrowing) {
  const auto store = make_store();
  rig.write(*store, kChunk, 0, 5);
  rig.make_engine({{.index = 0, .error = EIO, .operation = io::OpKind::read}});
  struct Told {
    int count = 0;
    int error = 0;
    std::exception_ptr failure;
  } told;
  BlockTransfer transfer;
  transfer.tell(
      [](void* context, BlockTransfer& ended, const io::Completion& completion,
         std::exception_ptr failure) noexcept {
        EXPECT_FALSE(ended.under_way());
        Told& into = *static_cast<Told*>(context);
        ++into.count, into.error = completion.error, into.failure = std::move(failure);
      },
      &told);
  transfer.start_read(*store, kChunk, 0, destination(), port(), {.what = "x"});
  transfer.finish(watch);
  EXPECT_EQ(told.count, 1);
  EXPECT_EQ(told.error, EIO);
  EXPECT_NE(told.failure, nullptr);
}

TEST_F(ChunkTransferTest, MovesEveryBlockThroughTheThreadOfAnEngine) {
  const auto store = make_store();
  io::IoThread thread(io::make_engine({.kind = io::EngineKind::threads}));
  ChunkTransfer transfer;
  transfer.prepare(kBlocks);
  fill_random(source(), 9);
  std::atomic<bool> written{false};
  const TransferPort port(thread, io::Priority::background);
  transfer.start_write(*store, kChunk, source().data(), port, {.what = "gradients"}, &written);
  transfer.wait(watch);
  EXPECT_TRUE(written);
  transfer.start_read(*store, kChunk, destination().data(), port, {.what = "gradients"});
  transfer.wait(watch);
  EXPECT_TRUE(arrived());
}

TEST_F(ChunkTransferTest, IsNotWrittenWhereABlockFails) {
  const auto store = make_store();
  rig.make_engine({{.index = 1, .error = EIO, .operation = io::OpKind::write}});
  ChunkTransfer transfer;
  transfer.prepare(kBlocks);
  std::atomic<bool> written{false};
  transfer.start_write(*store, kChunk, source().data(), port(), {.what = "gradients"}, &written);
  EXPECT_EQ(error_of([&] { transfer.wait(watch); }).kind(), ErrorKind::io);
  EXPECT_FALSE(written);
  transfer.start_write(*store, kChunk, source().data(), port(), {.what = "gradients"}, &written);
  transfer.wait(watch);
  EXPECT_TRUE(written) << "the failure was of the write before";
}

TEST_F(ChunkTransferTest, MovesNothingBeforeItIsSubmittedOrFails) {
  const auto store = make_store();
  for (uint32_t b = 0; b < kBlocks; ++b) rig.write(*store, kChunk, b, b);
  const uint64_t read_before = rig.engine->stats().bytes_read;
  ChunkTransfer transfer;
  transfer.prepare(kBlocks);
  transfer.expect_read(*store, kChunk, destination().data(), {.what = "parameters"});
  EXPECT_FALSE(transfer.event().done());
  EXPECT_EQ(transfer.subject().request, nullptr);
  EXPECT_EQ(rig.engine->stats().bytes_read, read_before);
  transfer.submit_read(port());
  transfer.wait(watch);
  EXPECT_EQ(rig.engine->stats().bytes_read, read_before + kBlocks * kBlock);
  transfer.expect_read(*store, kChunk, destination().data(), {.what = "parameters"});
  transfer.fail_read(std::make_exception_ptr(Error(ErrorKind::cancelled, {"cannot update", "", "", ""})));
  EXPECT_EQ(error_of([&] { transfer.wait(watch); }).kind(), ErrorKind::cancelled);
  EXPECT_EQ(rig.engine->stats().bytes_read, read_before + kBlocks * kBlock);
}

TEST_F(ChunkTransferTest, EndsWithTheFailureOfWhoeverHasNoSlotForABlock) {
  const auto store = make_store(false);
  ChunkTransfer transfer;
  transfer.prepare(kBlocks);
  fill_random(source(), 4);
  const auto take = [&](uint32_t block, std::span<const std::byte> bytes, BlockStore::Write& write) {
    if (block == 2) throw Error(ErrorKind::capacity, {"no slot", "", "", ""});
    ASSERT_TRUE(store->begin_write(kChunk, block, bytes, write));
  };
  transfer.start_write(*store, kChunk, source().data(), port(), {.what = "fresh parameters"}, take);
  EXPECT_EQ(error_of([&] { transfer.wait(watch); }).kind(), ErrorKind::capacity);
  store->check();
  BlockTransfer read;
  read.start_read(*store, kChunk, 1, destination(), port(), {.what = "x"});
  read.finish(watch);
  EXPECT_TRUE(std::ranges::equal(source().subspan(kBlock, kBlock), read.bytes()));
}

TEST_F(ChunkTransferTest, LetsItsOwnerWordAFailure) {
  const auto store = make_store();
  for (uint32_t b = 0; b < kBlocks; ++b) rig.write(*store, kChunk, b, b);
  rig.make_engine({{.index = 1, .error = EIO, .operation = io::OpKind::read}});
  int blocks = 0;
  ChunkTransfer transfer;
  transfer.prepare(kBlocks);
  transfer.tell(
      [](void* context, ChunkTransfer& told, const io::Completion&, std::exception_ptr& failure) noexcept {
        ++*static_cast<int*>(context);
        failure = reworded(failure, [&](const Error& error) {
          ErrorParts parts = error.parts();
          parts.reason = "chunk " + std::to_string(index_of(told.chunk())) + ": " + parts.reason;
          return Error(error.kind(), std::move(parts));
        });
      },
      &blocks);
  transfer.start_read(*store, kChunk, destination().data(), port(), {.what = "x"});
  EXPECT_THAT(error_of([&] { transfer.wait(watch); }).what(), HasSubstr("chunk 1: "));
  EXPECT_EQ(blocks, static_cast<int>(kBlocks));
}

TEST(Reworded, LeavesAFailureThatIsNoErrorAsItIs) {
  const auto word = [](const Error& error) { return Error(ErrorKind::cancelled, error.parts()); };
  const auto other = std::make_exception_ptr(std::bad_alloc());
  EXPECT_EQ(reworded(other, word), other);
  EXPECT_EQ(reworded(nullptr, word), nullptr);
}

}  // namespace
}  // namespace terrace::transfer_test
