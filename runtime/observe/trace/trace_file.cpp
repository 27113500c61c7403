#include <terrace/runtime/observe/trace/trace_file.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/runtime/config/json/json_document.h>

namespace terrace {
namespace {

constexpr size_t kWriteBytes = 256 << 10;

// Processes of the format, which are groups of tracks, in their order on the screen.
constexpr uint32_t kStepThread = 1;
constexpr uint32_t kLinkTracks = 2;
constexpr uint32_t kUpdate = 3;
constexpr uint32_t kEpochs = 4;
constexpr uint32_t kMemory = 5;
constexpr uint32_t kEngines = 6;

constexpr uint32_t kSteps = 1;  // of the step thread
constexpr uint32_t kCompute = 2;
constexpr uint32_t kStepWaits = 3;
constexpr uint32_t kEvictions = 4;
constexpr uint32_t kToDevice = 1;  // of the links
constexpr uint32_t kFromDevice = 2;
constexpr uint32_t kFirstLane = 10;
constexpr uint32_t kUpdateWaits = 1;  // of the update
constexpr uint32_t kFirstWorker = 10;

std::string_view name_of(UseKind kind) {
  switch (kind) {
    case UseKind::forward:
      return "forward";
    case UseKind::backward:
      return "backward";
    case UseKind::inference:
      return "inference";
  }
  return "";
}

[[noreturn]] void fail(ErrorKind kind, const std::filesystem::path& path, int error) {
  throw Error(kind, {"cannot write the trace", path.string(), system_reason(error),
                     "name a file that can be written with --trace, or leave it out"});
}

std::string chunk_argument(uint32_t chunk) {
  return chunk == kNoTraceChunk ? "" : fmt::format(R"("chunk": {})", chunk);
}

}  // namespace

TraceFile::TraceFile(std::filesystem::path path, uint64_t begun_ns)
    : path_(std::move(path)),
      aside_(fmt::format("{}.{}.partial", path_.string(), getpid())),
      begun_ns_(begun_ns) {
  if (std::filesystem::is_directory(path_)) fail(ErrorKind::config, path_, EISDIR);
  fd_ = open(aside_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd_ < 0) fail(ErrorKind::config, aside_, errno);
  // Who may read the one before may read this one.
  struct stat before {};
  if (stat(path_.c_str(), &before) == 0) static_cast<void>(fchmod(fd_, before.st_mode & 0777));
  text_.reserve(kWriteBytes + 4096);
  text_ = R"({"displayTimeUnit": "ms", "traceEvents": [)";
  name_processes();
}

TraceFile::~TraceFile() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(aside_.c_str());
}

void TraceFile::add(const StepEvents& events, const TraceEvent& event) {
  ++event_count_;
  switch (event.kind) {
    case TraceKind::step:
      return add_step(event);
    case TraceKind::use:
      return add_use(events, event);
    case TraceKind::wait:
      return add_wait(event);
    case TraceKind::transfer:
      return add_transfer(events, event);
    case TraceKind::queue:
      return put_counter(kEngines, fmt::format("{}: requests", events.engines()[event.lane]), event.begin_ns,
                         fmt::format(R"("in flight": {})", event.id));
    case TraceKind::update:
      return add_update(event);
    case TraceKind::commit:
      return put_span({kEpochs, 1},
                      {fmt::format("commit {}", event.id), "commit", event.begin_ns, event.end_ns,
                       fmt::format(R"("bytes": {}, "failed": {})", event.bytes, event.failed)});
    case TraceKind::fetch:
      return add_fetch(event);
    case TraceKind::evict:
      return put_moment({kStepThread, kEvictions}, fmt::format("chunk {}", event.chunk), event.begin_ns,
                        fmt::format(R"("step": {}, "chunk": {})", event.step, event.chunk));
    case TraceKind::place:
    case TraceKind::leave:
      return add_slots(events, event);
    case TraceKind::gauge:
      return add_gauge(event);
  }
}

