// Saved states of any program: files that are written as a stream into a folder of their own, which others
// find whole or not at all, and read back so that no damaged byte goes unnoticed. What the files mean is
// known to whoever writes them; docs/saved_state_format.md describes the bytes. Nothing here holds more than
// a block of a file in memory.
//
// One thread at a time per object. Errors: Error(config) for a name, or for a place that holds what is no
// such state; Error(corrupt) for damage, naming file, block, offset and both checksums; Error(io) and
// Error(capacity) of the system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/base/log.h>
#include <terrace/runtime/saved/block_file.h>
#include <terrace/runtime/saved/save_folder.h>

namespace terrace::saved {

struct StateManifest {
  struct File {
    std::string name;
    DataFile data;
  };
  std::string facts;  // what the program that saved says of the state, in its own words
  std::vector<File> files;
};

inline constexpr std::string_view kStateFormatName = "terrace-saved-state";
inline constexpr uint64_t kMostFactsBytes = 64 * 1024 * 1024;

std::string manifest_text(const StateManifest& manifest);
// `path` is named in errors. Throws Error(corrupt) unless manifest_text() writes the text byte for byte, and
// Error(config) when a later version wrote it.
StateManifest parse_state_manifest(std::string_view text, const std::filesystem::path& path);

// A state on its way into `<folder>/<name>`. Destroyed before it is complete, it leaves no trace.
class StateWriter {
 public:
  // `files` are the names of all files that the state will have. A state of that name is replaced when the
  // new one is complete; where something else has the name, nothing changes and Error(config) says so. `kind`
  // has the files that others of its kind have, where these are not the same.
  StateWriter(const std::filesystem::path& folder, std::string name, std::vector<std::string> files, Log& log,
              StateKind kind = {});
  // The same in a folder that is locked already, and outlives this.
  StateWriter(const SaveFolder& folder, std::string name, std::vector<std::string> files);
  ~StateWriter();
  StateWriter(const StateWriter&) = delete;
  StateWriter& operator=(const StateWriter&) = delete;

  // Ends the file before, and begins one of the files, each once. Where the bytes to come are known, disk
  // space for all of them is taken, or Error(capacity) thrown; or `clone` makes the file share them with
  // another one (BlockWriter::take_clone()), and they are read for their checksums alone.
  void begin_file(const std::string& name, uint64_t bytes = 0);
  void begin_file(const std::string& name, uint64_t bytes, FunctionRef<bool(int)> clone);
  void write(std::span<const std::byte> bytes);
  // Returns when the file that was begun last is on the drive.
  void end_file();
  // Gives the state its name, and names it in `latest` where that is asked for. It is durable when this
  // returns.
  void complete(std::string facts, bool set_latest);
  void complete(std::string facts, const PlaceOptions& options);

 private:
  void begin(const SaveFolder& folder);

  const std::string name_;
  const std::vector<std::string> files_;
  const int process_;  // a forked child removes nothing
  std::optional<SaveFolder> own_folder_;
  const SaveFolder* folder_ = nullptr;
  bool is_there_ = false;  // the partial folder
  std::string file_name_;
  uint64_t announced_bytes_ = 0;  // of it, where they were known
  std::optional<BlockWriter> file_;
  StateManifest manifest_;
};

// A state that is read. One that an earlier Terrace saved without a manifest has no facts, and its bytes are
// given as they are.
class StateReader {
 public:
  // `name`: absent for the state that `latest` names. `files` are those of a state without a manifest. Checks
  // the manifest, and that the files are there with their sizes, and no others. Without a state it throws
  // Error(io).
  StateReader(const std::filesystem::path& folder, const std::optional<std::string>& name,
              std::vector<std::string> files);

  const std::filesystem::path& path() const { return path_; }
  const std::string& facts() const { return manifest_.facts; }
  // Throws Error(config) for a name that no file of the state has.
  uint64_t bytes_of(const std::string& file) const;
  void read(const std::string& file, uint64_t offset, std::span<std::byte> destination);
  // Reads every byte of every file.
  void verify();

 private:
  void open_with_manifest();
  void open_without(const StateKind& kind);
  void require_no_others() const;
  size_t number_of(const std::string& file) const;

  std::filesystem::path path_;
  bool has_manifest_ = false;
  StateManifest manifest_;
  std::vector<std::unique_ptr<BlockReader>> readers_;  // by file
  std::vector<io::File> plain_;                        // instead, without a manifest
};

}  // namespace terrace::saved
