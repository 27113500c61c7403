#include <terrace/runtime/observe/trace/trace_file.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <span>
#include <utility>

#include <terrace/base/error.h>

namespace terrace {
namespace {

constexpr size_t kWriteBytes = 256 << 10;

// Processes of the format, which are groups of tracks, in their order on the screen.
constexpr uint32_t kStepThread = 1;
constexpr uint32_t kLinkTracks = 2;
constexpr uint32_t kUpdate = 3;
constexpr uint32_t kCommits = 4;
constexpr uint32_t kMemory = 5;
constexpr uint32_t kEngines = 6;

constexpr uint32_t kSteps = 1;  // of the step thread
constexpr uint32_t kCompute = 2;
constexpr uint32_t kStepWaits = 3;
constexpr uint32_t kEvictions = 4;
constexpr uint32_t kToDevice = 1;  // of the links
constexpr uint32_t kFromDevice = 2;
constexpr uint32_t kGathers = 3;
constexpr uint32_t kExchanges = 4;
constexpr uint32_t kFirstLane = 10;
constexpr uint32_t kUpdateWaits = 1;  // of the update
constexpr uint32_t kFirstWorker = 10;
constexpr uint32_t kThreadsOfGroup = 1000;  // where a rank is one process: its groups follow each other

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

// A run that cannot begin its trace is refused, as for any flag that is wrong.
std::unique_ptr<io::AsideFile> open_aside(const std::filesystem::path& path) {
  try {
    return std::make_unique<io::AsideFile>(
        path, io::AsideOptions{.suffix = fmt::format(".{}.partial", getpid()),
                               .for_the_user = true,
                               .what = "the trace",
                               .advice = "name a file that can be written, or train without a trace",
                               .events = nullptr});
  } catch (const Error& error) {
    throw Error(ErrorKind::config, error.parts());
  }
}

// Exactly.
std::string microseconds(uint64_t ns) {
  return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
}

}  // namespace

TraceFile::TraceFile(std::filesystem::path path, uint64_t begun_ns, TraceRank rank)
    : path_(std::move(path)), begun_ns_(begun_ns), rank_(std::move(rank)), file_(open_aside(path_)) {
  json_.text().reserve(kWriteBytes + 4096);
  json_.begin_object().member("displayTimeUnit", "ms").begin_list("traceEvents");
  name_processes();
}

TraceFile::~TraceFile() = default;

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
                         {{"in flight", event.id}});
    case TraceKind::update:
      return add_update(event);
    case TraceKind::commit:
      return put_span({kCommits, 1}, fmt::format("commit {}", event.id), "commit", event,
                      {{"bytes", event.bytes}, {"failed", event.failed}});
    case TraceKind::fetch:
      return add_fetch(event);
    case TraceKind::evict:
      return put_moment({kStepThread, kEvictions}, fmt::format("chunk {}", event.chunk), event.begin_ns,
                        {{"step", event.step}, {"chunk", event.chunk}});
    case TraceKind::place:
    case TraceKind::leave:
      return add_slots(events, event);
    case TraceKind::gauge:
      return add_gauge(event);
  }
}

void TraceFile::add_step(const TraceEvent& event) {
  put_span({kStepThread, kSteps}, fmt::format("step {}", event.step), "step", event, {{"step", event.step}});
}

void TraceFile::add_use(const StepEvents& events, const TraceEvent& event) {
  const std::string_view name = events.name(event.name);
  begin_span({kStepThread, kCompute}, name.empty() ? "an operation" : name, "use", event);
  json_.members({{"step", event.step}, {"kind", name_of(event.use)}, {"micro_batch", event.micro_batch}});
  json_.member("chunks_there", event.counts[0]).member("chunks_fetched_ahead", event.counts[1]);
  json_.member("chunks_fetched_on_demand", event.counts[2]);
  end_event();
  add_cache(event);
}

// Since the step began.
void TraceFile::add_cache(const TraceEvent& event) {
  if (event.step != cache_step_) cache_counts_ = {};
  cache_step_ = event.step;
  for (size_t c = 0; c < cache_counts_.size(); ++c) cache_counts_[c] += event.counts[c];
  put_counter(
      kMemory, "cache of the device, chunks this step", event.begin_ns,
      {{"hits", cache_counts_[0]}, {"fetched ahead", cache_counts_[1]}, {"on demand", cache_counts_[2]}});
}

void TraceFile::add_wait(const TraceEvent& event) {
  const Track track = event.lane == 0 ? Track{kStepThread, kStepWaits} : Track{kUpdate, kUpdateWaits};
  begin_span(track, terrace::name_of(event.cause), "wait", event);
  put_chunk(event);
  end_event();
}

