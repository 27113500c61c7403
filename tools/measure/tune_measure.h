// TuneMeasure measures one path with the work of a training step: blocks of records are read through the ring
// and written back from the same memory. Its file loses its name as soon as it is made, so that nothing
// remains of it however the program ends. It decides nothing: tune.cpp does.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include <terrace/aio/drives/drive_token.h>
#include <terrace/aio/file.h>
#include <terrace/aio/ring_buffer.h>
#include <terrace/aio/stream_job.h>
#include <terrace/base/log.h>

namespace terrace {

class TuneMeasure {
 public:
  // Makes a file of `bytes`, rounded down to whole blocks, with its space reserved. Throws Error(config) when
  // the folder does not exist and Error(capacity) when there is too little space.
  TuneMeasure(const std::filesystem::path& folder, uint64_t bytes, Log& log);

  // Writes the file from its beginning until all of it is written or `runtime_ns` is over; later measurements
  // use the written part. Fresh space is slower to write, and reads of it never reach the drive.
  void fill(const io::EngineOptions& options, uint64_t runtime_ns);
  // Returns bytes per second, both directions together. Throws Error(io).
  double rate(io::StreamKind kind, const io::EngineOptions& options, uint64_t runtime_ns);

  uint64_t region_bytes() const { return region_bytes_; }
  uint64_t written_bytes() const { return written_bytes_; }
  bool direct() const { return file_.direct(); }
  const std::string& direct_refusal() const { return file_.direct_refusal(); }

  static constexpr uint64_t least_bytes() { return 4 * kRing.slot_bytes * kRing.slot_count; }

 private:
  // The ring that a plan gives a training run on nvme, if its budget allows.
  static constexpr io::RingOptions kRing{};

  io::StreamResult stream(const io::EngineOptions& engine, const io::StreamOptions& options);

  std::filesystem::path path_;
  Log& log_;
  io::DriveToken token_;
  io::RingBuffer ring_;
  io::File file_;
  uint64_t region_bytes_;
  uint64_t written_bytes_ = 0;
};

}  // namespace terrace
