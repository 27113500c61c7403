#include <terrace/runtime/checkpoint/commit_copies.h>

#include <algorithm>
#include <string>
#include <utility>

#include <terrace/memory/tier/tier_space.h>
#include <terrace/runtime/checkpoint/commit_info.h>
#include <terrace/runtime/checkpoint/internal/manifest.h>
#include <terrace/runtime/checkpoint/internal/set_streams.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFolders = "the folders of the states";

// Every rank's paths, by rank; a rank may name its own from another working directory than the first one's.
std::vector<ShardPaths> paths_of_all(std::span<const fs::path> own, const WatchedVotes& ranks) {
  std::string text;
  for (const fs::path& path : own) text += fs::absolute(path).string() + '\0';
  const std::vector<uint64_t> lengths = ranks.of_all(kFolders, uint64_t{text.size()});
  text.resize(std::ranges::max(lengths));
  const std::vector<char> all = ranks.of_all(kFolders, std::span<const char>(text));
  std::vector<ShardPaths> shards(lengths.size());
  for (size_t r = 0; r < shards.size(); ++r) {
    const char* at = all.data() + r * text.size();
    for (const char* const end = at + lengths[r]; at < end; at += shards[r].back().native().size() + 1)
      shards[r].emplace_back(at);
  }
  return shards;
}

// The shards of one state have one label, and no other state has it.
bool are_in_sight(std::span<const ShardPaths> shards) {
  const FoundTier first = look_at_tier(shards.front());
  return std::ranges::all_of(shards, [&](const ShardPaths& paths) {
    const FoundTier found = look_at_tier(paths);
    return found.id && found.id == first.id && found.paths_fit;
  });
}

// A commit of all ranks.
class SetSource final : public StateSource {
 public:
  SetSource(std::span<const ShardPaths> shards, uint64_t commit, const FlatSpace& flat_space)
      : space_(flat_space),
        streams_(shards, commit, "cannot save a checkpoint of the commit"),
        states_bytes_(streams_.states().bytes()),
        frozen_bytes_(streams_.frozen().bytes()) {}

  const std::string& info() const { return streams_.info(); }
  const FlatSpace& space() const override { return space_; }
  RecordLayout layout() const override { return streams_.layout().canonical(); }
  uint64_t states_bytes() const override { return states_bytes_; }
  uint64_t frozen_bytes() const override { return frozen_bytes_; }
  void read_states(Sink sink) override {
    read_in_blocks(states_bytes_, checkpoint::kBlockBytes, sink,
                   [states = streams_.states()](uint64_t, auto part) mutable { states.read(part); });
  }
  void read_frozen(Sink sink) override {
    read_in_blocks(frozen_bytes_, checkpoint::kBlockBytes, sink,
                   [frozen = streams_.frozen()](uint64_t, auto part) mutable { frozen.read(part); });
  }

 private:
  const FlatSpace& space_;
  const SetStreams streams_;
  const uint64_t states_bytes_, frozen_bytes_;
};

}  // namespace

CommitCopies::CommitCopies(Offloader& offloader, const FlatSpace& space, std::span<const fs::path> own,
                           const WatchedVotes& ranks)
    : offloader_(offloader), space_(space), are_possible_(offloader.commits().are_kept()) {
  if (!are_possible_ || ranks.count() == 1) return;
  shards_ = paths_of_all(own, ranks);
  are_possible_ = ranks.of_first(kFolders, ranks.rank() > 0 || are_in_sight(shards_));
}

CommitCopies::Copied CommitCopies::last() const {
  if (shards_.empty()) {
    std::unique_ptr<PinnedCommit> commit = offloader_.commits().pin();
    CheckpointInfo info = parse_commit_info(commit->info(), "the commit just made");
    return {std::move(info), std::make_unique<CommitSource>(std::move(commit), space_)};
  }
  auto source = std::make_unique<SetSource>(shards_, offloader_.commits().last(), space_);
  return {parse_commit_info(source->info(), "the commit just made"), std::move(source)};
}

}  // namespace terrace