void TraceFile::add_transfer(const StepEvents& events, const TraceEvent& event) {
  std::string name(key_of(event.role));
  if (event.chunk != kNoTraceChunk) name += fmt::format(" {}", event.chunk);
  begin_span(lane_of(events, event), name, "transfer", event);
  json_.members({{"step", event.step}, {"link", key_of(event.link)}, {"role", key_of(event.role)}});
  json_.members({{"reason", key_of(event.reason)}, {"bytes", event.bytes}, {"failed", event.failed}});
  put_chunk(event);
  if (event.link == TraceLink::nvme_read || event.link == TraceLink::nvme_write) {
    const std::vector<std::string>& paths = events.facts().nvme_paths;
    if (event.path < paths.size()) json_.member("path", paths[event.path]);
    json_.member("engine", events.engines()[event.lane]);
  }
  end_event();
  if (event.link == TraceLink::h2d && event.id != 0) copies_[event.chunk] = {event.id, event.begin_ns};
}

void TraceFile::put_chunk(const TraceEvent& event) {
  if (event.chunk != kNoTraceChunk) json_.member("chunk", event.chunk);
}

// The first lane that is free by then; what goes over the other links comes one after the other.
TraceFile::Track TraceFile::lane_of(const StepEvents& events, const TraceEvent& event) {
  if (event.link == TraceLink::h2d) return {kLinkTracks, kToDevice};
  if (event.link == TraceLink::d2h) return {kLinkTracks, kFromDevice};
  if (event.link == TraceLink::gather) return {kLinkTracks, kGathers};
  if (event.link == TraceLink::exchange) return {kLinkTracks, kExchanges};
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
  put_span({kUpdate, kFirstWorker + event.lane}, fmt::format("chunk {}", event.chunk), "update", event,
           {{"chunk", event.chunk}, {"bytes", event.bytes}});
}

// From the copy to the device, where it was recorded, to the use.
void TraceFile::add_fetch(const TraceEvent& event) {
  const auto copy = copies_.find(event.chunk);
  if (event.id == 0 || copy == copies_.end() || copy->second.id != event.id) return;
  const uint64_t id = event.id * rank_.ranks + rank_.rank;  // no other rank's
  const auto put_end = [&](Track track, uint64_t at_ns) {
    json_.members({{"id", id}, {"name", "fetch"}, {"cat", "fetch"}});
    json_.members({{"pid", process_of(track)}, {"tid", thread_of(track)}, {"ts", json_raw(time(at_ns))}});
    json_.object("args", {{"chunk", event.chunk}, {"asked_at_us", json_raw(time(event.begin_ns))}}).end();
  };
  json_.break_line().begin_object().member("ph", "s");
  put_end({kLinkTracks, kToDevice}, copy->second.begin_ns);
  json_.break_line().begin_object().member("ph", "f").member("bp", "e");
  put_end({kStepThread, kCompute}, event.end_ns);
  copies_.erase(copy);
}

void TraceFile::add_slots(const StepEvents& events, const TraceEvent& event) {
  const uint32_t used = event.counts[0] + event.counts[1] + event.counts[2];
  const uint32_t count = events.facts().device_slot_count;
  put_counter(kMemory, "device slots", event.begin_ns,
              {{"parameters", event.counts[0]},
               {"gradients", event.counts[1]},
               {"leaving", event.counts[2]},
               {"free", count - std::min(used, count)}});
}

void TraceFile::add_gauge(const TraceEvent& event) {
  switch (event.gauge) {
    case TraceGauge::host_bytes:
      return put_counter(kMemory, "host memory", event.begin_ns, {{"bytes", event.id}});
    case TraceGauge::kept_records:
      return put_counter(kMemory, "chunks of states in host memory", event.begin_ns, {{"chunks", event.id}});
    case TraceGauge::ring_slots:
      return put_counter(kMemory, "slots of the I/O ring", event.begin_ns, {{"in use", event.id}});
  }
}

// --- The format ---

// Process 0 is the idle one of a system.
uint32_t TraceFile::process_of(Track track) const {
  return is_one_of_several() ? rank_.rank + 1 : track.process;
}

uint32_t TraceFile::thread_of(Track track) const {
  return is_one_of_several() ? track.process * kThreadsOfGroup + track.thread : track.thread;
}

void TraceFile::name_processes() {
  const auto name = [this](uint32_t process, std::string_view text) {
    put_name("process_name", {process, 0}, {{"name", text}});
    put_name("process_sort_index", {process, 0}, {{"sort_index", process_of({process, 0})}});
  };
  if (is_one_of_several()) {
    name(kStepThread, rank_.name);
    name_track({kLinkTracks, kGathers}, "parameters of other ranks");
    name_track({kLinkTracks, kExchanges}, "gradients of other ranks");
  } else {
    name(kStepThread, "the step thread");
    name(kLinkTracks, "links");
    name(kUpdate, "the update");
    name(kCommits, "commits");
    name(kMemory, "memory");
    name(kEngines, "engines");
  }
  name_track({kStepThread, kSteps}, "steps");
  name_track({kStepThread, kCompute}, "compute");
  name_track({kStepThread, kStepWaits}, "waits");
  name_track({kStepThread, kEvictions}, "evictions");
  name_track({kLinkTracks, kToDevice}, "host to device");
  name_track({kLinkTracks, kFromDevice}, "device to host");
  name_track({kUpdate, kUpdateWaits}, "waits of an update beside the step");
  name_track({kCommits, 1}, "commits");
}