void TraceFile::add_step(const TraceEvent& event) {
  put_span({kStepThread, kSteps}, {fmt::format("step {}", event.step), "step", event.begin_ns, event.end_ns,
                                   fmt::format(R"("step": {})", event.step)});
}

void TraceFile::add_use(const StepEvents& events, const TraceEvent& event) {
  const std::string_view name = events.name(event.name);
  put_span({kStepThread, kCompute},
           {std::string(name.empty() ? "an operation" : name), "use", event.begin_ns, event.end_ns,
            fmt::format(R"("step": {}, "kind": "{}", "micro_batch": {}, "chunks_there": {}, )"
                        R"("chunks_fetched_ahead": {}, "chunks_fetched_on_demand": {})",
                        event.step, name_of(event.use), event.micro_batch, event.counts[0], event.counts[1],
                        event.counts[2])});
  add_cache(event);
}

// Since the step began.
void TraceFile::add_cache(const TraceEvent& event) {
  if (event.step != cache_step_) cache_counts_ = {};
  cache_step_ = event.step;
  for (size_t c = 0; c < cache_counts_.size(); ++c) cache_counts_[c] += event.counts[c];
  put_counter(kMemory, "cache of the device, chunks this step", event.begin_ns,
              fmt::format(R"("hits": {}, "fetched ahead": {}, "on demand": {})", cache_counts_[0],
                          cache_counts_[1], cache_counts_[2]));
}

void TraceFile::add_wait(const TraceEvent& event) {
  const Track track = event.lane == 0 ? Track{kStepThread, kStepWaits} : Track{kUpdate, kUpdateWaits};
  put_span(track, {std::string(terrace::name_of(event.cause)), "wait", event.begin_ns, event.end_ns,
                   chunk_argument(event.chunk)});
}

void TraceFile::add_transfer(const StepEvents& events, const TraceEvent& event) {
  const bool is_copy = event.link == TraceLink::h2d || event.link == TraceLink::d2h;
  std::string arguments = fmt::format(
      R"("step": {}, "link": "{}", "role": "{}", "reason": "{}", "bytes": {}, )"
      R"("failed": {})",
      event.step, key_of(event.link), key_of(event.role), key_of(event.reason), event.bytes, event.failed);
  if (event.chunk != kNoTraceChunk) arguments += fmt::format(R"(, "chunk": {})", event.chunk);
  if (!is_copy) {
    const std::vector<std::string>& paths = events.facts().nvme_paths;
    if (event.path < paths.size())
      arguments += fmt::format(R"(, "path": {})", json_quoted(paths[event.path]));
    arguments += fmt::format(R"(, "engine": {})", json_quoted(events.engines()[event.lane]));
  }
  std::string name(key_of(event.role));
  if (event.chunk != kNoTraceChunk) name += fmt::format(" {}", event.chunk);
  put_span(lane_of(events, event), {std::move(name), "transfer", event.begin_ns, event.end_ns, arguments});
  if (event.link == TraceLink::h2d && event.id != 0) copies_[event.chunk] = {event.id, event.begin_ns};
}

// The first lane that is free by then; copies to the device and from it come one after the other.
TraceFile::Track TraceFile::lane_of(const StepEvents& events, const TraceEvent& event) {
  if (event.link == TraceLink::h2d) return {kLinkTracks, kToDevice};
  if (event.link == TraceLink::d2h) return {kLinkTracks, kFromDevice};
  uint32_t number = 1;
  for (Lane& lane : lanes_) {
    if (lane.link != event.link || lane.path != event.path) continue;
    ++number;
    if (lane.until_ns > event.begin_ns) continue;
    lane.until_ns = event.end_ns;
    return lane.track;
  }
  const Track track{kLinkTracks, kFirstLane + static_cast<uint32_t>(lanes_.size())};
  lanes_.push_back({event.link, event.path, event.end_ns, track});
  const std::vector<std::string>& paths = events.facts().nvme_paths;
  const std::string path = event.path < paths.size() ? paths[event.path] : std::to_string(event.path);
  name_track(track, fmt::format("{} {} #{}", event.link == TraceLink::nvme_read ? "reads of" : "writes to",
                                path, number));
  return track;
}

