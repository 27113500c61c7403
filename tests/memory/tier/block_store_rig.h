// A store of blocks in folders of its own, an engine that goes wrong as planned, and transfers that wait.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/aio/engines/fault_plan.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/memory/host/pages.h>
#include <terrace/memory/tier/block_store.h>

#include "support/fault_engine.h"
#include "support/scratch_folder.h"

namespace terrace {

inline Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorKind::cancelled, {});
}

inline void fill_random(std::span<std::byte> bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
}

// Paths with tier folders, an engine, and memory that suits direct I/O.
class BlockStoreRig {
 public:
  static constexpr uint64_t kBlock = 8192;

  explicit BlockStoreRig(size_t path_count = 1) : places(path_count) { make_engine({}); }

  void make_engine(std::vector<io::Fault> faults) {
    engine = std::make_unique<io::FaultEngine>(io::make_engine({.kind = io::EngineKind::threads}),
                                               std::move(faults));
  }
  std::vector<TierPath> paths() const {
    std::vector<TierPath> paths;
    for (const ScratchFolder& place : places) paths.push_back({place.path()});
    return paths;
  }
  void open_space(TierStart start = TierStart::fresh, bool discard = false) {
    space = std::make_unique<TierSpace>(
        TierSpaceOptions{.paths = paths(), .start = start, .discard_commits = discard}, log);
  }
  std::unique_ptr<BlockStore> make_store(BlockStoreOptions options) {
    if (space == nullptr) open_space();
    return std::make_unique<BlockStore>(*space, std::move(options), *engine, log);
  }

  io::Completion transfer(io::Request& request) {
    struct Outcome {
      bool done = false;
      io::Completion completion{};
    } outcome;
    request.context = &outcome;
    request.on_complete = [](void* context, const io::Completion& completion) noexcept {
      *static_cast<Outcome*>(context) = {true, completion};
    };
    engine->submit({&request, 1});
    while (!outcome.done) engine->wait(1);
    return outcome.completion;
  }
  // Fills the block with bytes of this seed. Returns the write as it ended; throws its failure.
  BlockStore::Write write(BlockStore& store, ChunkId chunk, uint32_t block, uint64_t seed) {
    const std::span<std::byte> source = pages.memory().first(store.block_bytes(chunk, block));
    fill_random(source, seed);
    BlockStore::Write write;
    if (!store.begin_write(chunk, block, source, write))
      throw Error(ErrorKind::capacity, {"no free slot", "", "", ""});
    while (true) {
      const io::Completion completion = transfer(write.request);
      const BlockStore::WriteEnd end = store.end_write(write, completion);
      if (end == BlockStore::WriteEnd::done) return write;
      if (end == BlockStore::WriteEnd::failed) throw store.io_error(write.request, completion);
    }
  }
  // Reads and verifies; whether the bytes are those of the seed.
  bool holds(BlockStore& store, ChunkId chunk, uint32_t block, uint64_t seed) {
    const std::span<std::byte> destination = destination_of(store, chunk, block);
    io::Request request = store.read_request(chunk, block, destination);
    store.end_read(chunk, block, request, transfer(request));
    return is_of(destination, seed);
  }
  bool holds(BlockStore& store, const BlockStore::Snapshot& snapshot, ChunkId chunk, uint32_t block,
             uint64_t seed) {
    const std::span<std::byte> destination = destination_of(store, chunk, block);
    io::Request request = store.read_request(snapshot, chunk, block, destination);
    store.end_read(snapshot, chunk, block, request, transfer(request));
    return is_of(destination, seed);
  }
  // What a caller does for a commit of this one store.
  uint64_t commit(BlockStore& store, const BlockStore::Snapshot& snapshot, const std::string& info = "") {
    store.sync();
    const uint64_t commit = space->commits().empty() ? 1 : space->commits().back().commit + 1;
    space->write_commit({space->id(), commit, info, {store.layout_of(snapshot)}}, manifest_may_be_there);
    space->remove_passed();
    return commit;
  }

  bool manifest_may_be_there = false;  // of the last commit()
  std::vector<ScratchFolder> places;
  MemoryLog log;
  std::unique_ptr<TierSpace> space;
  std::unique_ptr<io::FaultEngine> engine;
  PageMapping pages = PageMapping::populated(4 * kMiB, false, "a test");

 private:
  std::span<std::byte> destination_of(BlockStore& store, ChunkId chunk, uint32_t block) {
    return pages.memory().subspan(2 * kMiB, store.block_bytes(chunk, block));
  }
  static bool is_of(std::span<const std::byte> bytes, uint64_t seed) {
    std::vector<std::byte> expected(bytes.size());
    fill_random(expected, seed);
    return std::memcmp(bytes.data(), expected.data(), bytes.size()) == 0;
  }
};

}  // namespace terrace
