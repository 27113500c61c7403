// What the tests of aio share: scratch folders, patterned bytes, engines, and completions as they came.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/aio/engines/transport.h>
#include <terrace/aio/file.h>
#include <terrace/base/log.h>

#include "support/scratch_folder.h"

namespace terrace::io {

// Page-aligned bytes, so that direct files take them.
class Bytes {
 public:
  explicit Bytes(uint64_t bytes) : storage_(bytes + 4096) {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    span_ = std::span(storage_).subspan(round_up(address, 4096) - address, bytes);
  }
  std::byte* data() const { return span_.data(); }
  uint64_t size() const { return span_.size(); }
  std::span<std::byte> span() const { return span_; }
  std::byte& operator[](uint64_t index) const { return span_[index]; }
  void fill(std::byte value) const { std::fill(span_.begin(), span_.end(), value); }
  // Every byte depends on its place and the seed.
  void fill_pattern(uint64_t seed) const {
    for (uint64_t i = 0; i < span_.size(); ++i) span_[i] = pattern(seed, i);
  }
  static std::byte pattern(uint64_t seed, uint64_t index) {
    uint64_t value = (index + 1) * 0x9e3779b97f4a7c15u + seed * 0xbf58476d1ce4e5b9u;
    value ^= value >> 29;
    return static_cast<std::byte>(value * 0x94d049bb133111ebu >> 56);
  }
  friend bool operator==(const Bytes& a, const Bytes& b) { return std::ranges::equal(a.span_, b.span_); }

 private:
  std::vector<std::byte> storage_;
  std::span<std::byte> span_;
};

inline void write_bytes(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

// Completions in the order in which they came; make requests with to().
struct Collector {
  std::vector<Completion> completions;

  static void collect(void* context, const Completion& completion) noexcept {
    static_cast<Collector*>(context)->completions.push_back(completion);
  }
  Request to(OpKind kind, int fd, uint64_t offset, std::span<std::byte> data, uint64_t tag = 0) {
    return Request{kind, fd, offset, data.data(), data.size(), &collect, this, tag};
  }
  // The one completion with this tag.
  Completion of(uint64_t tag) const {
    const auto matches = [&](const Completion& c) { return c.tag == tag; };
    EXPECT_EQ(std::count_if(completions.begin(), completions.end(), matches), 1) << "tag " << tag;
    const auto found = std::find_if(completions.begin(), completions.end(), matches);
    return found == completions.end() ? Completion{-1, 0, tag} : *found;
  }
};

inline Completion run(Engine& engine, Collector& collector, const Request& request) {
  collector.completions.clear();
  engine.submit({&request, 1});
  engine.wait(1);
  EXPECT_EQ(collector.completions.size(), 1u);
  return collector.completions.empty() ? Completion{-1, 0, 0} : collector.completions.front();
}

inline std::unique_ptr<Engine> engine_of(EngineKind kind, uint32_t queue_depth = 32,
                                         uint64_t block_bytes = kMiB, uint32_t backlog_count = 256) {
  return make_engine({.kind = kind,
                      .queue_depth = queue_depth,
                      .block_bytes = block_bytes,
                      .thread_count = 2,
                      .backlog_count = backlog_count});
}

inline size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

}  // namespace terrace::io
