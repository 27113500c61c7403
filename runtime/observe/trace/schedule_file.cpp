#include <terrace/runtime/observe/trace/schedule_file.h>

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <map>
#include <utility>
#include <vector>

#include <terrace/aio/file.h>
#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/base/units.h>
#include <terrace/runtime/config/json/json_document.h>

namespace terrace {
namespace {

constexpr uint64_t kFormat = 1;
constexpr uint64_t kLargestFile = kGiB;
constexpr uint64_t kLargestItem = uint64_t{1} << 50;
constexpr uint64_t kLongestUse = uint64_t{1} << 50;  // ns: thirteen days
constexpr uint64_t kMostTiers = 16;
constexpr size_t kLongestName = 200;

[[noreturn]] void refuse(const std::string& origin, const std::string& reason) {
  throw Error(ErrorKind::config,
              {"cannot read the schedule", origin, reason, "docs/schedule_format.md describes the lines"});
}

// The members of the object of one line, asked for one by one; what nobody asked for is an error.
class Line {
 public:
  explicit Line(const JsonNode& object) : object_(object) {
    if (!object.is(JsonNode::Kind::object)) refuse(object.origin, "the line is not a JSON object");
  }

  const std::string& origin() const { return object_.origin; }
  const JsonNode* find(std::string_view key) {
    known_.push_back(key);
    return object_.find(key);
  }
  const JsonNode& take(std::string_view key) {
    const JsonNode* node = find(key);
    if (node == nullptr) refuse(object_.origin, fmt::format("\"{}\" is missing", key));
    return *node;
  }
  std::string text(std::string_view key) {
    const JsonNode& node = take(key);
    if (!node.is(JsonNode::Kind::text) || node.text.empty())
      refuse(node.origin, fmt::format("\"{}\" is not a name", key));
    return node.text;
  }
  static uint64_t whole(const JsonNode& node, std::string_view key, uint64_t most) {
    const std::optional<uint64_t> value = node.whole_number();
    if (!value || *value > most)
      refuse(node.origin, fmt::format("\"{}\" is not a whole number up to {}", key, most));
    return *value;
  }
  uint64_t whole(std::string_view key, uint64_t most) { return whole(take(key), key, most); }
  uint64_t whole_or(std::string_view key, uint64_t most, uint64_t otherwise) {
    const JsonNode* node = find(key);
    return node == nullptr ? otherwise : whole(*node, key, most);
  }
  const std::vector<JsonNode>& list(std::string_view key) {
    static const std::vector<JsonNode> kNothing;
    const JsonNode* node = find(key);
    if (node == nullptr) return kNothing;
    if (!node->is(JsonNode::Kind::list)) refuse(node->origin, fmt::format("\"{}\" is not a list", key));
    return node->items;
  }
  void end() const {
    for (const JsonMember& member : object_.members) {
      if (std::find(known_.begin(), known_.end(), member.key) == known_.end())
        refuse(member.origin, "unknown key " + json_quoted(member.key, kLongestName));
    }
  }

 private:
  const JsonNode& object_;
  std::vector<std::string_view> known_;
};

class Reader {
 public:
  void read(Line& line) {
    if (!has_head_) {
      if (line.find("terrace_schedule") == nullptr)
        refuse(line.origin(), "the file does not begin with \"terrace_schedule\"");
      if (const uint64_t format = line.whole("terrace_schedule", UINT32_MAX); format != kFormat)
        refuse(line.origin(), fmt::format("its format is {}, and this program reads {}", format, kFormat));
      schedule_.name = line.text("name");
      has_head_ = true;
    } else if (line.find("item") != nullptr) {
      read_item(line);
    } else if (line.find("use") != nullptr) {
      read_use(line);
    } else {
      refuse(line.origin(), "the line is neither an \"item\" nor a \"use\"");
    }
    line.end();
  }

  SimSchedule take(std::string_view name) {
    if (!has_head_) refuse(std::string(name), "the file is empty");
    check_schedule(schedule_);
    return std::move(schedule_);
  }

