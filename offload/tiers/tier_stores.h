// TierStores: an Offloader's part on nvme: one tier space, a store of blocks for each role, and the engines
// that move them. Stores are created, or opened as the last commit left them. It must never move a block
// itself.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/aio/io_thread.h>
#include <terrace/base/log.h>
#include <terrace/memory/device/device.h>
#include <terrace/memory/host/host_arena.h>
#include <terrace/memory/space/chunk_shards.h>
#include <terrace/memory/tier/block_store.h>
#include <terrace/memory/tier/tier_space.h>
#include <terrace/offload/options/offload_options.h>
#include <terrace/offload/plan/memory_plan.h>

namespace terrace {

// The step thread uses it. Its stores live as long as it does.
class TierStores {
 public:
  // Creates or opens everything that the options place on nvme, if anything. All references outlive this;
  // engines register the memory of `arena`. Throws Error(capacity) where room is missing, Error(config) where
  // a resumed commit does not fit, else Error(io).
  TierStores(const ChunkShards& shards, const OffloadOptions& options, const MemoryPlan& plan, Device& device,
             HostArena& arena, Log& log);
  TierStores(const TierStores&) = delete;
  TierStores& operator=(const TierStores&) = delete;

  // The tier space and the step thread's engine are null where nothing is on nvme.
  TierSpace* tier() const { return tier_.get(); }
  io::Engine* engine() const { return engine_.get(); }
  // The stores of each role; null where the role has none.
  BlockStore* params() const { return params_.get(); }
  BlockStore* frozen() const { return frozen_.get(); }  // with commits, which frozen parameters are part of
  BlockStore* records() const { return records_.get(); }
  BlockStore* copied() const {
    // Parameters that live elsewhere have a copy here, which only commits write.
    return copied_.get();
  }
  // No commit contains gradients and activations.
  BlockStore* gradients() const { return gradients_.get(); }
  BlockStore* activations() const { return activations_.get(); }
  // The engine for transfers while the step thread computes: parameters and activations on their way in,
  // gradients and activations on their way out. Null where there are none of these.
  io::IoThread* reader() const { return reader_.get(); }
  io::IoThread* file_reader() const {
    // The device's own engine with options.reads_past_host; else null.
    return file_reader_.get();
  }

  // Makes the reader where only gradients or activations go through it; with parameters on nvme the
  // constructor makes it.
  void make_reader();
  // Makes a store of saved activations, of so many chunks of `unit_bytes`, each a block. Nothing was told of
  // it beforehand, and no engine has registered its files.
  std::unique_ptr<BlockStore> make_saved_store(uint32_t number, uint32_t units, uint64_t unit_bytes);
  // Makes one more engine that knows the files. `purpose` is its name where steps are recorded.
  std::unique_ptr<io::Engine> make_engine(std::string_view purpose);
  // Makes an engine that knows the files and the memory of the arena.
  std::unique_ptr<io::Engine> make_engine_with_memory(std::string_view purpose);
  // The commits that were found in the tier, oldest first. take_found_commits() may be called once.
  bool has_found_commits() const { return !found_commits_.empty(); }
  const TierManifest& last_found_commit() const { return found_commits_.back(); }
  std::vector<TierManifest> take_found_commits() { return std::exchange(found_commits_, {}); }

 private:
  void register_files(io::Engine& with);
  void open_tier();
  bool has_other_ranks() const;
  bool start_with_ranks(std::span<const std::filesystem::path> folders, TierSpaceOptions& start) const;
  bool may_write_beside_commit() const;
  bool fits_beside(const TierManifest& commit) const;
  void require_found_layout() const;
  std::vector<uint64_t> record_bytes() const;
  std::vector<uint64_t> trained_param_bytes() const;
  std::vector<uint32_t> numbers_of(const std::vector<TierPath>& paths) const;
  // The bytes on the drives of stores that are made later than this one.
  uint64_t bytes_of_later_stores(std::string_view store) const;
  void make_param_stores();
  void make_record_store();
  void make_copied_store();
  void make_gradient_store();
  void make_activation_store();
  void make_file_reader();

  const ChunkShards& shards_;
  const FlatSpace& space_;
  const OffloadOptions& options_;
  const MemoryPlan& plan_;
  Device& device_;
  HostArena& arena_;
  Log& log_;
  std::unique_ptr<TierSpace> tier_;
  std::unique_ptr<io::Engine> engine_;
  std::unique_ptr<BlockStore> params_;
  std::unique_ptr<BlockStore> frozen_;
  std::unique_ptr<BlockStore> records_;
  std::unique_ptr<BlockStore> copied_;
  std::unique_ptr<BlockStore> gradients_;
  std::unique_ptr<BlockStore> activations_;
  std::vector<TierManifest> found_commits_;
  std::unique_ptr<io::IoThread> reader_;
  std::unique_ptr<io::IoThread> file_reader_;
};

}  // namespace terrace
