#include "power_cut/cut_power.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <stdexcept>

#include "support/scratch_folder.h"

namespace terrace::power_cut {
namespace {

constexpr size_t kRoot = 0;
constexpr uint64_t kSectorBytes = 512;

}  // namespace

CutPower::CutPower(const std::vector<DiskEvent>& log) : log_(log) {
  nodes_.push_back({true, {}});
}

CutPower::Name CutPower::name_of(const std::string& path) const {
  const std::filesystem::path whole(path);
  const std::string parent = whole.parent_path().string();
  return {node_of(parent.empty() ? "." : parent), whole.filename().string()};
}

CutPower::NodeId CutPower::node_of(const std::string& path) const {
  NodeId node = kRoot;
  for (const std::filesystem::path& part : std::filesystem::path(path)) {
    if (part == ".") continue;
    const auto found = live_.find({node, part.string()});
    if (found == live_.end()) throw std::logic_error("the log names " + path + " and never made it");
    node = found->second;
  }
  return node;
}

CutPower::NodeId CutPower::add_node(const std::string& path, bool folder) {
  nodes_.push_back({folder, {}});
  change_names({{{name_of(path), nodes_.size() - 1}}});
  return nodes_.size() - 1;
}

void CutPower::apply(const NameChange& change, Names& names) {
  for (const auto& [name, node] : change.changes) {
    if (node) {
      names[name] = *node;
    } else {
      names.erase(name);
    }
  }
}

void CutPower::change_names(NameChange change) {
  apply(change, live_);
  pending_names_.push_back(std::move(change));
}

void CutPower::apply(const DataChange& change, std::vector<std::byte>& data) {
  if (change.number == 0) {
    data.resize(change.bytes);
    return;
  }
  if (data.size() < change.offset + change.bytes) data.resize(change.offset + change.bytes);
  std::copy_n(change.data.begin(), change.bytes, data.begin() + static_cast<std::ptrdiff_t>(change.offset));
}

void CutPower::apply_torn(const DataChange& change, std::vector<std::byte>& data, std::mt19937_64& random) {
  if (change.number == 0) return;
  for (uint64_t at = 0; at < change.bytes; at += kSectorBytes) {
    if (random() % 2 == 0) continue;
    DataChange sector{change.file,
                      change.number,
                      change.offset + at,
                      std::min(kSectorBytes, change.bytes - at),
                      {},
                      true,
                      0};
    const auto first = change.data.begin() + static_cast<std::ptrdiff_t>(at);
    sector.data.assign(first, first + static_cast<std::ptrdiff_t>(sector.bytes));
    apply(sector, data);
  }
}

void CutPower::begin_sync(const DiskEvent& event) {
  const NodeId file = node_of(event.path);
  std::vector<uint64_t> covered;
  for (const DataChange& change : pending_data_)
    if (change.file == file && change.ended) covered.push_back(change.serial);
  syncs_[event.number] = std::move(covered);
}

void CutPower::end_sync(const DiskEvent& event) {
  const std::vector<uint64_t> covered = syncs_.at(event.number);
  syncs_.erase(event.number);
  std::erase_if(pending_data_, [&](const DataChange& change) {
    if (std::find(covered.begin(), covered.end(), change.serial) == covered.end()) return false;
    apply(change, nodes_[change.file].data);
    return true;
  });
}

void CutPower::sync_names(NodeId folder) {
  std::erase_if(pending_names_, [&](const NameChange& change) {
    const bool here = std::any_of(change.changes.begin(), change.changes.end(),
                                  [folder](const auto& entry) { return entry.first.first == folder; });
    if (here) apply(change, durable_);
    return here;
  });
}

void CutPower::advance() {
  const DiskEvent& event = log_[position_++];
  switch (event.op) {
    case DiskOp::folder_made:
      add_node(event.path, true);
      break;
    case DiskOp::file_made:
      add_node(event.path, false);
      break;
    case DiskOp::resized:
      pending_data_.push_back({node_of(event.path), 0, 0, event.bytes, {}, true, next_serial_++});
      break;
    case DiskOp::write_begins:
      pending_data_.push_back(
          {node_of(event.path), event.number, event.offset, event.bytes, event.data, false, next_serial_++});
      break;
    case DiskOp::write_ends:
      for (DataChange& change : pending_data_) {
        if (change.number != event.number) continue;
        change.bytes = event.bytes;
        change.ended = true;
      }
      break;
    case DiskOp::sync_begins:
      begin_sync(event);
      break;
    case DiskOp::sync_ends:
      end_sync(event);
      break;
    case DiskOp::renamed: {
      const NodeId node = node_of(event.path);
      change_names({{{name_of(event.path), std::nullopt}, {name_of(event.to), node}}});
      break;
    }
    case DiskOp::exchanged: {
      const NodeId one = node_of(event.path);
      const NodeId other = node_of(event.to);
      change_names({{{name_of(event.path), other}, {name_of(event.to), one}}});
      break;
    }
    case DiskOp::removed:
      change_names({{{name_of(event.path), std::nullopt}}});
      break;
    case DiskOp::folder_synced:
      sync_names(node_of(event.path));
      break;
    case DiskOp::marked:
      break;
  }
}

void CutPower::leave_disk(const std::filesystem::path& folder, const std::function<Fate(size_t)>& fate,
                          std::mt19937_64& random) const {
  std::map<NodeId, std::vector<std::byte>> changed;
  for (size_t i = 0; i < pending_data_.size(); ++i) {
    const DataChange& change = pending_data_[i];
    const Fate what = fate(i);
    if (what == Fate::lost) continue;
    std::vector<std::byte>& data = changed.try_emplace(change.file, nodes_[change.file].data).first->second;
    if (what == Fate::happened) {
      apply(change, data);
    } else {
      apply_torn(change, data, random);
    }
  }
  Names names = durable_;
  for (size_t i = 0; i < pending_names_.size(); ++i)
    if (fate(pending_data_.size() + i) != Fate::lost) apply(pending_names_[i], names);

  const std::function<void(NodeId, const std::filesystem::path&)> write_folder =
      [&](NodeId node, const std::filesystem::path& path) {
        for (auto entry = names.lower_bound({node, ""}); entry != names.end() && entry->first.first == node;
             ++entry) {
          const std::filesystem::path below = path / entry->first.second;
          if (nodes_[entry->second].folder) {
            std::filesystem::create_directory(below);
            std::filesystem::permissions(below, std::filesystem::perms::owner_all);
            write_folder(entry->second, below);
            continue;
          }
          const auto found = changed.find(entry->second);
          const std::vector<std::byte>& data =
              found != changed.end() ? found->second : nodes_[entry->second].data;
          std::ofstream out(below, std::ios::binary);
          out.write(reinterpret_cast<const char*>(data.data()), static_cast<std::streamsize>(data.size()));
          out.close();
          std::filesystem::permissions(
              below, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
          if (!out) throw std::runtime_error("cannot write " + below.string());
        }
      };
  write_folder(kRoot, folder);
}

namespace {

// Only these put something at risk, or promise something.
bool matters(DiskOp op) {
  return op != DiskOp::write_ends && op != DiskOp::sync_begins;
}

std::string letters_of(const std::vector<Fate>& fates) {
  std::string letters;
  for (const Fate fate : fates) letters += fate == Fate::happened ? 'h' : fate == Fate::lost ? 'l' : 't';
  return letters;
}

// All states of `count` changes when there are at most `most`, else some.
std::vector<std::vector<Fate>> choose_fates(size_t count, size_t most, std::mt19937_64& random) {
  std::set<std::vector<Fate>> chosen;
  size_t states = 1;
  for (size_t i = 0; i < count && states <= most; ++i) states *= 3;
  if (states <= most) {
    for (size_t state = 0; state < states; ++state) {
      std::vector<Fate> fates;
      for (size_t i = 0, rest = state; i < count; ++i, rest /= 3)
        fates.push_back(static_cast<Fate>(rest % 3));
      chosen.insert(fates);
    }
    return {chosen.begin(), chosen.end()};
  }
  chosen.insert(std::vector<Fate>(count, Fate::happened));
  chosen.insert(std::vector<Fate>(count, Fate::lost));
  // Some with few losses, some with few survivors, some in between.
  while (chosen.size() < most) {
    const uint64_t kept_of_8 = random() % 9;
    std::vector<Fate> fates;
    for (size_t i = 0; i < count; ++i)
      fates.push_back(random() % 8 < kept_of_8 ? Fate::happened
                      : random() % 3 == 0      ? Fate::torn
                                               : Fate::lost);
    chosen.insert(fates);
  }
  return {chosen.begin(), chosen.end()};
}

}  // namespace

void for_each_cut(const std::vector<DiskEvent>& log, uint64_t seed, size_t most,
                  const std::function<void(const CutCase& cut, const CutDisk& disk)>& visit) {
  std::mt19937_64 random(seed);
  // The disks that were left: in memory where there is such a file system.
  const std::filesystem::path memory = "/dev/shm";
  const ScratchFolder scratch(access(memory.c_str(), W_OK) == 0 ? memory
                                                                : std::filesystem::temp_directory_path());
  CutPower power(log);
  std::string marked;
  for (;;) {
    for (const std::vector<Fate>& fates : choose_fates(power.pending_count(), most, random)) {
      const std::filesystem::path disk = scratch.path() / "disk";
      bool is_made = false;
      const auto make_disk = [&] {
        if (std::exchange(is_made, true)) return disk;
        std::filesystem::remove_all(disk);
        std::filesystem::create_directory(disk);
        power.leave_disk(
            disk, [&](size_t i) { return fates[i]; }, random);
        return disk;
      };
      visit({power.position(), marked,
             fmt::format("seed {}, after {} of {} events ({}), pending {}", seed, power.position(),
                         log.size(), marked, letters_of(fates))},
            make_disk);
    }
    if (power.at_end()) return;
    // On to the next event that matters.
    bool moved = false;
    while (!power.at_end() && !(moved && matters(power.next().op))) {
      if (power.next().op == DiskOp::marked) marked = power.next().path;
      moved = moved || matters(power.next().op);
      power.advance();
    }
  }
}

}  // namespace terrace::power_cut
