// EngineDecorator: an engine that forwards everything to another one, but for what a derived class overrides
// (faults, gates, tracing). It must never decide anything by itself.
#pragma once

#include <memory>
#include <utility>

#include <terrace/aio/engine.h>

namespace terrace::io {

class EngineDecorator : public Engine {
 public:
  explicit EngineDecorator(std::unique_ptr<Engine> base) : base_(std::move(base)) {}
  EngineDecorator(const EngineDecorator&) = delete;
  EngineDecorator& operator=(const EngineDecorator&) = delete;

  EngineKind kind() const override { return base_->kind(); }
  const EngineOptions& options() const override { return base_->options(); }
  void submit(std::span<const Request> requests) override { base_->submit(requests); }
  size_t poll() override { return base_->poll(); }
  size_t wait(size_t min_count) override { return base_->wait(min_count); }
  void wake() noexcept override { base_->wake(); }
  uint64_t in_flight() const override { return base_->in_flight(); }
  bool register_buffer(std::span<std::byte> memory) override { return base_->register_buffer(memory); }
  void unregister_buffer(std::span<std::byte> memory) override { base_->unregister_buffer(memory); }
  bool register_file(int fd) override { return base_->register_file(fd); }
  void unregister_file(int fd) override { base_->unregister_file(fd); }
  std::string_view registration_refusal() const override { return base_->registration_refusal(); }
  EngineStats stats() const override { return base_->stats(); }

 protected:
  Engine& base() const { return *base_; }

 private:
  std::unique_ptr<Engine> base_;
};

}  // namespace terrace::io
