#include "measure/tune_measure.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include <terrace/base/units.h>

#include "command_line.h"
#include "measure/measuring.h"

namespace terrace {

TuneMeasure::TuneMeasure(const std::filesystem::path& folder, uint64_t bytes, Log& log)
    : path_(folder),
      log_(log),
      token_(std::array{folder}),
      ring_(kRing),
      file_(make_nameless_file(folder / fmt::format(".terrace-tune-{}", getpid()), bytes, true)),
      region_bytes_(bytes / kRing.slot_bytes * kRing.slot_bytes) {
  fill_with_noise(ring_.memory(), 1);
}

void TuneMeasure::fill(const io::EngineOptions& options, uint64_t runtime_ns) {
  io::StreamOptions part;
  part.kind = io::StreamKind::write;
  part.block_bytes = kRing.slot_bytes;
  part.region_bytes = region_bytes_;
  part.io_bytes = region_bytes_;
  part.runtime_ns = runtime_ns;
  const uint64_t written = stream(options, part).write.bytes;
  // Only the part that the stream reached has been written.
  region_bytes_ =
      std::max(least_bytes(), std::min(region_bytes_, written)) / kRing.slot_bytes * kRing.slot_bytes;
  file_.sync();
}

double TuneMeasure::rate(io::StreamKind kind, const io::EngineOptions& options, uint64_t runtime_ns) {
  io::StreamOptions measured;
  measured.kind = kind;
  measured.block_bytes = kRing.slot_bytes;
  measured.region_bytes = region_bytes_;
  measured.runtime_ns = runtime_ns;
  const io::StreamResult result = stream(options, measured);
  return static_cast<double>(result.read.bytes + result.write.bytes) /
         (static_cast<double>(std::max<uint64_t>(result.elapsed_ns, 1)) * 1e-9);
}

io::StreamResult TuneMeasure::stream(const io::EngineOptions& engine_options,
                                     const io::StreamOptions& options) {
  const io::StreamResult result =
      run_measured_stream({file_, path_, ring_, engine_options, options}, &token_, log_).result;
  written_bytes_ += result.write.bytes;
  return result;
}

}  // namespace terrace
