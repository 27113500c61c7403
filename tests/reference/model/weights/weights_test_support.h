// Small helpers of the tests of weight files.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/runtime/safetensors/safetensors.h>

#include "support/expect_error.h"
#include "support/scratch_folder.h"

namespace terrace::weights_tests {

namespace fs = std::filesystem;
using testing::expect_error;

// A file by hand: a header as given, then so many bytes 0, 1, 2, ...
inline std::string file_of(const std::string& header, uint64_t data_bytes) {
  std::string file(8, '\0');
  for (size_t byte = 0; byte < 8; ++byte)
    file[byte] = static_cast<char>(uint64_t{header.size()} >> (8 * byte) & 0xff);
  file += header;
  for (uint64_t i = 0; i < data_bytes; ++i) file += static_cast<char>(i);
  return file;
}

inline SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors_header(std::as_bytes(std::span(file)), file.size(), "x.safetensors");
}

inline std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_text(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  ASSERT_TRUE(file.flush().good()) << path;
}

// A number that depends on its tensor and place, and that bf16 and fp16 hold exactly.
inline float exact_value(uint64_t tensor, uint64_t element) {
  const uint64_t mixed = (tensor * 2654435761u + element) * 0x9E3779B97F4A7C15u;
  const auto small = static_cast<int>(mixed >> 57) - 64;  // -64 .. 63
  return static_cast<float>(small) / 64.0f;
}

struct TestTensor {
  std::string name;
  DataType type = DataType::fp32;
  std::vector<uint64_t> shape;
};

inline uint64_t elements_of(const std::vector<uint64_t>& shape) {
  uint64_t count = 1;
  for (const uint64_t extent : shape) count *= extent;
  return count;
}

// A file whose tensor t holds value(t, element).
inline void write_safetensors(const fs::path& path, const std::vector<TestTensor>& tensors,
                              const std::function<float(uint64_t, uint64_t)>& value = exact_value) {
  fs::create_directories(path.parent_path());
  std::vector<SafetensorsSpec> specs;
  for (const TestTensor& tensor : tensors) specs.push_back({tensor.name, tensor.type, tensor.shape});
  SafetensorsWriter writer(path, specs, {{"format", "pt"}});
  for (uint64_t t = 0; t < tensors.size(); ++t) {
    std::vector<float> values(elements_of(tensors[t].shape));
    for (uint64_t e = 0; e < values.size(); ++e) values[e] = value(t, e);
    writer.write(values);
  }
  writer.finish();
}

}  // namespace terrace::weights_tests