 private:
  void read_item(Line& line) {
    SimItem item;
    item.name = line.text("item");
    item.bytes = line.whole("bytes", kLargestItem);
    const std::string role = line.text("role");
    const std::optional<SimRole> known = role_from_name(role);
    if (!known) {
      refuse(line.take("role").origin, fmt::format("there is no role {}: param, grad, state or activation",
                                                   json_quoted(role, kLongestName)));
    }
    item.role = *known;
    item.home_tier = static_cast<uint32_t>(line.whole_or("home", kMostTiers - 1, 1));
    if (!numbers_.emplace(item.name, static_cast<uint32_t>(schedule_.items.size())).second)
      refuse(line.origin(), fmt::format("there is an item {} already", json_quoted(item.name, kLongestName)));
    schedule_.items.push_back(std::move(item));
  }

  void read_use(Line& line) {
    SimUse use;
    use.operation = line.text("use");
    use.tier = static_cast<uint32_t>(line.whole_or("tier", kMostTiers - 1, 0));
    use.reads = items(line, "reads");
    use.changes = items(line, "changes");
    use.makes = items(line, "makes");
    use.compute_ns = line.whole_or("compute_ns", kLongestUse, 0);
    for (const JsonNode& bytes : line.list("occupied_bytes"))
      use.occupied_bytes.push_back(Line::whole(bytes, "occupied_bytes", kLargestItem));
    if (use.occupied_bytes.size() > kMostTiers)
      refuse(line.origin(), fmt::format("there are more than {} tiers", kMostTiers));
    schedule_.uses.push_back(std::move(use));
  }

  std::vector<uint32_t> items(Line& line, std::string_view key) const {
    std::vector<uint32_t> found;
    for (const JsonNode& name : line.list(key)) {
      if (!name.is(JsonNode::Kind::text))
        refuse(name.origin, fmt::format("\"{}\" lists what is not the name of an item", key));
      const auto item = numbers_.find(name.text);
      if (item == numbers_.end()) {
        refuse(name.origin,
               fmt::format("no line before it describes the item {}", json_quoted(name.text, kLongestName)));
      }
      found.push_back(item->second);
    }
    std::sort(found.begin(), found.end());
    if (std::adjacent_find(found.begin(), found.end()) != found.end())
      refuse(line.origin(), fmt::format("\"{}\" names an item twice", key));
    return found;
  }

  bool has_head_ = false;
  SimSchedule schedule_;
  std::map<std::string, uint32_t> numbers_;
};

void write_names(JsonWriter& json, const SimSchedule& schedule, std::string_view key,
                 const std::vector<uint32_t>& items) {
  if (items.empty()) return;
  json.list(key, items, [&](uint32_t item) { json.value(schedule.items[item].name); });
}

}  // namespace

std::string schedule_text(const SimSchedule& schedule) {
  std::string text = json_object({{"terrace_schedule", kFormat}, {"name", schedule.name}}) + "\n";
  for (const SimItem& item : schedule.items) {
    text += json_object({{"item", item.name},
                         {"bytes", item.bytes},
                         {"role", name_of(item.role)},
                         {"home", item.home_tier}}) +
            "\n";
  }
  for (const SimUse& use : schedule.uses) {
    JsonWriter json;
    json.begin_object().member("use", use.operation);
    if (use.tier > 0) json.member("tier", use.tier);
    write_names(json, schedule, "reads", use.reads);
    write_names(json, schedule, "changes", use.changes);
    write_names(json, schedule, "makes", use.makes);
    if (use.compute_ns > 0) json.member("compute_ns", use.compute_ns);
    if (!use.occupied_bytes.empty()) json.list("occupied_bytes", use.occupied_bytes);
    text += json.end().take() + "\n";
  }
  return text;
}

SimSchedule parse_schedule(std::string_view text, std::string_view name) {
  Reader reader;
  size_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const JsonNode node = parse_json(line, name, number);
    Line object(node);
    reader.read(object);
  }
  return reader.take(name);
}

SimSchedule read_schedule(const std::filesystem::path& path) {
  return parse_schedule(io::read_whole_text(path, kLargestFile), path.string());
}

void write_schedule(const std::filesystem::path& path, const SimSchedule& schedule) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << schedule_text(schedule);
  file.close();
  if (!file.fail()) return;
  const int reason = errno;
  std::error_code missing;
  if (std::filesystem::is_regular_file(path, missing)) std::filesystem::remove(path, missing);  // half of one
  throw Error(ErrorKind::io, {"cannot write the schedule", path.string(), system_reason(reason),
                              "name a file in a folder that can be written and has room"});
}

}  // namespace terrace
