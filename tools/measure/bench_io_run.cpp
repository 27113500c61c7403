#include "measure/bench_io.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <random>

#include <terrace/base/error.h>
#include <terrace/base/units.h>

#include "command_line.h"

namespace terrace {
namespace {

io::File open_file(const IoPlan& plan, Console& console) {
  const bool writes = plan.stream.kind != io::StreamKind::read;
  const io::FileAccess access = writes ? io::FileAccess::read_write : io::FileAccess::read;
  io::File file = plan.own_file ? make_nameless_file(plan.file, plan.stream.region_bytes, plan.direct)
                                : io::File::open(plan.file, {.access = access, .direct = plan.direct});
  if (plan.direct && !file.direct())
    console.warning(fmt::format("through the page cache: O_DIRECT is refused ({})", file.direct_refusal()));
  if (file.direct() && plan.stream.block_bytes % file.alignment_bytes() != 0) {
    refuse(fmt::format("--bs {}", plan.stream.block_bytes),
           fmt::format("direct transfers go in multiples of {} bytes there", file.alignment_bytes()),
           "give a multiple, or --direct 0");
  }
  return file;
}

// A run has a turn of its own on the drive for each of its streams.
std::optional<io::DriveToken> turn_of(const IoPlan& plan) {
  if (!plan.device_token) return std::nullopt;
  const std::filesystem::path parent = plan.file.parent_path();
  return std::make_optional<io::DriveToken>(std::array{parent.empty() ? std::filesystem::path(".") : parent});
}

IoReport stream_once(const IoPlan& plan, io::RingBuffer& ring, const io::File& file, Console& console) {
  std::optional<io::DriveToken> turn = turn_of(plan);
  StreamOutcome outcome = run_measured_stream(
      {file, plan.file, ring, plan.engine, plan.stream, plan.register_memory, plan.register_file},
      turn ? &*turn : nullptr, console);
  return {plan, ring.slot_count(), file.direct(), std::move(outcome)};
}

// The file is written first: fresh space is slower to write, and reads of it never reach the drive.
void fill_file(const IoPlan& plan, io::RingBuffer& ring, io::File& file, Console& console) {
  console.progress(fmt::format("writing {} to measure with", format_bytes(plan.stream.region_bytes)));
  IoPlan whole = plan;
  whole.stream.kind = io::StreamKind::write;
  whole.stream.random = false;
  whole.stream.io_bytes = plan.stream.region_bytes;
  whole.stream.runtime_ns = 0;
  stream_once(whole, ring, file, console);
  console.end_progress();
  file.sync();
}

}  // namespace

double io_seconds(const IoReport& report) {
  return static_cast<double>(report.outcome.result.elapsed_ns) * 1e-9;
}

double cpu_seconds(const IoReport& report) {
  return static_cast<double>(report.outcome.result.user_ns + report.outcome.result.system_ns) * 1e-9;
}

uint64_t moved_bytes(const IoReport& report) {
  return report.outcome.result.read.bytes + report.outcome.result.write.bytes;
}

IoReport measure_io(const IoPlan& plan, Console& console) {
  io::RingBuffer ring({.slot_bytes = plan.stream.block_bytes, .slot_count = plan.engine.queue_depth});
  if (!ring.huge_page_refusal().empty())
    console.warning(fmt::format("the ring lies in 4 KiB pages: {}", ring.huge_page_refusal()));
  fill_with_noise(ring.memory(), plan.stream.seed);
  io::File file = open_file(plan, console);
  if (plan.own_file) fill_file(plan, ring, file, console);
  if (!file.direct()) posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
  return stream_once(plan, ring, file, console);
}

namespace {

// Returns the plan of one cell, with as many blocks in flight as fit into the ring.
IoPlan cell_plan(const IoPlan& plan, const SweepCell& cell) {
  IoPlan changed = plan;
  changed.stream.block_bytes = cell.block_bytes;
  changed.stream.region_bytes = plan.stream.region_bytes / cell.block_bytes * cell.block_bytes;
  changed.engine.block_bytes = cell.block_bytes;
  changed.engine.queue_depth = static_cast<uint32_t>(cell.ring_bytes / cell.block_bytes);
  return changed;
}

std::vector<SweepCell> cells_of(const IoPlan& plan) {
  std::vector<SweepCell> cells;
  for (const uint64_t ring : kSweptRings) {
    for (const uint64_t block : kSweptBlocks) {
      const uint64_t slots = ring / block;
      if (slots < 2 || slots > plan.stream.region_bytes / block) continue;
      cells.push_back({.ring_bytes = ring, .block_bytes = block});
    }
  }
  return cells;
}

}  // namespace

std::vector<SweepCell> sweep_io(const IoPlan& plan, uint64_t round_count, Console& console) {
  std::vector<SweepCell> cells = cells_of(plan);
  std::vector<std::vector<double>> rates(cells.size()), costs(cells.size());
  io::File file = open_file(plan, console);
  if (plan.own_file) {
    io::RingBuffer ring({.slot_bytes = plan.stream.block_bytes, .slot_count = plan.engine.queue_depth});
    fill_with_noise(ring.memory(), plan.stream.seed);
    fill_file(plan, ring, file, console);
  }
  // The order is another one in each round, so that the drive's memory of the stream before falls on every
  // size alike.
  std::mt19937_64 random(plan.stream.seed);
  std::vector<size_t> order(cells.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (uint64_t round = 0; round < round_count; ++round) {
    console.progress(fmt::format("round {} of {}: {} sizes", round + 1, round_count, cells.size()));
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t c : order) {
      const IoPlan changed = cell_plan(plan, cells[c]);
      io::RingBuffer ring(
          {.slot_bytes = changed.stream.block_bytes, .slot_count = changed.engine.queue_depth});
      const IoReport report = stream_once(changed, ring, file, console);
      const auto bytes = static_cast<double>(moved_bytes(report));
      rates[c].push_back(bytes / io_seconds(report));
      costs[c].push_back(cpu_seconds(report) / bytes);
    }
  }
  console.end_progress();
  for (size_t c = 0; c < cells.size(); ++c) {
    cells[c].bytes_per_second = spread_of(rates[c]).median;
    cells[c].cpu_seconds_per_byte = spread_of(costs[c]).median;
  }
  return cells;
}

}  // namespace terrace
