#include <terrace/memory/device/device.h>

#include <terrace/aio/engine.h>
#include <terrace/base/assert.h>
#include <terrace/base/error.h>

namespace terrace {

std::unique_ptr<io::Engine> Device::make_file_reader(const io::EngineOptions&) {
  throw Error(ErrorKind::device,
              {"cannot read files into the memory of", "this device", "it has no reads past the host",
               "set OffloadOptions::reads_past_host to false"});
}

std::byte* Device::begin_file_reads(DeviceSlot, uint32_t, const Event*) {
  TERRACE_ASSERT(false, "this device reads no files");
  return nullptr;
}

void Device::end_file_read(DeviceSlot) noexcept {
  TERRACE_ASSERT(false, "this device reads no files");
}

}  // namespace terrace
