// QuantizedCopies: parameters that are rounded already (OffloadOptions::parameter_bits) become codes before
// they cross between hosts, and parameters again behind that. Like copies they wait for an event and complete
// one, on two threads of their own, one for each way, so that neither waits for what the other waits for.
//
// One thread asks.
#pragma once

#include <cstddef>
#include <cstdint>

#include <terrace/base/data_type.h>
#include <terrace/base/event.h>
#include <terrace/memory/device/copy_stream.h>
#include <terrace/optimizer_cpu/instruction_set.h>

namespace terrace {

class QuantizedCopies {
 public:
  // `dry`: nothing is written, and events are done at once.
  QuantizedCopies(InstructionSet set, uint32_t bits, bool dry);

  // Behind `after`, which is null or was begun before; where that failed nothing is written, and `done` fails
  // with it. Memory and `after` stay as they are until `done`, which is completed once.
  void to_codes(const std::byte* values, DataType type, uint64_t count, std::byte* codes, const Event* after,
                Event& done);
  void from_codes(const std::byte* codes, DataType type, uint64_t count, std::byte* values,
                  const Event* after, Event& done);

 private:
  // A task's bytes are those of its values, and `for_engine` is their type.
  class Engine final : public CopyEngine {
   public:
    enum class Way : uint8_t { to_codes, from_codes };
    Engine(InstructionSet set, uint32_t bits, Way way) : set_(set), bits_(bits), way_(way) {}
    uint32_t depth() const override { return 1; }
    std::exception_ptr start(const CopyTask& task, uint32_t place) noexcept override;
    void skip(const CopyTask&) noexcept override {}
    std::exception_ptr finish(const CopyTask&, uint32_t) noexcept override { return nullptr; }

   private:
    const InstructionSet set_;
    const uint32_t bits_;
    const Way way_;
  };
  void enqueue(CopyStream& stream, const std::byte* from, std::byte* to, DataType type, uint64_t count,
               const Event* after, Event& done) const;

  const bool dry_;
  Engine to_codes_engine_, from_codes_engine_;
  CopyStream to_codes_, from_codes_;
};

}  // namespace terrace
