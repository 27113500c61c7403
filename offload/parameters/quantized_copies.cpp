#include <terrace/offload/parameters/quantized_copies.h>

#include <array>

#include <terrace/optimizer_cpu/quantization.h>

namespace terrace {
namespace {

// What tasks refer to, by type.
constexpr std::array kTypes = {DataType::fp32, DataType::bf16, DataType::fp16};

}  // namespace

QuantizedCopies::QuantizedCopies(InstructionSet set, uint32_t bits, bool dry)
    : dry_(dry),
      to_codes_engine_(set, bits, Engine::Way::to_codes),
      from_codes_engine_(set, bits, Engine::Way::from_codes),
      to_codes_({.engine = &to_codes_engine_}),
      from_codes_({.engine = &from_codes_engine_}) {}

std::exception_ptr QuantizedCopies::Engine::start(const CopyTask& task, uint32_t) noexcept {
  const DataType type = *static_cast<const DataType*>(task.for_engine);
  const uint64_t count = task.bytes / bytes_of(type);
  if (way_ == Way::to_codes) {
    quantize(set_, bits_, task.source, type, count, task.destination);
  } else {
    dequantize(set_, bits_, task.source, task.destination, type, count);
  }
  return nullptr;
}

void QuantizedCopies::to_codes(const std::byte* values, DataType type, uint64_t count, std::byte* codes,
                               const Event* after, Event& done) {
  enqueue(to_codes_, values, codes, type, count, after, done);
}

void QuantizedCopies::from_codes(const std::byte* codes, DataType type, uint64_t count, std::byte* values,
                                 const Event* after, Event& done) {
  enqueue(from_codes_, codes, values, type, count, after, done);
}

void QuantizedCopies::enqueue(CopyStream& stream, const std::byte* from, std::byte* to, DataType type,
                              uint64_t count, const Event* after, Event& done) const {
  if (dry_) return done.complete_one();
  stream.enqueue({.destination = to,
                  .source = from,
                  .bytes = count * bytes_of(type),
                  .after = after,
                  .done = &done,
                  .for_engine = const_cast<DataType*>(&kTypes[static_cast<size_t>(type)])});
}

}  // namespace terrace
