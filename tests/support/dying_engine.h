// An engine that ends the process at one of its requests, without a word to anybody.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include <terrace/aio/engines/engine_decorator.h>

namespace terrace::testing {

inline constexpr int kDied = 9;  // its exit status

// Just before the request is submitted or just after.
class DyingEngine final : public io::EngineDecorator {
 public:
  // `left`: requests until then, of all engines that share it.
  DyingEngine(std::unique_ptr<io::Engine> base, std::atomic<int64_t>& left, bool after)
      : io::EngineDecorator(std::move(base)), left_(left), after_(after) {}
  void submit(std::span<const io::Request> requests) override {
    const bool dies = left_.fetch_sub(static_cast<int64_t>(requests.size())) <= 0;
    if (dies && !after_) _exit(kDied);
    base().submit(requests);
    if (dies) _exit(kDied);
  }

 private:
  std::atomic<int64_t>& left_;
  bool after_;
};

}  // namespace terrace::testing
