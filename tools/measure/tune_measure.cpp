#include "measure/tune_measure.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>

#include <terrace/base/units.h>

#include "command_line.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

io::File make_file(const fs::path& folder, uint64_t bytes) {
  require_exists("--nvme-path", folder);
  if (!fs::is_directory(folder)) {
    throw Error(ErrorKind::config,
                {"cannot use", "--nvme-path " + folder.string(), system_reason(ENOTDIR), "name a folder"});
  }
  const fs::path path = folder / fmt::format(".terrace-tune-{}", getpid());
  io::File file =
      io::File::open(path, {.access = io::FileAccess::read_write, .create = true, .direct = true});
  struct Removal {
    const fs::path& path;
    ~Removal() { unlink(path.c_str()); }
  } const removal{path};
  file.preallocate(bytes);
  return file;
}

}  // namespace

TuneMeasure::TuneMeasure(const fs::path& folder, uint64_t bytes, Log& log)
    : path_(folder),
      log_(log),
      token_(std::array{folder}),
      ring_(kRing),
      file_(make_file(folder, bytes)),
      region_bytes_(bytes / kRing.slot_bytes * kRing.slot_bytes) {
  // The bytes are noise: a drive that compresses, or recognises zeros, must not gain by it.
  std::mt19937_64 random(1);
  for (std::byte& byte : ring_.memory()) byte = static_cast<std::byte>(random());
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
  const std::unique_ptr<io::Engine> engine = io::make_engine(engine_options);
  const bool memory = engine->register_buffer(ring_.memory());
  const bool file = engine->register_file(file_.fd());
  // Another process on the drive would be measured as well; a training run waits for the turn to end.
  if (!token_.acquire() && token_.usable())
    log_.warning_once(
        fmt::format("another process has used the drive of {} for long: measured beside it", path_.string()));
  const io::StreamResult result = io::run_stream(*engine, ring_, file_.fd(), options, clock_);
  token_.release();
  if (file) engine->unregister_file(file_.fd());
  if (memory) engine->unregister_buffer(ring_.memory());
  written_bytes_ += result.write.bytes;
  if (result.failure) throw io::describe_failure(result.failure->request, result.failure->completion, path_);
  return result;
}

}  // namespace terrace
