// `terrace bench io`: how fast Terrace's engine moves blocks between a file and its ring, in fio's words. A
// file of its own loses its name once its space is reserved, so that nothing remains of it however the
// program ends. A file that exists is written to only if that is asked for.
#include "measure/bench_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <utility>

#include <terrace/aio/engine.h>
#include <terrace/aio/engine_limits.h>
#include <terrace/aio/engines/transport.h>
#include <terrace/aio/file.h>
#include <terrace/aio/ring_buffer.h>
#include <terrace/aio/stream_job.h>
#include <terrace/base/clock.h>
#include <terrace/base/units.h>

#include "command_line.h"
#include "console.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIoExamples =
    "Examples:\n"
    "  terrace bench io --directory /mnt/nvme --rw read --size 8GiB\n"
    "  terrace bench io --directory /mnt/nvme --rw mixed --rwmixread 50 --bs 1m --iodepth 16 \\\n"
    "      --size 4g --time_based --runtime 10 --output-format json\n";

struct NamedStream {
  const char* name;
  io::StreamKind kind;
  bool random;
};
// The names are fio's, except `update`.
constexpr std::array kStreams = {
    NamedStream{"read", io::StreamKind::read, false},
    NamedStream{"write", io::StreamKind::write, false},
    NamedStream{"randread", io::StreamKind::read, true},
    NamedStream{"randwrite", io::StreamKind::write, true},
    NamedStream{"mixed", io::StreamKind::mixed, false},
    NamedStream{"rw", io::StreamKind::mixed, false},
    NamedStream{"readwrite", io::StreamKind::mixed, false},
    NamedStream{"randrw", io::StreamKind::mixed, true},
    NamedStream{"update", io::StreamKind::update, false},
};

// The file of --sweep is filled with blocks of a size that it measures and that every file has room for.
constexpr uint64_t kSweepFillBytes = 256 * kKiB;
constexpr uint64_t kSweepFillDepth = 32;

struct IoFlags {
  std::string filename, directory;
  std::string name = "terrace";
  std::string rw = "read";
  std::string bs = "1MiB", size, io_size, engine = "auto", output_format = "normal";
  uint64_t iodepth = io::EngineOptions{}.queue_depth, threads = 2, rounds = 5;
  uint32_t rwmixread = 50, direct = 1, fixedbufs = 1, registerfiles = 1;
  double runtime = 0;
  bool time_based = false, overwrite = false, json = false;
  bool sweep = false, no_device_token = false;
};

class BenchIo final : public Subcommand {
 public:
  explicit BenchIo(Command& bench);
  int run() override;

 private:
  void add_file_flags(Command& command);
  void add_stream_flags(Command& command);
  void add_sweep_flags(Command& command);
  void add_engine_flags(Command& command);
  IoPlan plan() const;
  uint64_t depth() const { return flags_.sweep ? kSweepFillDepth : flags_.iodepth; }
  void plan_stream(IoPlan& plan) const;
  void plan_size(IoPlan& plan) const;
  void plan_file(IoPlan& plan) const;
  void plan_engine(IoPlan& plan) const;

  IoFlags flags_;
  Console console_;
};

BenchIo::BenchIo(Command& bench)
    : Subcommand(bench, "io", "Measure reading and writing a file with Terrace's engine, in fio's words") {
  add_file_flags(command_);
  add_stream_flags(command_);
  add_sweep_flags(command_);
  add_engine_flags(command_);
  command_.footer(kIoExamples);
}

void BenchIo::add_file_flags(Command& command) {
  const FlagGroup group(command, "The file");
  group.text("--directory", "DIR", flags_.directory, "Make a file of its own in this folder");
  group.text("--filename", "FILE", flags_.filename, "This file; one that exists is only read, and stays");
  group.yes("--overwrite", flags_.overwrite, "Write to an existing --filename, whose content is lost");
  group.text("--size", "SIZE", flags_.size, "Size of the file (default 1GiB; of one that exists, all of it)");
  group.count("--direct", 0, flags_.direct, "1: past the page cache (default); 0: through it", 1);
}

