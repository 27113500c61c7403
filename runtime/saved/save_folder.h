// SaveFolder: the folder in which saved states lie, and the way in which a new one takes its place. It is
// locked while this object lives. It must never remove a file that no save makes, follow a link below the
// folder, nor read or write a byte of state. A folder `<dir>` holds
//
//   NAME             a saved state, a folder of its own
//   .NAME.partial    a state that is being saved or removed
//   .NAME.replaced   a state that another of its name replaces, if names cannot be exchanged
//   latest           the name of the newest state
//   .latest.next     its next text, and the manifest that this state must have by then
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/base/log.h>
#include <terrace/runtime/saved/state_name.h>

namespace terrace::saved {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr std::string_view kPartialSuffix = ".partial";
inline constexpr std::string_view kReplacedSuffix = ".replaced";
// Room for the checksums of 12 TiB of state. A longer manifest is refused before it is read.
inline constexpr uint64_t kMaxManifestBytes = 256 * 1024 * 1024;

// What a kind of saved states has in such a folder.
struct StateKind {
  // Returns why a text is not the name of such a state; empty where it is one.
  std::string (*why_no_name)(std::string_view name) = why_no_state_name;
  // The files that a state may have beside its manifest. A folder with any other is left alone.
  std::vector<std::string> files;
  // All files of a state that an earlier Terrace saved without a manifest; empty: it saved none.
  std::vector<std::string> files_alone = {};
  // Other names in the folder that a job of this kind leaves where it dies.
  bool (*is_left_aside)(std::string_view name) = [](std::string_view) { return false; };
};

// The moments at which a state takes its place, in order, for tests: a job that dies leaves one of these.
enum class PlaceMoment : uint8_t { manifest_written, next_written, old_moved_away, in_place, latest_written };
struct PlaceOptions {
  bool set_latest = true;
  bool can_exchange = true;  // false simulates a file system that cannot exchange two names
  FunctionRef<void(PlaceMoment)> reached;
};

class SaveFolder {
 public:
  // Makes the folder when it is missing, takes its lock, and repairs it after jobs that died: it removes
  // unfinished states, gives a state that was being replaced its name back, and lets `latest` name one that
  // was complete when its job died. `log` outlives this. Throws Error(io) when the folder cannot be used or
  // another job saves there.
  SaveFolder(std::filesystem::path folder, StateKind kind, Log& log);
  ~SaveFolder();
  SaveFolder(const SaveFolder&) = delete;
  SaveFolder& operator=(const SaveFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path final_path(std::string_view name) const;
  std::filesystem::path partial_path(std::string_view name) const;
  std::filesystem::path replaced_path(std::string_view name) const;

  const StateKind& kind() const { return kind_; }

  // Gives the complete partial folder of a state, but for its manifest, that manifest and its name. Where the
  // name is taken the old state goes, and at every moment one of the two is there. Everything is durable when
  // this returns. On failure the partial folder may still be there.
  void place(std::string_view name, const std::string& manifest, const PlaceOptions& options) const;
  // Removes a state. A crash leaves it whole or gone. Where it holds a file that no save makes it is left
  // alone with a warning, and this returns false. Throws Error(io) when it cannot be moved aside.
  bool remove(const std::filesystem::path& state) const;
  // Removes a folder with nothing but files of a save in it. A failure, and a file that no save makes, is a
  // warning.
  void remove_files_of(const std::filesystem::path& folder) const;

  // Returns when the names in the folder are on the drive. Thread-safe.
  void sync() const;

 private:
  void open_and_lock();
  void finish_latest();
  void clean();
  void remove_aside(const std::string& name) const;
  std::filesystem::path move_into_place(std::string_view name, const PlaceOptions& options) const;
  void write_latest(std::string_view name) const;

  const std::filesystem::path path_;
  const StateKind kind_;
  Log& log_;
  const int process_;
  int fd_ = -1;
};

// --- Without a lock, for readers ---

// The name of the state in ".NAME.partial"; empty for any other name.
std::string state_of_aside(const StateKind& kind, std::string_view name, std::string_view suffix);
// Returns the text of kNextName. `manifest` is that of the state.
std::string next_text(std::string_view name, std::string_view manifest);
// Returns the name of the state that is complete while `latest` does not name it yet, because its job died
// between the two; empty if there is none.
std::string completed_next(const std::filesystem::path& folder, const StateKind& kind);
// Returns what `latest` holds, without a newline at its end; nothing where there is no such file.
std::optional<std::string> latest_name(const std::filesystem::path& folder);
// Returns the folder of a state: under its own name or, when a job died between two renames, under the name
// it had meanwhile. Empty when there is none.
std::filesystem::path state_folder(const std::filesystem::path& state, const StateKind& kind);
// Returns a name in the folder that no save makes: a file with another name, a folder, a link. Empty when
// there is none.
std::string foreign_name(const std::filesystem::path& state, const StateKind& kind);
// Throws Error(config) where something has the place of a state that no state may replace: all but a state of
// this kind, which may be damaged.
void require_replaceable(const std::filesystem::path& place, const StateKind& kind);

}  // namespace terrace::saved
