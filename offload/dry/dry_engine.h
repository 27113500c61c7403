// DryEngine: the engine of a dry run. It accepts and completes requests as every engine does and moves
// nothing. It must never use a descriptor or touch the memory of a request.
#pragma once

#include <deque>
#include <span>
#include <string_view>

#include <terrace/aio/engine.h>

namespace terrace {

class DryEngine final : public io::Engine {
 public:
  explicit DryEngine(const io::EngineOptions& options) : options_(options) {}
  ~DryEngine() override;

  io::EngineKind kind() const override { return options_.kind; }
  const io::EngineOptions& options() const override { return options_; }
  void submit(std::span<const io::Request> requests) override;
  size_t poll() override;
  // Completes everything that is in flight.
  size_t wait(size_t) override { return poll(); }
  void wake() noexcept override {}  // no wait blocks
  uint64_t in_flight() const override { return accepted_.size(); }
  bool register_buffer(std::span<std::byte>) override { return true; }
  void unregister_buffer(std::span<std::byte>) override {}
  bool register_file(int) override { return true; }
  void unregister_file(int) override {}
  std::string_view registration_refusal() const override { return {}; }
  io::EngineStats stats() const override { return stats_; }

 private:
  void complete_next();

  const io::EngineOptions options_;
  std::deque<io::Request> accepted_;
  io::EngineStats stats_;
};

}  // namespace terrace