void BenchIo::add_stream_flags(Command& command) {
  const FlagGroup group(command, "The stream");
  group.text("--name", "NAME", flags_.name, "Name of the job in the JSON (default terrace)");
  group.text("--rw,--readwrite", "KIND", flags_.rw,
             "read (default), write, randread, randwrite, mixed (fio's rw), randrw, or update: each block "
             "is read and written back, as an optimizer's step does");
  group.count("--rwmixread", 0, flags_.rwmixread, "Percent of mixed that are reads (default 50)", 100);
  group.text("--bs", "SIZE", flags_.bs, "Bytes of a block, a multiple of 4KiB (default 1MiB)");
  group.count("--iodepth", 1, flags_.iodepth, "Blocks in flight, and slots of the ring (default 32)");
  group.text("--io-size", "SIZE", flags_.io_size, "Bytes to move (default: --size)");
  group.number("--runtime", 1e-3, 1e6, flags_.runtime, "Seconds after which it ends");
  group.yes("--time-based", flags_.time_based, "Go on for all of --runtime, whatever is moved");
}

void BenchIo::add_sweep_flags(Command& command) {
  const FlagGroup group(command, "The stream");
  group.yes("--sweep", flags_.sweep,
            "Measure every size of ring and block instead of --bs and --iodepth: what they should be here");
  group.count("--rounds", 1, flags_.rounds,
              "Rounds of --sweep, each of which measures every size once (default 5)");
}

void BenchIo::add_engine_flags(Command& command) {
  const FlagGroup group(command, "The engine");
  group.text("--ioengine", "NAME", flags_.engine, "auto (default), io_uring, libaio or threads");
  group.count("--threads", 1, flags_.threads, "Of the engine threads (default 2)");
  group.count("--fixedbufs", 0, flags_.fixedbufs, "1: register the ring, where that works (default)", 1);
  group.count("--registerfiles", 0, flags_.registerfiles, "1: register the file, where that works (default)",
              1);
  group.yes("--no-device-token", flags_.no_device_token,
            "Do not wait for other measurements of the drive, nor have them wait");
  group.text("--output-format", "FORMAT", flags_.output_format, "normal (default) or json, with fio's names");
  group.yes("--json", flags_.json, "The same as --output-format json");
}

void BenchIo::plan_stream(IoPlan& plan) const {
  const auto named = std::find_if(kStreams.begin(), kStreams.end(),
                                  [&](const NamedStream& stream) { return flags_.rw == stream.name; });
  if (named == kStreams.end()) {
    refuse("--rw " + flags_.rw, "there is no such kind",
           "give read, write, randread, randwrite, mixed, randrw or update");
  }
  if (flags_.output_format != "normal" && flags_.output_format != "json")
    refuse("--output-format " + flags_.output_format, "there is no such format", "give normal or json");
  plan.stream.kind = named->kind;
  plan.stream.random = named->random;
  plan.stream.read_percent = flags_.rwmixread;
  plan.stream.block_bytes = flags_.sweep ? kSweepFillBytes : parse_bytes(flags_.bs, "--bs");
  if (plan.stream.block_bytes == 0 || plan.stream.block_bytes % (4 * kKiB) != 0)
    refuse("--bs " + flags_.bs, "it is not a multiple of 4 KiB", "give for example 1MiB");
  if (flags_.time_based && flags_.runtime == 0)
    refuse("--time-based", "there is no --runtime", "say how many seconds");
  plan.stream.runtime_ns = static_cast<uint64_t>(flags_.runtime * 1e9);
  plan.direct = flags_.direct == 1;
  plan.job_name = flags_.name;
  plan.rw = flags_.rw;
  plan.register_memory = flags_.fixedbufs == 1;
  plan.register_file = flags_.registerfiles == 1;
  plan.device_token = !flags_.no_device_token;
}

