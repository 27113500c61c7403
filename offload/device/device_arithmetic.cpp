#include <terrace/offload/device/device_arithmetic.h>

#include <algorithm>

#include <terrace/base/assert.h>
#include <terrace/offload/transfer/device_copy.h>

namespace terrace {

DeviceSums::DeviceSums(DeviceArithmetic& arithmetic, Device& device, std::span<std::byte> scratch,
                       StepWatch& watch)
    : arithmetic_(arithmetic),
      device_(device),
      scratch_(reinterpret_cast<double*>(scratch.data()), scratch.size() / sizeof(double)),
      watch_(watch) {
  TERRACE_ASSERT(!scratch_.empty(), "sums on the device take work memory");
}

void DeviceSums::add(const std::byte* gradient, DataType type, uint64_t count, std::span<double> sums) {
  while (!sums.empty()) {
    if (used_ == scratch_.size()) finish();
    const uint64_t blocks = std::min<uint64_t>(sums.size(), scratch_.size() - used_);
    const uint64_t elements = std::min<uint64_t>(count, blocks * kSumBlockElements);
    arithmetic_.sums_of_squares(gradient, type, elements, scratch_.subspan(used_, blocks));
    parts_.push_back({used_, sums.first(blocks)});
    used_ += blocks;
    gradient += elements * bytes_of(type);
    count -= elements;
    sums = sums.subspan(blocks);
  }
}

// Copies to the host keep their order, so one event for all of them is enough.
void DeviceSums::finish() {
  if (parts_.empty()) return;
  DeviceCopy done;
  done.begin(to_host_copy("the norm of gradients"), static_cast<uint32_t>(parts_.size()));
  for (const Part& part : parts_) {
    device_.copy_work_to_host(std::as_writable_bytes(part.sums).data(),
                              std::as_bytes(scratch_.subspan(part.first)).data(), part.sums.size_bytes(),
                              nullptr, done);
  }
  parts_.clear();
  used_ = 0;
  done.wait(watch_);
}

}  // namespace terrace
