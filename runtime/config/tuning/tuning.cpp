#include <terrace/runtime/config/tuning/tuning.h>

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <vector>

#include <terrace/aio/drives/block_device.h>
#include <terrace/aio/engine_limits.h>
#include <terrace/aio/file.h>
#include <terrace/aio/folder.h>
#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/runtime/config/json/json_document.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kFormat = 1;
constexpr uint64_t kLargestFile = 64 * kKiB;
constexpr double kLargestRate = 1e15;

[[noreturn]] void refuse(std::string_view name, const std::string& reason) {
  throw Error(ErrorKind::corrupt, {"cannot read the measurement", std::string(name), reason,
                                   "measure again with `terrace tune`"});
}

// The members of the one object of the file, taken one by one; what is left over is an error.
class Members {
 public:
  Members(const JsonNode& object, std::string_view name) : object_(object), name_(name) {
    if (!object.is(JsonNode::Kind::object)) refuse(name, "it is not a JSON object");
  }
  const JsonNode& take(std::string_view key, JsonNode::Kind kind) {
    const JsonNode* value = object_.find(key);
    if (value == nullptr) refuse(name_, fmt::format("\"{}\" is missing", key));
    if (!value->is(kind)) refuse(name_, fmt::format("\"{}\" is of another type", key));
    ++taken_;
    return *value;
  }
  std::string text(std::string_view key) { return take(key, JsonNode::Kind::text).text; }
  double number(std::string_view key, double least, double most) {
    const double value = take(key, JsonNode::Kind::number).number;
    if (!(value >= least && value <= most)) refuse(name_, fmt::format("\"{}\" is out of range", key));
    return value;
  }
  uint64_t whole(std::string_view key, uint64_t least, uint64_t most) {
    const double value = number(key, static_cast<double>(least), static_cast<double>(most));
    if (value != std::floor(value)) refuse(name_, fmt::format("\"{}\" is not a whole number", key));
    return static_cast<uint64_t>(value);
  }
  void finish() const {
    if (taken_ != object_.members.size()) refuse(name_, "it has members that are not known");
  }

 private:
  const JsonNode& object_;
  std::string_view name_;
  size_t taken_ = 0;
};

std::string machine_id() {
  std::ifstream file("/etc/machine-id");
  std::string id;
  std::getline(file, id);
  if (!id.empty()) return id;
  utsname system{};
  return uname(&system) == 0 ? std::string(system.nodename) : "unknown";
}

std::string changed_part(const TunedPlace& now, const TunedPlace& then) {
  if (now.machine != then.machine) return "the machine";
  if (now.path != then.path) return "the path";
  return now.device != then.device ? "the drive" : "the kernel";
}

}  // namespace

TunedPlace find_tuned_place(const fs::path& path) {
  TunedPlace place;
  std::error_code error;
  place.path = fs::canonical(path, error);
  if (error) {
    throw Error(ErrorKind::io, {"cannot examine the nvme path", path.string(), system_reason(error.value()),
                                "check the path"});
  }
  const io::BlockDevice device = io::find_block_device(place.path);
  place.device = fmt::format("{} {} {}", device.number, device.name, device.model);
  utsname system{};
  if (uname(&system) == 0) place.kernel = system.release;
  place.machine = machine_id();
  return place;
}

fs::path tuning_folder() {
  // The XDG rules: a path that is not absolute counts as not given.
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && cache[0] == '/')
    return fs::path(cache) / "terrace";
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/')
    return fs::path(home) / ".cache" / "terrace";
  return {};
}

fs::path tuning_file(const fs::path& folder, const TunedPlace& place) {
  const std::string key = place.machine + "\n" + place.path.string();
  return folder / fmt::format("tune-{:016x}.json", XXH3_64bits(key.data(), key.size()));
}

std::string tuning_text(const PathTuning& tuning) {
  JsonWriter json;
  json.begin_object(JsonLayout::lines).member("format", kFormat).member("machine", tuning.place.machine);
  json.member("path", tuning.place.path.string()).member("device", tuning.place.device);
  json.member("kernel", tuning.place.kernel).member("measured_at", tuning.measured_at);
  json.member("engine", io::name_of(tuning.engine)).member("block_size", tuning.block_bytes);
  json.member("queue_depth", tuning.queue_depth).member("intra_op_parallelism", tuning.thread_count);
  json.member("read_bytes_per_second", tuning.read_bytes_per_second);
  json.member("write_bytes_per_second", tuning.write_bytes_per_second);
  json.member("mixed_bytes_per_second", tuning.mixed_bytes_per_second);
  return json.end().take() + "\n";
}

