// StateSet: the committed state of a run of any number of ranks, on nvme paths that this process sees. Each
// rank has a shard in folders of its own in every path, or in the path itself where there is one rank. A run
// with another number of ranks, or with records of another layout, reads it, and then it goes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/base/log.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/memory/tier/tier_folder.h>
#include <terrace/offload/offloader.h>
#include <terrace/offload/plan/budget_shortage.h>
#include <terrace/runtime/checkpoint/found_commit.h>
#include <terrace/runtime/config/tier_paths.h>

namespace terrace {

struct StateSet {
  std::vector<ShardPaths> shards;  // by number
  TierContents contents;           // `newest` is set where the state is whole
  std::optional<uint64_t> run_id;  // of a commit, of that of some shard where none is whole
  std::string store = {};          // its name, where several stores share the paths
  bool is_second = false;          // TierPlace
  const SavedState* newest() const { return contents.newest ? &*contents.newest : nullptr; }
  TierPlace place() const { return {static_cast<uint32_t>(shards.size()), is_second}; }
  bool has_own_folders() const { return place() != TierPlace{} || !store.empty(); }
};

// "1 rank", "4 ranks".
std::string text_of_rank_count(uint64_t ranks);

// The sets in these paths, with a commit or without, those of fewer ranks first, but not that of the place
// `but`; those of `store` where several share the paths. Changes nothing. Throws Error(io) when a folder
// cannot be read.
std::vector<StateSet> find_state_sets(std::span<const std::filesystem::path> paths,
                                      std::optional<TierPlace> but = {}, std::string_view store = {});

// Sets the state of `offloader`, which is between two steps, to that of `set`, whose newest commit is whole;
// every rank reads what is its own. Throws as load_checkpoint() does, before anything changes where manifest
// and tensors do not fit.
void load_state_set(const StateSet& set, std::string_view model, const FlatSpace& space, Offloader& offloader,
                    Log& log);

// The same for what a program that embeds the memory manager has committed. `require` is told the text of the
// commit, and throws where its tensors are not those of `offloader`. Says what becomes of records of another
// layout, which a run says at its beginning. Returns the text.
std::string load_state_set(const StateSet& set, FunctionRef<void(const std::string& text)> require,
                           Offloader& offloader, Log& log);

// Throws the failure of a run that reads a set: where the drives are what is too small, it says that the set
// stays until the run has a commit.
[[noreturn]] void throw_shortage_beside(const ShortageError& failure);

// Holds the locks of a set's folders, so that no other job begins there. Throws Error(io) where one has them.
class HeldSet {
 public:
  HeldSet(const StateSet& set, Log& log);
  // Removes the set: manifests first, so that a crash leaves nothing that could be taken for a state.
  void remove();
  // Removes the manifests of the commits that `goes` names by their numbers. Throws Error(io).
  void remove_commits(FunctionRef<bool(uint64_t commit)> goes);

 private:
  const StateSet set_;
  Log& log_;
  std::vector<std::unique_ptr<TierFolder>> folders_;
};

}  // namespace terrace