void TraceFile::add_update(const TraceEvent& event) {
  name_worker(event.lane);
  put_span({kUpdate, kFirstWorker + event.lane},
           {fmt::format("chunk {}", event.chunk), "update", event.begin_ns, event.end_ns,
            fmt::format(R"("chunk": {}, "bytes": {})", event.chunk, event.bytes)});
}

// From the copy to the device, where it was recorded, to the use.
void TraceFile::add_fetch(const TraceEvent& event) {
  const auto copy = copies_.find(event.chunk);
  if (event.id == 0 || copy == copies_.end() || copy->second.id != event.id) return;
  const auto end_of_flow = [&](std::string_view ends, uint32_t process, uint32_t thread, uint64_t at_ns) {
    put(fmt::format(
        R"({{{}, "id": {}, "name": "fetch", "cat": "fetch", "pid": {}, "tid": {}, "ts": {}, "args": {{"chunk": {}, "asked_at_us": {}}}}})",
        ends, event.id, process, thread, time(at_ns), event.chunk, time(event.begin_ns)));
  };
  end_of_flow(R"("ph": "s")", kLinkTracks, kToDevice, copy->second.begin_ns);
  end_of_flow(R"("ph": "f", "bp": "e")", kStepThread, kCompute, event.end_ns);
  copies_.erase(copy);
}

void TraceFile::add_slots(const StepEvents& events, const TraceEvent& event) {
  const uint32_t used = event.counts[0] + event.counts[1] + event.counts[2];
  const uint32_t count = events.facts().device_slot_count;
  put_counter(kMemory, "device slots", event.begin_ns,
              fmt::format(R"("parameters": {}, "gradients": {}, "leaving": {}, "free": {})", event.counts[0],
                          event.counts[1], event.counts[2], count - std::min(used, count)));
}

void TraceFile::add_gauge(const TraceEvent& event) {
  switch (event.gauge) {
    case TraceGauge::host_bytes:
      return put_counter(kMemory, "host memory", event.begin_ns, fmt::format(R"("bytes": {})", event.id));
    case TraceGauge::kept_records:
      return put_counter(kMemory, "chunks of states in host memory", event.begin_ns,
                         fmt::format(R"("chunks": {})", event.id));
    case TraceGauge::ring_slots:
      return put_counter(kMemory, "slots of the I/O ring", event.begin_ns,
                         fmt::format(R"("in use": {})", event.id));
  }
}

// --- The format ---

void TraceFile::name_processes() {
  const auto name = [this](uint32_t process, std::string_view text) {
    put(fmt::format(R"({{"ph": "M", "name": "process_name", "pid": {}, "args": {{"name": "{}"}}}})", process,
                    text));
    put(fmt::format(R"({{"ph": "M", "name": "process_sort_index", "pid": {}, "args": {{"sort_index": {}}}}})",
                    process, process));
  };
  name(kStepThread, "the step thread");
  name(kLinkTracks, "links");
  name(kUpdate, "the update");
  name(kEpochs, "commits");
  name(kMemory, "memory");
  name(kEngines, "engines");
  name_track({kStepThread, kSteps}, "steps");
  name_track({kStepThread, kCompute}, "compute");
  name_track({kStepThread, kStepWaits}, "waits");
  name_track({kStepThread, kEvictions}, "evictions");
  name_track({kLinkTracks, kToDevice}, "host to device");
  name_track({kLinkTracks, kFromDevice}, "device to host");
  name_track({kUpdate, kUpdateWaits}, "waits of an update beside the step");
  name_track({kEpochs, 1}, "commits");
}

void TraceFile::name_worker(uint16_t worker) {
  if (worker >= named_workers_.size()) named_workers_.resize(worker + size_t{1}, false);
  if (named_workers_[worker]) return;
  named_workers_[worker] = true;
  name_track({kUpdate, kFirstWorker + worker},
             worker == kDeviceUpdateLane ? "device" : fmt::format("worker {}", worker));
}

