// ActivityName: a short text that one thread sets, often, and others read, seldom. Setting it waits for
// nobody.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace terrace {

class ActivityName {
 public:
  static constexpr size_t kMostBytes = 128;  // longer texts are cut

  // Called by one thread.
  void set(std::string_view text) {
    const size_t bytes = text.size() < kMostBytes ? text.size() : kMostBytes;
    version_.store(version_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + at, bytes - at < sizeof word ? bytes - at : sizeof word);
      words_[at / sizeof word].store(word, std::memory_order_relaxed);
    }
    bytes_.store(static_cast<uint32_t>(bytes), std::memory_order_relaxed);
    version_.store(version_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  // Any thread; tries again where the text has changed meanwhile.
  std::string get() const {
    std::string text;
    while (true) {
      const uint32_t before = version_.load(std::memory_order_acquire);
      std::array<uint64_t, kMostBytes / sizeof(uint64_t)> words;
      for (size_t i = 0; i < words.size(); ++i) words[i] = words_[i].load(std::memory_order_relaxed);
      const uint32_t bytes = bytes_.load(std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (before % 2 != 0 || version_.load(std::memory_order_relaxed) != before) continue;
      text.resize(bytes);
      std::memcpy(text.data(), words.data(), bytes);
      return text;
    }
  }

 private:
  std::atomic<uint32_t> version_{0};  // odd while the text changes
  std::atomic<uint32_t> bytes_{0};
  std::array<std::atomic<uint64_t>, kMostBytes / sizeof(uint64_t)> words_{};
};

}  // namespace terrace