PathTuning parse_tuning(std::string_view text, std::string_view name) {
  JsonNode document;
  try {
    document = parse_json(text, name);
  } catch (const Error& error) {
    refuse(name, error.parts().what_failed.in(Door::cpp));
  }
  Members members(document, name);
  const uint64_t format = members.whole("format", 0, UINT32_MAX);
  if (format != kFormat) {
    throw Error(ErrorKind::config,
                {"cannot use the measurement", std::string(name),
                 fmt::format("its format is {}, and this version knows {}", format, kFormat),
                 "measure again with `terrace tune`"});
  }
  PathTuning tuning;
  tuning.place.machine = members.text("machine");
  tuning.place.path = members.text("path");
  tuning.place.device = members.text("device");
  tuning.place.kernel = members.text("kernel");
  tuning.measured_at = members.text("measured_at");
  const auto engine = io::engine_kind_from_name(members.text("engine"));
  if (!engine) refuse(name, "\"engine\" is none of Terrace's");
  tuning.engine = *engine;
  tuning.block_bytes = members.whole("block_size", io::kDirectBytes, io::kLargestBlockBytes);
  if (tuning.block_bytes % io::kDirectBytes != 0)
    refuse(name, fmt::format("\"block_size\" is not a multiple of {}", io::kDirectBytes));
  tuning.queue_depth = static_cast<uint32_t>(members.whole("queue_depth", 1, io::kLargestQueueDepth));
  tuning.thread_count =
      static_cast<uint32_t>(members.whole("intra_op_parallelism", 1, io::kMostEngineThreads));
  tuning.read_bytes_per_second = members.number("read_bytes_per_second", 1, kLargestRate);
  tuning.write_bytes_per_second = members.number("write_bytes_per_second", 1, kLargestRate);
  tuning.mixed_bytes_per_second = members.number("mixed_bytes_per_second", 1, kLargestRate);
  members.finish();
  return tuning;
}

void save_tuning(const fs::path& folder, const PathTuning& tuning) {
  std::error_code error;
  fs::create_directories(folder.parent_path(), error);
  if (!error && mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    error.assign(errno, std::system_category());
  if (error) {
    throw Error(ErrorKind::io, {"cannot create the cache folder", folder.string(),
                                system_reason(error.value()), "set XDG_CACHE_HOME to a folder of your own"});
  }
  const std::string text = tuning_text(tuning);
  io::write_file_atomically(tuning_file(folder, tuning.place), std::as_bytes(std::span(text)));
}

std::optional<PathTuning> find_tuning(const fs::path& folder, const TunedPlace& place, std::string& why_not) {
  why_not.clear();
  const fs::path file = tuning_file(folder, place);
  if (folder.empty()) return std::nullopt;
  try {
    if (!io::is_there(file)) return std::nullopt;
    PathTuning tuning = parse_tuning(io::read_whole_text(file, kLargestFile), file.string());
    if (tuning.place == place) return tuning;
    why_not = fmt::format("{} changed since {}", changed_part(place, tuning.place), tuning.measured_at);
  } catch (const Error& failure) {
    why_not = fmt::format("{}: {}", file.string(), failure.parts().reason);
  }
  return std::nullopt;
}

PathTuning combined_tuning(std::span<const PathTuning> tunings) {
  const auto fastest = std::max_element(tunings.begin(), tunings.end(), [](const auto& a, const auto& b) {
    return a.mixed_bytes_per_second < b.mixed_bytes_per_second;
  });
  PathTuning combined = *fastest;
  uint64_t depth = 0;
  for (const PathTuning& tuning : tunings) depth += tuning.queue_depth;
  combined.queue_depth = static_cast<uint32_t>(std::min<uint64_t>(depth, io::kLargestQueueDepth));
  return combined;
}

}  // namespace terrace