void TraceFile::name_worker(uint16_t worker) {
  if (worker >= named_workers_.size()) named_workers_.resize(worker + size_t{1}, false);
  if (named_workers_[worker]) return;
  named_workers_[worker] = true;
  const std::string name = worker == kDeviceUpdateLane ? "device" : fmt::format("worker {}", worker);
  name_track({kUpdate, kFirstWorker + worker}, is_one_of_several() ? "the update: " + name : name);
}

void TraceFile::name_track(Track track, std::string_view name) {
  put_name("thread_name", track, {{"name", name}});
  put_name("thread_sort_index", track, {{"sort_index", thread_of(track)}});
}

std::string TraceFile::time(uint64_t ns) const {
  return microseconds(ns - std::min(ns, begun_ns_));
}

void TraceFile::begin_span(Track track, std::string_view name, std::string_view category,
                           const TraceEvent& event) {
  json_.break_line().begin_object().members({{"ph", "X"}, {"name", name}, {"cat", category}});
  json_.members({{"pid", process_of(track)}, {"tid", thread_of(track)}});
  json_.member("ts", json_raw(time(event.begin_ns)));
  json_.member("dur", json_raw(microseconds(event.end_ns - event.begin_ns))).begin_object("args");
}

void TraceFile::put_span(Track track, std::string_view name, std::string_view category,
                         const TraceEvent& event, Arguments arguments) {
  begin_span(track, name, category, event);
  json_.members(arguments);
  end_event();
}

void TraceFile::put_moment(Track track, std::string_view name, uint64_t at_ns, Arguments arguments) {
  json_.break_line().begin_object().members({{"ph", "i"}, {"s", "t"}, {"name", name}, {"cat", "eviction"}});
  json_.members({{"pid", process_of(track)}, {"tid", thread_of(track)}, {"ts", json_raw(time(at_ns))}});
  json_.begin_object("args").members(arguments);
  end_event();
}

void TraceFile::put_counter(uint32_t process, std::string_view name, uint64_t at_ns, Arguments values) {
  json_.break_line().begin_object().members({{"ph", "C"}, {"name", name}});
  json_.member("pid", process_of({process, 0})).member("ts", json_raw(time(at_ns)));
  json_.begin_object("args").members(values);
  end_event();
}

void TraceFile::put_name(std::string_view what, Track track, Arguments arguments) {
  json_.break_line().begin_object().members({{"ph", "M"}, {"name", what}});
  json_.member("pid", process_of(track));
  if (track.thread > 0) json_.member("tid", thread_of(track));
  json_.begin_object("args").members(arguments);
  end_event();
}

// Ends the arguments of an event, and the event.
void TraceFile::end_event() {
  json_.end().end();
  if (json_.text().size() >= kWriteBytes) write_out();
}

void TraceFile::write_out() {
  const std::string& text = json_.text();
  file_->write(written_bytes_, std::as_bytes(std::span(text)));
  written_bytes_ += text.size();
  json_.text().clear();
}

void TraceFile::finish(const StepEvents& events, std::string_view description) {
  const TraceFacts& facts = events.facts();
  json_.break_line().end().begin_object("otherData").member("run", description);
  if (is_one_of_several())
    json_.member("rank", rank_.name).member("clock_error_us", json_raw(microseconds(rank_.clock_error_ns)));
  json_.members({{"first_step", events.first_step()}, {"last_step", events.last_step()}});
  json_.members({{"events", event_count_}, {"events_left_out", events.left_out()}});
  json_.member("operations_without_a_name", events.nameless());
  json_.member("device_budget_bytes", facts.device_budget_bytes);
  json_.member("device_slots", facts.device_slot_count).member("device_slot_bytes", facts.device_slot_bytes);
  json_.member("device_other_bytes", facts.device_other_bytes);
  json_.member("host_budget_bytes", facts.host_budget_bytes);
  json_.member("ring_slots", facts.ring_slot_count).member("ring_slot_bytes", facts.ring_slot_bytes);
  json_.member("chunks", facts.chunk_count).member("chunks_with_states", facts.trainable_chunk_count);
  json_.end().end().text() += '\n';
  write_out();
  file_->publish();
  file_.reset();
}

}  // namespace terrace
