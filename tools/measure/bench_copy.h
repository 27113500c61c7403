// The measurements of `terrace bench copy` after its flags have been checked: copies of a device's streams
// and plain ones in turn, over the same memory. The code here must never print except to the given console.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <terrace/memory/cuda/cuda_gpu.h>
#include <terrace/memory/device/copy_rates.h>

#include "console.h"

namespace terrace {

struct CopyBenchPlan {
  CopyPlan copies;
  std::unique_ptr<CudaGpu> gpu;  // null: the simulated device

  // Returns the host memory of all buffers, those of a simulated device included.
  uint64_t host_bytes() const;
};

struct CopyBenchResult {
  std::string device;  // "NVIDIA H100 80GB HBM3", or "simulated"
  bool page_locked = false;
  std::vector<CopyMeasurement> measurements;
};

// Throws any failure.
CopyBenchResult measure_copies(const CopyBenchPlan& plan, Console& console);

// Return the results in words and as JSON, and measure nothing.
std::string copy_report_text(const CopyBenchPlan& plan, const CopyBenchResult& result);
std::string copy_report_json(const CopyBenchPlan& plan, const CopyBenchResult& result);

}  // namespace terrace
