// WeightFolder: the weights of a model as Hugging Face folders hold them, in one model.safetensors or in
// shards that model.safetensors.index.json lists. It knows names and places; it must never hold a tensor in
// memory.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include <terrace/runtime/safetensors/safetensors.h>

namespace terrace {

class WeightFolder {
 public:
  struct Place {
    const SafetensorsFile* file = nullptr;
    const SafetensorsTensor* tensor = nullptr;
    explicit operator bool() const { return tensor != nullptr; }
  };

  // `path` is a folder, or one .safetensors file. Throws Error(config) when it has no weights that Terrace
  // reads, Error(io) when a shard is missing, and Error(corrupt) when a file is damaged or the index and the
  // shards disagree.
  explicit WeightFolder(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }
  // Returns the place of a tensor; nothing if the folder has none of that name.
  Place find(std::string_view name) const;
  // Every tensor, by name.
  const std::vector<Place>& tensors() const { return tensors_; }

 private:
  void open_shards(const std::filesystem::path& index);

  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;
  std::vector<Place> tensors_;
};

}  // namespace terrace
