#include "measure/bench_io_run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <numeric>
#include <optional>
#include <random>

#include <terrace/aio/drives/drive_token.h>
#include <terrace/aio/file.h>
#include <terrace/aio/ring_buffer.h>
#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/base/function_ref.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/base/units.h>

#include "text_table.h"

namespace terrace {
namespace {

// FileRemoval: a file of its own has a name only while its space is reserved.
struct FileRemoval {
  const std::filesystem::path& path;
  ~FileRemoval() { unlink(path.c_str()); }
};

io::File open_file(const IoPlan& plan, Console& console) {
  const bool writes = plan.own_file || plan.stream.kind != io::StreamKind::read;
  io::File file =
      io::File::open(plan.file, {.access = writes ? io::FileAccess::read_write : io::FileAccess::read,
                                 .create = plan.own_file,
                                 .direct = plan.direct});
  if (plan.own_file) {
    const FileRemoval removal{plan.file};
    file.preallocate(plan.stream.region_bytes);
  }
  if (plan.direct && !file.direct())
    console.warning(fmt::format("through the page cache: O_DIRECT is refused ({})", file.direct_refusal()));
  if (file.direct() && plan.stream.block_bytes % file.alignment_bytes() != 0) {
    throw Error(ErrorKind::config,
                {"cannot use", fmt::format("--bs {}", plan.stream.block_bytes),
                 fmt::format("direct transfers go in multiples of {} bytes there", file.alignment_bytes()),
                 "give a multiple, or --direct 0"});
  }
  return file;
}

// The bytes are noise: a drive that compresses, or recognises zeros, must not gain by it.
void fill_with_noise(std::span<std::byte> memory, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
}

void require_success(const IoPlan& plan, const io::StreamResult& result) {
  if (!result.failure) return;
  throw io::describe_failure(result.failure->request, result.failure->completion, plan.file);
}

// MeasuringTurn: a turn on the drive, because two measurements at once would measure each other.
class MeasuringTurn {
 public:
  MeasuringTurn(const IoPlan& plan, Console& console) {
    if (!plan.device_token) return;
    const std::filesystem::path parent = plan.file.parent_path();
    token_.emplace(std::array{parent.empty() ? std::filesystem::path(".") : parent});
    if (!token_->usable()) {
      console.warning_once(fmt::format("measured without a turn on the drive: {}", token_->refusal()));
    } else if (!token_->acquire()) {
      console.warning_once("another process has had the drive for long: measured beside it");
    }
  }

 private:
  std::optional<io::DriveToken> token_;  // given back when this object goes
};

IoReport stream_once(const IoPlan& plan, io::RingBuffer& ring, const io::File& file, Console& console) {
  const std::unique_ptr<io::Engine> engine = io::make_engine(plan.engine);
  IoReport report;
  const bool has_memory = plan.register_memory && engine->register_buffer(ring.memory());
  if (!has_memory)
    report.registration_refusal = plan.register_memory ? engine->registration_refusal() : "not asked for";
  const bool has_file = plan.register_file && engine->register_file(file.fd());
  if (!has_file)
    report.registration_refusal = plan.register_file ? engine->registration_refusal() : "not asked for";
  const SteadyClock clock;
  {
    const MeasuringTurn turn(plan, console);
    report.result = io::run_stream(*engine, ring, file.fd(), plan.stream, clock);
  }
  report.stats = engine->stats();
  if (has_file) engine->unregister_file(file.fd());
  if (has_memory) engine->unregister_buffer(ring.memory());
  require_success(plan, report.result);
  report.job_name = plan.job_name;
  report.rw = plan.rw;
  report.file = plan.file.string();
  report.engine = io::name_of(plan.engine.kind);
  report.engine_reason = plan.engine_reason;
  report.block_bytes = plan.stream.block_bytes;
  report.depth = ring.slot_count();
  report.region_bytes = plan.stream.region_bytes;
  report.direct = file.direct();
  return report;
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

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

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

constexpr uint64_t kSweptRings[] = {2 * kMiB, 4 * kMiB, 8 * kMiB, 12 * kMiB, 16 * kMiB, 32 * kMiB, 64 * kMiB};
constexpr uint64_t kSweptBlocks[] = {256 * kKiB,   512 * kKiB, 768 * kKiB, kMiB,
                                     3 * kMiB / 2, 2 * kMiB,   4 * kMiB};

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
    cells[c].bytes_per_second = median(rates[c]);
    cells[c].cpu_seconds_per_byte = median(costs[c]);
  }
  return cells;
}

namespace {

const SweepCell* find_cell(const std::vector<SweepCell>& cells, uint64_t ring, uint64_t block) {
  const auto found = std::find_if(cells.begin(), cells.end(), [&](const SweepCell& cell) {
    return cell.ring_bytes == ring && cell.block_bytes == block;
  });
  return found == cells.end() ? nullptr : &*found;
}

// The table has rings as rows and blocks as columns.
std::string sweep_table(const std::vector<SweepCell>& cells,
                        FunctionRef<std::string(const SweepCell&)> text) {
  std::vector<std::string> headings = {"ring"};
  for (const uint64_t block : kSweptBlocks) headings.push_back(format_bytes(block));
  TextTable table(headings);
  for (const uint64_t ring : kSweptRings) {
    std::vector<std::string> row = {format_bytes(ring)};
    for (const uint64_t block : kSweptBlocks) {
      const SweepCell* cell = find_cell(cells, ring, block);
      row.push_back(cell == nullptr ? "-" : text(*cell));
    }
    table.add(row);
  }
  return table.text();
}

}  // namespace

std::string sweep_text(const IoPlan& plan, const std::vector<SweepCell>& cells) {
  const auto best = std::max_element(cells.begin(), cells.end(), [](const SweepCell& a, const SweepCell& b) {
    return a.bytes_per_second < b.bytes_per_second;
  });
  std::string text = fmt::format("GB/s of --rw {}, by ring and block\n", plan.rw);
  text += sweep_table(
      cells, [](const SweepCell& cell) { return fmt::format("{:.2f}", cell.bytes_per_second / 1e9); });
  text += "\nprocessor seconds per GB\n";
  text += sweep_table(
      cells, [](const SweepCell& cell) { return fmt::format("{:.4f}", cell.cpu_seconds_per_byte * 1e9); });
  if (best == cells.end()) return text;
  return text + fmt::format("\nmost: {:.2f} GB/s with a ring of {} in blocks of {}\n",
                            best->bytes_per_second / 1e9, format_bytes(best->ring_bytes),
                            format_bytes(best->block_bytes));
}

std::string sweep_json(const IoPlan& plan, const std::vector<SweepCell>& cells) {
  JsonWriter json;
  json.begin_object().member("rw", plan.rw).list("sizes", cells, [&](const SweepCell& cell) {
    json.begin_object().members({{"ring_bytes", cell.ring_bytes}, {"block_bytes", cell.block_bytes}});
    json.member("gb_per_second", json_fixed(cell.bytes_per_second / 1e9, 6));
    json.member("cpu_seconds_per_gb", json_fixed(cell.cpu_seconds_per_byte * 1e9, 6)).end();
  });
  return json.end().take() + "\n";
}

}  // namespace terrace