void BenchIo::plan_file(IoPlan& plan) const {
  if (flags_.filename.empty() == flags_.directory.empty()) {
    refuse(flags_.filename.empty() ? "no file" : "--filename and --directory together",
           "one of the two says where", "give --directory DIR for a file of its own, or --filename FILE");
  }
  std::error_code ignored;
  plan.own_file = flags_.filename.empty() || !fs::exists(fs::symlink_status(flags_.filename, ignored));
  if (!flags_.directory.empty()) {
    require_folder("--directory", flags_.directory);
    plan.file = fs::path(flags_.directory) / fmt::format(".terrace-bench-io-{}", getpid());
    return;
  }
  plan.file = flags_.filename;
  const bool writes = plan.stream.kind != io::StreamKind::read;
  if (!plan.own_file && writes && !flags_.overwrite) {
    refuse("--filename " + flags_.filename, fmt::format("it exists, and --rw {} would destroy it", flags_.rw),
           "give --overwrite if that is meant, or --directory for a file of its own");
  }
}

void BenchIo::plan_size(IoPlan& plan) const {
  const uint64_t block = plan.stream.block_bytes;
  uint64_t size = flags_.size.empty() ? kGiB : parse_bytes(flags_.size, "--size");
  if (!plan.own_file) {
    const uint64_t there = io::File::open(plan.file, {}).size_bytes();
    if (flags_.size.empty()) size = there;
    if (size > there) {
      refuse("--size " + flags_.size, fmt::format("the file has {}", format_bytes(there)), "give less");
    }
  }
  plan.stream.region_bytes = size / block * block;
  if (plan.stream.region_bytes / block < depth()) {
    refuse("--size",
           fmt::format("{} are fewer than {} blocks of {}", format_bytes(size), depth(), format_bytes(block)),
           "give a larger --size, or smaller --bs or --iodepth");
  }
  if (!flags_.time_based) {
    plan.stream.io_bytes = flags_.io_size.empty() ? plan.stream.region_bytes * (flags_.rw == "update" ? 2 : 1)
                                                  : parse_bytes(flags_.io_size, "--io-size");
    if (plan.stream.io_bytes == 0) refuse("--io-size", "it is 0", "give for example 4GiB");
  } else if (!flags_.io_size.empty()) {
    refuse("--io-size and --time-based together", "each says when it ends", "leave one of them out");
  }
  if (!plan.own_file) return;
  const fs::path folder = plan.file.has_parent_path() ? plan.file.parent_path() : fs::path(".");
  require_exists("the folder", folder);
  const uint64_t free = io::free_bytes_at(folder);
  if (free < plan.stream.region_bytes) {
    throw Error(
        ErrorKind::capacity,
        {fmt::format("cannot make a file of {}", format_bytes(plan.stream.region_bytes)), folder.string(),
         fmt::format("{} are free", format_bytes(free)), "free space, or give a smaller --size"});
  }
}

void BenchIo::plan_engine(IoPlan& plan) const {
  plan.engine.queue_depth = static_cast<uint32_t>(std::min<uint64_t>(depth(), io::kLargestQueueDepth + 1));
  plan.engine.block_bytes = plan.stream.block_bytes;
  plan.engine.thread_count =
      static_cast<uint32_t>(std::min<uint64_t>(flags_.threads, io::kMostEngineThreads + 1));
  io::check_options(plan.engine);
  const io::EngineChoice choice = engine_of_flag("--ioengine", flags_.engine);
  plan.engine.kind = choice.kind;
  plan.engine_reason = choice.reason;
}

IoPlan BenchIo::plan() const {
  IoPlan plan;
  plan_stream(plan);
  plan_file(plan);
  plan_size(plan);
  plan_engine(plan);
  return plan;
}

int BenchIo::run() {
  const IoPlan chosen = plan();
  const bool json = flags_.json || flags_.output_format == "json";
  return print_measurement(console_, [&] {
    if (flags_.sweep) {
      const std::vector<SweepCell> cells = sweep_io(chosen, flags_.rounds, console_);
      return json ? sweep_json(chosen, cells) : sweep_text(chosen, cells);
    }
    const IoReport report = measure_io(chosen, console_);
    return json ? io_report_json(report) : io_report_text(report);
  });
}

}  // namespace

std::unique_ptr<Subcommand> add_bench_io(Command& bench) {
  return std::make_unique<BenchIo>(bench);
}

}  // namespace terrace
