// CutPower: what a disk may hold when the power goes at some moment of a DiskLog. It promises no more than
// the system does:
//  - What a file was told to hold is there when a sync of that file that began after the write had ended has
//    ended. Any other write may be there, or not, or in part: each sector of it for itself, in any order.
//  - A name is there, is gone or is another when a sync of its folder has ended. Any other change of names
//  may
//    have happened or not, each for itself; one rename or exchange happens whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "power_cut/disk_log.h"

namespace terrace::power_cut {

// What becomes of one change that no sync has made durable.
enum class Fate : uint8_t { happened, lost, torn };  // torn: of a write, some of its sectors

class CutPower {
 public:
  // Nothing has happened yet. The log outlives this.
  explicit CutPower(const std::vector<DiskEvent>& log);

  // The next event happens.
  void advance();
  bool at_end() const { return position_ == log_.size(); }
  const DiskEvent& next() const { return log_[position_]; }
  size_t position() const { return position_; }

  // Changes that a cut would put at risk: first data, then names.
  size_t pending_count() const { return pending_data_.size() + pending_names_.size(); }
  // Makes the empty folder what the disk holds. `fate` is asked for each of these by its number; `random`
  // says which sectors of a torn write are there.
  void leave_disk(const std::filesystem::path& folder, const std::function<Fate(size_t)>& fate,
                  std::mt19937_64& random) const;

 private:
  using NodeId = size_t;
  using Name = std::pair<NodeId, std::string>;  // in this folder
  using Names = std::map<Name, NodeId>;
  struct Node {
    bool folder = false;
    std::vector<std::byte> data;  // durable
  };
  struct DataChange {
    NodeId file;
    uint64_t number;  // of the write; 0: a change of size
    uint64_t offset;
    uint64_t bytes;  // the new size, or what was written
    std::vector<std::byte> data;
    bool ended;
    uint64_t serial;
  };
  struct NameChange {
    std::vector<std::pair<Name, std::optional<NodeId>>> changes;
  };

  Name name_of(const std::string& path) const;
  NodeId node_of(const std::string& path) const;
  NodeId add_node(const std::string& path, bool folder);
  void change_names(NameChange change);
  void begin_sync(const DiskEvent& event);
  void end_sync(const DiskEvent& event);
  void sync_names(NodeId folder);
  static void apply(const NameChange& change, Names& names);
  static void apply(const DataChange& change, std::vector<std::byte>& data);
  static void apply_torn(const DataChange& change, std::vector<std::byte>& data, std::mt19937_64& random);

  const std::vector<DiskEvent>& log_;
  size_t position_ = 0;
  std::vector<Node> nodes_;
  Names live_;
  Names durable_;
  std::vector<DataChange> pending_data_;
  std::vector<NameChange> pending_names_;
  std::map<uint64_t, std::vector<uint64_t>> syncs_;  // in progress, by number: the serials they cover
  uint64_t next_serial_ = 0;
};

// Calls `visit` for every moment that can differ from the one before, and there for disks in every state when
// there are at most `most` of these, else for `most` of them chosen by the seed: always the one where all
// that is pending has happened, and the one where none of it has. `disk` makes the one of this case when it
// is first called, which takes longer than to decide whether it is looked at, and gives its folder.
struct CutCase {
  size_t position;     // events that had happened
  std::string marked;  // the last mark
  std::string words;   // to find it again
};
using CutDisk = std::function<std::filesystem::path()>;
void for_each_cut(const std::vector<DiskEvent>& log, uint64_t seed, size_t most,
                  const std::function<void(const CutCase& cut, const CutDisk& disk)>& visit);

}  // namespace terrace::power_cut
