// TierStores: what an Offloader has on nvme: one tier space, a store of blocks for each role, and the engines
// that move them. Stores are made, or opened as the last commit left them. It must never move a block itself.
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
#include <terrace/memory/space/flat_space.h>
#include <terrace/memory/tier/block_store.h>
#include <terrace/memory/tier/tier_space.h>
#include <terrace/offload/options/offload_options.h>
#include <terrace/offload/plan/memory_plan.h>

namespace terrace {

// Used by the step thread. Its stores live as long as it does.
class TierStores {
 public:
  // Creates or opens everything that the options place on nvme, or nothing. All references outlive this;
  // engines register the memory of `arena`. Throws Error(capacity) where the space is not there,
  // Error(config) where a commit that is resumed does not fit, else Error(io).
  TierStores(const FlatSpace& space, const OffloadOptions& options, const MemoryPlan& plan, Device& device,
             HostArena& arena, Log& log);
  TierStores(const TierStores&) = delete;
  TierStores& operator=(const TierStores&) = delete;

  // Null where nothing is on nvme.
  TierSpace* tier() const { return tier_.get(); }
  io::Engine* engine() const { return engine_.get(); }  // the step thread's
  // Of each role; null where it has none.
  BlockStore* params() const { return params_.get(); }
  BlockStore* frozen() const { return frozen_.get(); }  // where commits are kept, of which it is part
  BlockStore* records() const { return records_.get(); }
  BlockStore* copied() const {
    return copied_.get();
  }  // of parameters that live elsewhere, written by commits alone
  BlockStore* gradients() const { return gradients_.get(); }  // never part of a commit, as are the next
  BlockStore* activations() const { return activations_.get(); }
  // For what goes on while the step thread computes: parameters and activations on their way in, gradients on
  // their way out. Null where there is none of these.
  io::IoThread* reader() const { return reader_.get(); }
  io::IoThread* file_reader() const {
    return file_reader_.get();
  }  // the device's own; options.reads_past_host

  // Makes the reader where gradients or activations alone go through it; parameters have it from the
  // beginning.
  void make_reader();
  // One more engine that knows the files. `purpose` is its name where steps are recorded.
  std::unique_ptr<io::Engine> make_engine(std::string_view purpose);
  // The same, and it knows the memory of the arena.
  std::unique_ptr<io::Engine> make_engine_with_memory(std::string_view purpose);
  // The commits of a tier that is resumed, oldest first; once.
  bool has_found_commits() const { return !found_commits_.empty(); }
  const TierManifest& last_found_commit() const { return found_commits_.back(); }
  std::vector<TierManifest> take_found_commits() { return std::exchange(found_commits_, {}); }

 private:
  void register_files(io::Engine& with);
  void open_tier();
  bool can_write_beside_epoch(std::span<const TierPath> paths) const;
  void require_found_layout() const;
  std::vector<uint64_t> record_bytes() const;
  std::vector<uint64_t> trained_param_bytes() const;
  std::vector<uint32_t> numbers_of(const std::vector<TierPath>& paths) const;
  // On disk, of stores that are made later than this one.
  uint64_t bytes_of_later_stores(std::string_view store) const;
  void make_param_stores();
  void make_record_store();
  void make_copied_store();
  void make_gradient_store();
  void make_activation_store();
  void make_file_reader();

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