void TraceFile::name_track(Track track, std::string_view name) {
  put(fmt::format(R"({{"ph": "M", "name": "thread_name", "pid": {}, "tid": {}, "args": {{"name": {}}}}})",
                  track.process, track.thread, json_quoted(name)));
  put(fmt::format(
      R"({{"ph": "M", "name": "thread_sort_index", "pid": {}, "tid": {}, "args": {{"sort_index": {}}}}})",
      track.process, track.thread, track.thread));
}

// Microseconds, exactly.
std::string TraceFile::time(uint64_t ns) const {
  const uint64_t since = ns - std::min(ns, begun_ns_);
  return fmt::format("{}.{:03}", since / 1000, since % 1000);
}

void TraceFile::put_span(Track track, const Span& span) {
  const uint64_t length_ns = span.end_ns - span.begin_ns;
  put(fmt::format(
      R"({{"ph": "X", "name": {}, "cat": "{}", "pid": {}, "tid": {}, "ts": {}, "dur": {}.{:03}, "args": {{{}}}}})",
      json_quoted(span.name), span.category, track.process, track.thread, time(span.begin_ns),
      length_ns / 1000, length_ns % 1000, span.arguments));
}

void TraceFile::put_moment(Track track, std::string_view name, uint64_t at_ns, std::string_view arguments) {
  put(fmt::format(
      R"({{"ph": "i", "s": "t", "name": {}, "cat": "eviction", "pid": {}, "tid": {}, "ts": {}, "args": {{{}}}}})",
      json_quoted(name), track.process, track.thread, time(at_ns), arguments));
}

void TraceFile::put_counter(uint32_t process, std::string_view name, uint64_t at_ns,
                            std::string_view values) {
  put(fmt::format(R"({{"ph": "C", "name": {}, "pid": {}, "ts": {}, "args": {{{}}}}})", json_quoted(name),
                  process, time(at_ns), values));
}

void TraceFile::put(std::string_view object) {
  text_ += is_first_ ? "\n" : ",\n";
  text_ += object;
  is_first_ = false;
  if (text_.size() >= kWriteBytes) write_out();
}

void TraceFile::write_out() {
  std::string_view rest = text_;
  while (!rest.empty()) {
    const ssize_t written = write(fd_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail(ErrorKind::io, aside_, written < 0 ? errno : ENOSPC);
    rest.remove_prefix(static_cast<size_t>(written));
  }
  text_.clear();
}

void TraceFile::finish(const StepEvents& events, std::string_view description) {
  const TraceFacts& facts = events.facts();
  text_ += fmt::format(
      R"(
], "otherData": {{"run": {}, "first_step": {}, "last_step": {}, "events": {}, )"
      R"("events_left_out": {}, "operations_without_a_name": {}, "device_budget_bytes": {}, )"
      R"("device_slots": {}, "device_slot_bytes": {}, "device_other_bytes": {}, "host_budget_bytes": {}, )"
      R"("ring_slots": {}, "ring_slot_bytes": {}, "chunks": {}, "chunks_with_states": {}}}}}
)",
      json_quoted(description), events.first_step(), events.last_step(), event_count_, events.left_out(),
      events.nameless(), facts.device_budget_bytes, facts.device_slot_count, facts.device_slot_bytes,
      facts.device_other_bytes, facts.host_budget_bytes, facts.ring_slot_count, facts.ring_slot_bytes,
      facts.chunk_count, facts.trainable_chunk_count);
  write_out();
  const int error = fsync(fd_) != 0 ? errno : 0;
  close(std::exchange(fd_, -1));
  if (error == 0 && rename(aside_.c_str(), path_.c_str()) == 0) return;
  const int reason = error != 0 ? error : errno;
  unlink(aside_.c_str());
  fail(ErrorKind::io, path_, reason);
}

}  // namespace terrace
