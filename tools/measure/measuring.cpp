#include "measure/measuring.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>

#include <terrace/base/assert.h>
#include <terrace/base/clock.h>
#include <terrace/base/units.h>
#include <terrace/memory/host/machine.h>

#include "command_line.h"

namespace terrace {

Spread spread_of(std::vector<double> values) {
  TERRACE_ASSERT(!values.empty(), "a measurement has at least one round");
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  const double median = values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return {median, values.front(), values.back()};
}

void write_spread(JsonWriter& json, std::string_view key, const Spread& spread, int decimals) {
  json.object(key, {{"median", json_fixed(spread.median, decimals)},
                    {"least", json_fixed(spread.least, decimals)},
                    {"most", json_fixed(spread.most, decimals)}});
}

void show_round(uint64_t round, uint64_t rounds, Console& console) {
  console.progress(round == 0 ? std::string("warming up") : fmt::format("round {} of {}", round, rounds));
}

void for_each_round(uint64_t rounds, Console& console, FunctionRef<void(uint64_t)> round) {
  for (uint64_t r = 0; r <= rounds; ++r) {
    show_round(r, rounds, console);
    round(r);
  }
  console.end_progress();
}

io::EngineChoice engine_of_flag(const std::string& flag, const std::string& name) {
  const std::optional<io::EngineKind> wanted = io::engine_kind_from_name(name);
  if (!wanted && name != "auto")
    refuse(flag + " " + name, "there is no such engine", "give auto, io_uring, libaio or threads");
  return io::choose_engine(wanted);
}

void require_memory_for(const std::string& what, uint64_t needed_bytes, const std::string& advice) {
  const SourcedBytes limit = probe_machine().memory_limit;
  if (needed_bytes <= limit.bytes) return;
  throw Error(ErrorKind::capacity, {"cannot measure", what,
                                    fmt::format("they need {}; there are {} ({})", format_bytes(needed_bytes),
                                                format_bytes(limit.bytes), limit.origin),
                                    advice});
}

io::File make_nameless_file(const std::filesystem::path& path, uint64_t bytes, bool direct) {
  io::File file =
      io::File::open(path, {.access = io::FileAccess::read_write, .create = true, .direct = direct});
  struct Removal {
    const std::filesystem::path& path;
    ~Removal() { unlink(path.c_str()); }
  } const removal{path};
  file.preallocate(bytes);
  return file;
}

void fill_with_noise(std::span<std::byte> memory, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
}

namespace {

void take_turn(io::DriveToken& turn, Log& log) {
  if (!turn.usable()) {
    log.warning_once(fmt::format("measured without a turn on the drive: {}", turn.refusal()));
  } else if (!turn.acquire()) {
    log.warning_once("another process has had the drive for long: measured beside it");
  }
}

}  // namespace

StreamOutcome run_measured_stream(const MeasuredStream& measured, io::DriveToken* turn, Log& log) {
  const std::unique_ptr<io::Engine> engine = io::make_engine(measured.engine);
  StreamOutcome outcome;
  const auto refused = [&](bool asked_for) {
    outcome.registration_refusal = asked_for ? engine->registration_refusal() : "not asked for";
  };
  const bool has_memory = measured.register_memory && engine->register_buffer(measured.ring.memory());
  if (!has_memory) refused(measured.register_memory);
  const bool has_file = measured.register_file && engine->register_file(measured.file.fd());
  if (!has_file) refused(measured.register_file);
  const SteadyClock clock;
  if (turn != nullptr) take_turn(*turn, log);
  outcome.result = io::run_stream(*engine, measured.ring, measured.file.fd(), measured.stream, clock);
  if (turn != nullptr) turn->release();
  outcome.stats = engine->stats();
  if (has_file) engine->unregister_file(measured.file.fd());
  if (has_memory) engine->unregister_buffer(measured.ring.memory());
  const std::optional<io::StreamFailure>& failure = outcome.result.failure;
  if (failure) throw io::describe_failure(failure->request, failure->completion, measured.name);
  return outcome;
}

}  // namespace terrace
