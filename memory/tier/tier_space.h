// TierSpace: the tier folders of one run, one per path, as one space with one id, and the commits in them. It
// must never remove or overwrite anything that a whole commit needs unless it was told to, nor any file that
// Terrace did not make.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <terrace/base/clock.h>
#include <terrace/base/log.h>
#include <terrace/memory/tier/path_balancer.h>
#include <terrace/memory/tier/tier_folder.h>
#include <terrace/memory/tier/tier_manifest.h>
#include <terrace/memory/tier/tier_start.h>

namespace terrace {

namespace io {
class FileEvents;
}
namespace tier {
struct FolderSurvey;
}

struct TierPath {
  std::filesystem::path path;   // an existing folder
  double bytes_per_second = 0;  // measured while reads and writes are mixed; 0: not known
  bool operator==(const TierPath&) const = default;
};

// A manifest among the files of path 0. A passing (not retained) one is removed when the next commit is
// durable.
struct CommitFile {
  uint64_t commit = 0;
  std::filesystem::path path;
  bool retained = false;
};

struct TierSpaceOptions {
  std::vector<TierPath> paths;  // at least one, no two alike
  // fresh removes the files of a dead job, with a line; a commit, or files that may be part of one, are an
  // Error(config) unless `discard_commits`. resume needs paths that hold a whole commit, else it is an Error;
  // their order is that of the run that made them, not the order given here.
  TierStart start = TierStart::fresh;
  bool discard_commits = false;
  // resume takes up the commit of this number and removes later ones, which are no whole states; 0: the
  // newest.
  uint64_t commit = 0;
  bool retain = false;  // the commit that is taken up is retained from now on
  // The id of a fresh space, which several spaces share where each holds a shard of one state; absent: drawn.
  std::optional<SpaceId> id = {};
  // The least number of the next commit. Numbers of commits that other shards have are not used again.
  uint64_t least_number = 1;
  // For plans: the paths need not be there, no folder is made or locked, and nothing is written. The start is
  // fresh.
  bool dry = false;
  io::FileEvents* events = nullptr;  // hears of every change on the drives; outlives the space
  const Clock* clock = nullptr;      // null: the steady one
};

// One thread at a time, except where said otherwise.
class TierSpace {
 public:
  // Locks the folders for its lifetime. Throws Error(io) when a path cannot be used or another job has it,
  // Error(config) and Error(corrupt) when the files there must not be removed, or cannot be resumed.
  TierSpace(TierSpaceOptions options, Log& log);
  // Removes its files, unless the last keep_files() said true, and unlocks.
  ~TierSpace();
  TierSpace(const TierSpace&) = delete;
  TierSpace& operator=(const TierSpace&) = delete;

  size_t path_count() const { return paths_.size(); }
  bool is_dry() const { return options_.dry; }
  // A dry space has no folders.
  TierFolder& folder(size_t path) { return *folders_[path]; }
  // The paths in the order of the space.
  const std::vector<TierPath>& paths() const { return paths_; }
  PathBalancer& balancer() { return *balancer_; }
  const SpaceId& id() const { return id_; }
  io::FileEvents* events() const { return options_.events; }
  void keep_files(bool keep);

  // The commits in the folders, oldest first, without passing ones that a later commit has replaced.
  const std::vector<CommitFile>& commits() const { return commits_; }
  // The number of the next commit: greater than that of any that was ever in these folders.
  uint64_t next_number() const { return next_number_; }
  TierManifest read_commit(uint64_t commit) const;
  // Writes a manifest, later than all others, and returns its bytes. It is durable when this returns: written
  // aside, fsync, rename, fsync of the folder. The blocks that it names must be durable before. Throws
  // Error(io) when a lock of the folders was taken away. `may_be_there` is set before the manifest gets its
  // name: of a failure before that nothing is left, and after one behind it a crash may bring the commit
  // back. Any one thread may call it while no other call of this object runs.
  uint64_t write_commit(const TierManifest& manifest, bool& may_be_there);
  // Removes the manifests of passing commits before the last one. A crash may bring them back; they are
  // passed over then, because a later one exists. The same threads may call it.
  void remove_passed();
  // A retained commit stays until it is removed. The changes of both functions are durable when they return.
  void retain_commit(uint64_t commit);
  void remove_commit(uint64_t commit);

 private:
  void lock_folders();
  void start_fresh();
  void start_resumed();
  void require_nothing_to_lose();
  void remove_leftovers();
  TierFolder::Removed remove_durably(TierFolder& folder);
  void write_labels();
  void take_up_commits(const std::vector<CommitFile>& found);
  std::vector<CommitFile>::iterator find_commit(uint64_t commit);
  void remove_unnamed(const tier::FolderSurvey& folder);
  void remove_file(const std::filesystem::path& path);

  TierSpaceOptions options_;
  Log& log_;
  SteadyClock steady_clock_;
  std::vector<TierPath> paths_;
  std::vector<std::unique_ptr<TierFolder>> folders_;
  std::unique_ptr<PathBalancer> balancer_;
  SpaceId id_;
  std::vector<CommitFile> commits_;
  uint64_t next_number_ = 1;
};

SpaceId draw_space_id();

// The contents of the tier folders of some paths, found without locking or changing anything; for plans and
// listings. Throws Error(io) where something may be there that the system does not let be read.
struct FoundTier {
  bool present = false;       // files of a space, whole or not
  std::optional<SpaceId> id;  // by the label of path 0
  bool whole = false;         // `newest` can be resumed from these paths, as far as manifests and labels say
  uint64_t commit = 0;        // the number of `newest`
  TierManifest newest;        // the newest commit, if any, whole or not
  std::string trouble;        // why it is not whole, in words
  std::vector<CommitFile> commits;
  std::vector<CommitFile> passed;     // passing ones that `newest` has replaced, damaged ones too
  uint64_t greatest = 0;              // number of the last manifest, readable or not
  std::vector<CommitFile> manifests;  // all of them, readable or not
  bool has_manifests = false;         // files of commits, readable or not
  bool paths_fit = false;             // by their labels, these are all the paths of one space
  bool in_use = false;                // a job has one of the folders now
  uint32_t path_count = 0;            // paths of the space, by the labels; 0: no label can be read
};
// `commit` is to be the newest, and later ones are left out; 0: there is no such limit.
FoundTier look_at_tier(std::span<const std::filesystem::path> paths, uint64_t commit = 0);

}  // namespace terrace
