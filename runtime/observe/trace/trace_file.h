// TraceFile: the events of recorded steps as a file that Perfetto and chrome://tracing open (docs/trace.md
// has the tracks and the keys). It must never keep more events in memory than one call gives it, nor leave an
// incomplete file under its name.
//
// The file is written beside its name and takes it in finish(); a file with that name stays until then.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <terrace/aio/aside_file.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/offload/watch/step_events.h>

namespace terrace {

// TraceRank: whose trace it is, where several ranks train together.
struct TraceRank {
  uint32_t rank = 0;
  uint32_t ranks = 1;
  std::string name;             // "rank 1 of 2 (host b, process 4711)"
  uint64_t clock_error_ns = 0;  // by which its times may differ from those of the first rank
};

class TraceFile {
 public:
  // `begun_ns`, on the recorder's clock, is the zero of the trace's time. The trace of one rank of several is
  // one process of the format, so that those of all ranks can lie in one file (merge_traces). Throws
  // Error(config) when no file can be made there.
  TraceFile(std::filesystem::path path, uint64_t begun_ns, TraceRank rank = {});
  // Removes a file that finish() has not completed.
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Adds an event of this recorder. Throws Error(io).
  void add(const StepEvents& events, const TraceEvent& event);
  // Completes the trace. `description` names its run. Throws Error(io).
  void finish(const StepEvents& events, std::string_view description);

  const std::filesystem::path& path() const { return path_; }
  // The number of added events.
  uint64_t event_count() const { return event_count_; }

 private:
  struct Track {
    uint32_t process;
    uint32_t thread;
  };
  // A lane holds transfers of one direction of a path that do not overlap.
  struct Lane {
    TraceLink link;
    uint8_t path;
    uint64_t until_ns;
    Track track;
  };
  using Arguments = std::initializer_list<JsonWriter::Member>;

  bool is_one_of_several() const { return rank_.ranks > 1; }
  uint32_t process_of(Track track) const;
  uint32_t thread_of(Track track) const;

  void add_step(const TraceEvent& event);
  void add_use(const StepEvents& events, const TraceEvent& event);
  void add_wait(const TraceEvent& event);
  void add_transfer(const StepEvents& events, const TraceEvent& event);
  void add_update(const TraceEvent& event);
  void add_fetch(const TraceEvent& event);
  void add_slots(const StepEvents& events, const TraceEvent& event);
  void add_gauge(const TraceEvent& event);
  void add_cache(const TraceEvent& event);

  Track lane_of(const StepEvents& events, const TraceEvent& event);
  void name_processes();
  void name_track(Track track, std::string_view name);
  void name_worker(uint16_t worker);
  void begin_span(Track track, std::string_view name, std::string_view category, const TraceEvent& event);
  void put_chunk(const TraceEvent& event);
  void end_event();
  void put_span(Track track, std::string_view name, std::string_view category, const TraceEvent& event,
                Arguments arguments);
  void put_moment(Track track, std::string_view name, uint64_t at_ns, Arguments arguments);
  void put_counter(uint32_t process, std::string_view name, uint64_t at_ns, Arguments values);
  void put_name(std::string_view what, Track track, Arguments arguments);
  std::string time(uint64_t ns) const;
  void write_out();

  const std::filesystem::path path_;
  const uint64_t begun_ns_;
  const TraceRank rank_;
  std::unique_ptr<io::AsideFile> file_;  // until the trace is complete
  uint64_t written_bytes_ = 0;
  JsonWriter json_;  // text that is not in the file yet
  uint64_t event_count_ = 0;
  std::vector<Lane> lanes_;
  std::vector<bool> named_workers_;
  // By chunk, the copies to the device of fetches whose use has not come.
  struct Copy {
    uint64_t id;
    uint64_t begin_ns;
  };
  std::unordered_map<uint32_t, Copy> copies_;
  uint32_t cache_step_ = 0;
  std::array<uint64_t, 3> cache_counts_{};  // of cache_step_ so far
};

}  // namespace terrace
