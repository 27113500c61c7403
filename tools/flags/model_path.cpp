#include "flags/model_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include <terrace/aio/folder.h>
#include <terrace/base/error.h>

#include "command_line.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return text;
}

fs::path from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? fs::path() : fs::path(value);
}

// huggingface_hub looks for its cache in the same order.
fs::path hub_cache() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const fs::path cache = from_environment(name); !cache.empty()) return cache;
  }
  if (const fs::path home = from_environment("HF_HOME"); !home.empty()) return home / "hub";
  if (const fs::path cache = from_environment("XDG_CACHE_HOME"); !cache.empty())
    return cache / "huggingface" / "hub";
  return from_environment("HOME") / ".cache" / "huggingface" / "hub";
}

// Returns true for "OWNER/NAME" without anything that only a path has.
bool is_hub_name(const std::string& model) {
  const size_t slash = model.find('/');
  return slash != std::string::npos && slash > 0 && slash + 1 < model.size() && model[0] != '.' &&
         model[0] != '~' && model.find('/', slash + 1) == std::string::npos && !model.ends_with(".json");
}

// Returns the snapshot of `model` that was used last; empty if the cache has none.
fs::path cached_model(const fs::path& cache, const std::string& model) {
  std::string wanted = "models--" + model;
  wanted.replace(wanted.find('/'), 1, "--");
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(cache, error)) {
    if (lower_case(entry.path().filename().string()) != lower_case(wanted)) continue;
    fs::path latest;
    fs::file_time_type latest_time;
    for (const fs::directory_entry& snapshot : fs::directory_iterator(entry.path() / "snapshots", error)) {
      if (!io::is_there(snapshot.path() / "config.json")) continue;
      const fs::file_time_type time = snapshot.last_write_time(error);
      if (latest.empty() || time > latest_time) latest = snapshot.path(), latest_time = time;
    }
    if (!latest.empty()) return latest;
  }
  return {};
}

}  // namespace

fs::path model_path(const std::string& model) {
  if (io::is_there(model)) return model;
  if (is_hub_name(model)) {
    const fs::path cache = hub_cache();
    if (fs::path cached = cached_model(cache, model); !cached.empty()) return cached;
    throw Error(ErrorKind::config,
                {"cannot find the model", model,
                 fmt::format("there is no such folder, and it is not in the cache of Hugging Face ({})",
                             cache.string()),
                 fmt::format("download it: hf download {}", model)});
  }
  if (model.find('/') == std::string::npos && !model.ends_with(".json")) return {};
  throw Error(
      ErrorKind::config,
      {"cannot find the model", model, "there is no such file or folder",
       "name a folder, a config.json, a model of Hugging Face as OWNER/NAME, or a released model as gpt2"});
}

fs::path tokenizer_path(const std::string& flag) {
  if (io::is_there(flag) || !is_hub_name(flag)) {
    require_exists("--tokenizer", flag);
    return flag;
  }
  return model_path(flag);
}

}  // namespace terrace
