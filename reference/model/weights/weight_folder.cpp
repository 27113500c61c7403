#include <terrace/reference/model/weights/weight_folder.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include <terrace/aio/file.h>
#include <terrace/aio/folder.h>
#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/base/units.h>
#include <terrace/runtime/config/json/json_document.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";
// The index of a model with a hundred thousand tensors has a tenth of it.
constexpr uint64_t kMaxIndexBytes = 64 * kMiB;

[[noreturn]] void refuse_index(const fs::path& index, const std::string& reason) {
  throw Error(ErrorKind::corrupt, {"cannot use the index of weights", index.string(), reason,
                                   "index and shards belong together: fetch the whole folder again"});
}

// Pickled weights run code when they are read; nothing here reads them.
[[noreturn]] void refuse_folder(const fs::path& folder) {
  for (const char* pickled : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (!io::is_there(folder / pickled)) continue;
    throw Error(ErrorKind::config,
                {"cannot use the weights in", folder.string(),
                 fmt::format("{} is pickled, which Terrace does not read", pickled),
                 "save it as safetensors: in Python, "
                 "transformers.AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"});
  }
  throw Error(ErrorKind::config, {"cannot find weights in", folder.string(),
                                  fmt::format("there is neither {} nor {}", kSingleName, kIndexName),
                                  "name a folder that save_pretrained wrote, or one .safetensors file"});
}

// A name that leaves the folder would let an index read any file of the user.
void require_plain_name(const fs::path& index, const std::string& name) {
  if (!name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
      name.find('\0') == std::string::npos)
    return;
  refuse_index(index, fmt::format("{} is not the name of a file beside it", json_quoted(name, 200)));
}

// The file that each tensor is said to be in.
std::map<std::string, std::string> read_weight_map(const fs::path& index) {
  const JsonNode root = parse_json(io::read_whole_text(index, kMaxIndexBytes), index.string());
  const JsonNode* map = root.find("weight_map");  // total_size and the like are only remarks
  if (map == nullptr || !map->is(JsonNode::Kind::object)) refuse_index(index, "it has no weight_map");
  std::map<std::string, std::string> weight_map;
  for (const JsonMember& member : map->members) {
    if (!member.value.is(JsonNode::Kind::text))
      refuse_index(index, fmt::format("the file of {} is not a text", json_quoted(member.key, 200)));
    require_plain_name(index, member.value.text);
    weight_map[member.key] = member.value.text;
  }
  return weight_map;
}

}  // namespace

WeightFolder::WeightFolder(const fs::path& path) : path_(path) {
  if (!io::is_there(path)) {
    throw Error(ErrorKind::io, {"cannot find the weights", path.string(), "there is no such folder",
                                "name a folder with config.json and model.safetensors"});
  }
  if (!io::is_folder(path)) {
    files_.emplace_back(path);
  } else if (io::is_there(path / kSingleName)) {
    files_.emplace_back(path / kSingleName);
  } else if (io::is_there(path / kIndexName)) {
    open_shards(path / kIndexName);
  } else {
    refuse_folder(path);
  }
  for (const SafetensorsFile& file : files_) {
    for (const SafetensorsTensor& tensor : file.header().tensors) tensors_.push_back({&file, &tensor});
  }
  std::sort(tensors_.begin(), tensors_.end(),
            [](const Place& a, const Place& b) { return a.tensor->name < b.tensor->name; });
}

void WeightFolder::open_shards(const fs::path& index) {
  const std::map<std::string, std::string> weight_map = read_weight_map(index);
  std::set<std::string> names;
  for (const auto& [tensor, file] : weight_map) names.insert(file);
  std::map<std::string, std::string> holder;  // of each tensor
  for (const std::string& name : names) {
    if (!io::is_there(path_ / name)) {
      throw Error(ErrorKind::io, {"cannot find the shard", (path_ / name).string(),
                                  fmt::format("{} names it and it is not there", index.filename().string()),
                                  "fetch the missing file, or the whole folder again"});
    }
    files_.emplace_back(path_ / name);
    for (const SafetensorsTensor& tensor : files_.back().header().tensors) {
      const auto [earlier, first] = holder.emplace(tensor.name, name);
      if (!first) {
        refuse_index(index, fmt::format("both {} and {} hold {}", earlier->second, name,
                                        json_quoted(tensor.name, 200)));
      }
      if (!weight_map.contains(tensor.name))
        refuse_index(index, fmt::format("{} holds {}, of which the index says nothing", name,
                                        json_quoted(tensor.name, 200)));
    }
  }
  for (const auto& [tensor, file] : weight_map) {
    const auto found = holder.find(tensor);
    if (found == holder.end())
      refuse_index(index,
                   fmt::format("{} is said to be in {} and is in no shard", json_quoted(tensor, 200), file));
    if (found->second != file) {
      refuse_index(index, fmt::format("{} is said to be in {} and is in {}", json_quoted(tensor, 200), file,
                                      found->second));
    }
  }
}

WeightFolder::Place WeightFolder::find(std::string_view name) const {
  const auto found =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const Place& place, std::string_view n) { return place.tensor->name < n; });
  return found != tensors_.end() && found->tensor->name == name ? *found : Place{};
}

}  // namespace terrace
