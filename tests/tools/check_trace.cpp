// check_trace TRACE STEPS_JSONL [LEFT_OUT]: whether a trace is what docs/trace.md says, and whether its
// transfers, fetches and evictions are those that the log of steps counts. LEFT_OUT: events may be missing,
// so nothing is compared with the log. Prints what it saw, for the tests of the program, which are shell
// scripts.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <terrace/runtime/config/json/json_document.h>

namespace {

using terrace::JsonNode;

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

const JsonNode* find(const JsonNode& object, const std::string& key) {
  for (const terrace::JsonMember& member : object.members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}
const JsonNode& at(const JsonNode& object, const std::string& key) {
  const JsonNode* const found = find(object, key);
  if (found == nullptr) throw std::runtime_error("no \"" + key + "\" in " + json_text(object));
  return *found;
}
uint64_t number(const JsonNode& object, const std::string& key) {
  const JsonNode& value = at(object, key);
  require(value.is(JsonNode::Kind::number) && value.number >= 0, key + " is no count: " + json_text(object));
  return std::stoull(value.text);
}
// "12.345" microseconds, exactly.
uint64_t nanoseconds(const JsonNode& object, const std::string& key) {
  const std::string& text = at(object, key).text;
  const size_t dot = text.find('.');
  require(dot != std::string::npos && text.size() == dot + 4, key + " has no three decimals: " + text);
  return std::stoull(text.substr(0, dot)) * 1000 + std::stoull(text.substr(dot + 1));
}

JsonNode read(const std::string& path) {
  std::ifstream file(path);
  require(file.good(), "cannot read " + path);
  return terrace::parse_json(std::string{std::istreambuf_iterator<char>(file), {}}, path);
}

struct Span {
  uint64_t begin_ns, end_ns;
  const JsonNode* event;
};
using Track = std::pair<uint64_t, uint64_t>;

struct Trace {
  const JsonNode document;
  std::map<Track, std::vector<Span>> spans;
  std::map<Track, std::string> names;
  std::map<uint64_t, std::string> processes;
  std::vector<const JsonNode*> counters, flow_begins, flow_ends, moments;

  explicit Trace(const std::string& path) : document(read(path)) {
    for (const JsonNode& event : at(document, "traceEvents").items) sort_in(event);
    for (auto& [track, list] : spans) {
      require(names.contains(track), "a track has no name");
      std::ranges::sort(list, {}, &Span::begin_ns);
    }
  }
  void sort_in(const JsonNode& event) {
    const std::string& phase = at(event, "ph").text;
    const uint64_t process = number(event, "pid");
    if (phase == "M") {
      const std::string& what = at(event, "name").text;
      const std::string& name = at(event, "args").members.front().value.text;
      if (what == "thread_name") names[{process, number(event, "tid")}] = name;
      if (what == "process_name") processes[process] = name;
      return;
    }
    require(processes.contains(process), "a process has no name");
    const uint64_t begin_ns = nanoseconds(event, "ts");
    if (phase == "C") return counters.push_back(&event);
    if (phase == "X") {
      const Track track{process, number(event, "tid")};
      return spans[track].push_back({begin_ns, begin_ns + nanoseconds(event, "dur"), &event});
    }
    require(phase == "s" || phase == "f" || phase == "i", "an event of phase " + phase);
    (phase == "s" ? flow_begins : phase == "f" ? flow_ends : moments).push_back(&event);
  }
  const std::vector<Span>& track(const std::string& name) const {
    for (const auto& [track, its_name] : names) {
      if (its_name != name) continue;
      const auto found = spans.find(track);
      static const std::vector<Span> kNone;
      return found == spans.end() ? kNone : found->second;
    }
    throw std::runtime_error("no track " + name);
  }
};

void check_that_nothing_overlaps(const Trace& trace) {
  for (const auto& [track, list] : trace.spans) {
    for (size_t i = 1; i < list.size(); ++i) {
      require(list[i].begin_ns >= list[i - 1].end_ns, "two spans overlap on " + trace.names.at(track) + ": " +
                                                          json_text(*list[i - 1].event) + " and " +
                                                          json_text(*list[i].event));
    }
  }
}

void check_that_uses_lie_in_steps(const Trace& trace) {
  const std::vector<Span>& steps = trace.track("steps");
  require(!trace.track("compute").empty(), "no operation was recorded");
  for (const Span& use : trace.track("compute")) {
    const auto holds = [&](const Span& step) {
      return step.begin_ns <= use.begin_ns && use.end_ns <= step.end_ns &&
             number(at(*step.event, "args"), "step") == number(at(*use.event, "args"), "step");
    };
    const bool found = std::ranges::any_of(steps, holds);
    require(found || number(at(*use.event, "args"), "step") == 0,
            "a use lies in no step: " + json_text(*use.event));
  }
}

const Span* span_at(const std::vector<Span>& spans, uint64_t at_ns) {
  const auto after = std::ranges::upper_bound(spans, at_ns, {}, &Span::begin_ns);
  if (after == spans.begin() || std::prev(after)->end_ns < at_ns) return nullptr;
  return &*std::prev(after);
}

// Each begins at a copy of the chunk to the device and ends where an operation begins that needs it.
size_t check_flows(const Trace& trace) {
  require(trace.flow_begins.size() == trace.flow_ends.size(), "flows without an end");
  std::map<uint64_t, const JsonNode*> ends;
  for (const JsonNode* end : trace.flow_ends) {
    require(ends.emplace(number(*end, "id"), end).second, "a flow ends twice");
    const Span* const use = span_at(trace.track("compute"), nanoseconds(*end, "ts"));
    require(use != nullptr && use->begin_ns == nanoseconds(*end, "ts"), "a flow ends at no use");
    require(at(*end, "bp").text == "e", "a flow is not bound to the use that it ends at");
  }
  for (const JsonNode* begin : trace.flow_begins) {
    const auto end = ends.find(number(*begin, "id"));
    require(end != ends.end(), "a flow has no end");
    const Span* const copy = span_at(trace.track("host to device"), nanoseconds(*begin, "ts"));
    require(copy != nullptr && copy->begin_ns == nanoseconds(*begin, "ts"), "a flow begins at no copy");
    require(number(at(*copy->event, "args"), "chunk") == number(at(*begin, "args"), "chunk"),
            "a flow begins at the copy of another chunk");
    require(copy->end_ns <= nanoseconds(*end->second, "ts"), "a chunk is used before it has arrived");
    require(nanoseconds(at(*begin, "args"), "asked_at_us") <= copy->begin_ns,
            "a copy before it was asked for");
  }
  return ends.size();
}

uint64_t sum_of(const JsonNode& object) {
  uint64_t sum = 0;
  for (const terrace::JsonMember& member : object.members) sum += std::stoull(member.value.text);
  return sum;
}

void check_counters(const Trace& trace) {
  const JsonNode& facts = at(trace.document, "otherData");
  const uint64_t slots = number(facts, "device_slots");
  require(slots * number(facts, "device_slot_bytes") + number(facts, "device_other_bytes") <=
              number(facts, "device_budget_bytes"),
          "the device is larger than its budget");
  const std::map<std::string, uint64_t> most = {
      {"host memory", number(facts, "host_budget_bytes")},
      {"slots of the I/O ring", number(facts, "ring_slots")},
      {"chunks of states in host memory", number(facts, "chunks_with_states")}};
  std::set<std::string> seen;
  for (const JsonNode* counter : trace.counters) {
    const std::string& name = at(*counter, "name").text;
    const uint64_t sum = sum_of(at(*counter, "args"));
    seen.insert(name);
    if (name == "device slots") require(sum == slots, "device slots that are lost: " + json_text(*counter));
    const auto limit = most.find(name);
    if (limit != most.end()) require(sum <= limit->second, "above its budget: " + json_text(*counter));
  }
  for (const auto& [name, limit] : most) require(seen.contains(name), "no counter " + name);
  require(seen.contains("device slots") && seen.contains("cache of the device, chunks this step"),
          "no counters of the device");
}

using Sums = std::map<std::string, uint64_t>;  // by key of the log

// The key under which the log counts a transfer.
std::string key_of(const JsonNode& arguments) {
  const std::string& link = at(arguments, "link").text;
  const std::string& role = at(arguments, "role").text;
  if (link == "h2d" || link == "d2h") return (role == "activation" ? "activation_" : "") + link + "_bytes";
  if (at(arguments, "reason").text == "commit") return "commit_write_bytes";
  const std::string name = role == "grad" ? "gradient" : role == "state" ? "record" : role;
  return name + (link == "nvme_read" ? "_read_bytes" : "_write_bytes");
}

std::map<uint64_t, Sums> sums_by_step(const Trace& trace) {
  std::map<uint64_t, Sums> sums;
  for (const auto& [track, list] : trace.spans) {
    for (const Span& span : list) {
      const JsonNode& arguments = at(*span.event, "args");
      const std::string& category = at(*span.event, "cat").text;
      if (category == "use") {
        Sums& step = sums[number(arguments, "step")];
        step["demand_fetches"] += number(arguments, "chunks_fetched_on_demand");
      }
      if (category != "transfer" || at(arguments, "reason").text == "other") continue;
      require(!at(arguments, "failed").boolean, "a transfer failed");
      Sums& step = sums[number(arguments, "step")];
      step[key_of(arguments)] += number(arguments, "bytes");
      if (key_of(arguments) == "h2d_bytes" && at(arguments, "reason").text == "step") ++step["fetches"];
    }
  }
  for (const JsonNode* eviction : trace.moments) ++sums[number(at(*eviction, "args"), "step")]["evictions"];
  return sums;
}

// Commits are counted when they are written, which no step is bound to: what each wrote is compared with what
// its span says. One that was under way when the recording began has written before it, and one that began
// after the last recorded step writes when nothing is recorded any more.
size_t check_commits(const Trace& trace) {
  size_t checked = 0;
  const uint64_t begun_ns = trace.track("steps").front().begin_ns;
  const uint64_t ended_ns = trace.track("steps").back().end_ns;
  for (const Span& commit : trace.track("commits")) {
    if (commit.begin_ns < begun_ns || commit.begin_ns > ended_ns) continue;
    uint64_t written = 0;
    for (const auto& [track, list] : trace.spans) {
      for (const Span& span : list) {
        if (span.begin_ns < commit.begin_ns || span.end_ns > commit.end_ns) continue;
        if (at(*span.event, "cat").text != "transfer") continue;
        if (key_of(at(*span.event, "args")) == "commit_write_bytes")
          written += number(at(*span.event, "args"), "bytes");
      }
    }
    require(written == number(at(*commit.event, "args"), "bytes"),
            "a commit wrote other bytes than its transfers");
    ++checked;
  }
  return checked;
}

size_t compare_with_log(const Trace& trace, const std::string& log) {
  std::map<uint64_t, Sums> sums = sums_by_step(trace);
  const JsonNode& facts = at(trace.document, "otherData");
  size_t compared = 0;
  std::ifstream file(log);
  for (std::string line; std::getline(file, line);) {
    const JsonNode entry = terrace::parse_json(line, log);
    if (at(entry, "event").text != "step") continue;
    const uint64_t step = number(entry, "step");
    if (step < number(facts, "first_step") || step > number(facts, "last_step")) continue;
    ++compared;
    for (const char* key :
         {"h2d_bytes", "d2h_bytes", "param_read_bytes", "param_write_bytes", "record_read_bytes",
          "record_write_bytes", "gradient_read_bytes", "gradient_write_bytes", "activation_h2d_bytes",
          "activation_d2h_bytes", "activation_read_bytes", "activation_write_bytes", "fetches",
          "demand_fetches", "evictions"}) {
      require(sums[step][key] == number(entry, key),
              "step " + std::to_string(step) + ": " + key + " is " + std::to_string(sums[step][key]) +
                  " in the trace and " + std::to_string(number(entry, key)) + " in the log");
    }
  }
  require(compared > 0 && compared == trace.track("steps").size(), "other steps were traced than logged");
  return compared;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    require(argc == 3 || argc == 4, "usage: check_trace TRACE STEPS_JSONL [LEFT_OUT]");
    const Trace trace(argv[1]);
    const bool may_lack = argc == 4;
    const uint64_t left_out = number(at(trace.document, "otherData"), "events_left_out");
    require(may_lack == (left_out > 0), std::to_string(left_out) + " events were left out");
    check_that_nothing_overlaps(trace);
    size_t flows = 0, steps = 0, commits = 0;
    if (!may_lack) {
      check_that_uses_lie_in_steps(trace);
      check_counters(trace);
      commits = check_commits(trace);
      flows = check_flows(trace);
      steps = compare_with_log(trace, argv[2]);
    }
    size_t spans = 0;
    for (const auto& [track, list] : trace.spans) spans += list.size();
    std::cout << "steps " << steps << "\nflows " << flows << "\ncommits " << commits << "\nspans " << spans
              << "\n";
    for (const auto& [track, name] : trace.names)
      std::cout << "track " << trace.processes.at(track.first) << ": " << name << "\n";
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
  return 0;
}
