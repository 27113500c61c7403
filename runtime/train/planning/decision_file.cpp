#include <terrace/runtime/train/planning/decision_file.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/base/units.h>
#include <terrace/runtime/config/json/json_document.h>

namespace terrace {
namespace {

constexpr uint64_t kFormat = 1;
constexpr size_t kBufferBytes = 64 * kKiB;
constexpr size_t kLongestLine = 64 * kKiB;
constexpr std::string_view kCutLine = "{\"cut\": true}\n";
constexpr std::array kKinds = {DecisionKind::step,     DecisionKind::evaluation, DecisionKind::update,
                               DecisionKind::use,      DecisionKind::fetch,      DecisionKind::ahead,
                               DecisionKind::evict,    DecisionKind::bypass,     DecisionKind::stale,
                               DecisionKind::gradient, DecisionKind::landed};

[[noreturn]] void refuse(const std::string& origin, const Reason& reason) {
  throw Error(ErrorKind::config, {"cannot read the decisions", origin, reason,
                                  "give a file of decisions that a training run wrote"});
}

uint64_t whole(const JsonNode& node, uint64_t most = UINT64_MAX) {
  const std::optional<uint64_t> value = node.whole_number();
  if (!value || *value > most) refuse(node.origin, fmt::format("it is not a whole number up to {}", most));
  return *value;
}

std::optional<DecisionKind> kind_from_name(std::string_view name) {
  for (const DecisionKind kind : kKinds) {
    if (name_of(kind) == name) return kind;
  }
  return std::nullopt;
}

JsonNode parse_object(const std::string& line, const std::string& name, uint64_t number) {
  JsonNode object = parse_json(line, name, number);
  if (!object.is(JsonNode::Kind::object) || object.members.empty())
    refuse(object.origin, "the line is not a JSON object");
  return object;
}

double share(const JsonNode& node) {
  if (!node.is(JsonNode::Kind::number) || !(node.number >= 0 && node.number <= 1))
    refuse(node.origin, "it is not a number from 0 to 1");
  return node.number;
}

UpdateRates rates(const JsonNode& node) {
  const auto is_rate = [](const JsonNode& item) {
    return item.is(JsonNode::Kind::number) && std::isfinite(item.number) && item.number >= 0;
  };
  const std::vector<JsonNode>& items = node.items;
  if (!node.is(JsonNode::Kind::list) || items.size() != 3 || !std::ranges::all_of(items, is_rate) ||
      items[0].number == 0 || items[1].number == 0)
    refuse(node.origin, "it is not a list of three rates, the first two of them above 0");
  return {items[0].number, items[1].number, items[2].number};
}

std::string head_line(const DecisionSubject& subject) {
  JsonWriter json;
  json.begin_object().members({{"terrace_decisions", kFormat}, {"chunks", subject.chunks}});
  json.member("slots", subject.slots);
  if (subject.update_rates) {
    const UpdateRates& known = *subject.update_rates;
    json.list("update_rates", {known.processor_elements, known.link_bytes, known.nvme_bytes});
  } else if (subject.processor_share < 1) {
    json.member("processor_share", subject.processor_share);
  }
  return json.end().take() + "\n";
}

std::string told_sides(const DecisionSubject& subject) {
  if (subject.update_rates) return "rates decide";
  return fmt::format("the processor has {:g} of them", subject.processor_share);
}

DecisionSubject read_head(const JsonNode& head) {
  DecisionSubject subject;
  bool has_format = false;
  for (const JsonMember& member : head.members) {
    if (member.key == "processor_share") {
      subject.processor_share = share(member.value);
      continue;
    }
    if (member.key == "update_rates") {
      subject.update_rates = rates(member.value);
      continue;
    }
    const uint64_t value = whole(member.value, UINT32_MAX);
    if (member.key == "terrace_decisions") {
      if (value != kFormat)
        refuse(member.value.origin,
               fmt::format("its format is {}, and this program reads {}", value, kFormat));
      has_format = true;
    } else if (member.key == "chunks") {
      subject.chunks = static_cast<uint32_t>(value);
    } else if (member.key == "slots") {
      subject.slots = static_cast<uint32_t>(value);
    } else {
      refuse(member.origin, "unknown key " + json_quoted(member.key));
    }
  }
  if (!has_format) refuse(head.origin, "the file does not begin with \"terrace_decisions\"");
  return subject;
}

std::unique_ptr<std::istream> open_decisions(const std::filesystem::path& path) {
  std::error_code unknown;
  const std::filesystem::file_status status = std::filesystem::status(path, unknown);
  if (std::filesystem::is_directory(status)) refuse(path.string(), system_reason(EISDIR));
  if (std::filesystem::is_fifo(status)) refuse(path.string(), "it is a pipe, and decisions are read twice");
  auto file = std::make_unique<std::ifstream>(path, std::ios::binary);
  if (!file->is_open()) refuse(path.string(), system_reason(errno));
  return file;
}

// False at the end of the text. What goes on without a line end, as a device does, is refused before it fills
// the memory.
bool get_line(std::istream& text, std::string& line, const std::string& name, uint64_t number) {
  line.clear();
  for (char c = 0; text.get(c);) {
    if (c == '\n') return true;
    line += c;
    if (line.size() > kLongestLine)
      refuse(fmt::format("{}:{}", name, number), "the line is longer than any decision");
  }
  return !line.empty();
}

}  // namespace

DecisionSubject decision_subject(const MemoryPlan& plan, const OffloadOptions& options) {
  DecisionSubject subject{plan.parameter_chunks, plan.device_slots};
  if (options.states == Placement::none) return subject;
  subject.update_rates = options.update_rates;
  if (!subject.update_rates) subject.processor_share = options.processor_share;
  return subject;
}

DecisionSubject recorded_subject(const std::filesystem::path& path) {
  const std::unique_ptr<std::istream> text = open_decisions(path);
  const std::string name = path.string();
  std::string line;
  if (!get_line(*text, line, name, 1)) refuse(name, "the file is empty");
  return read_head(parse_object(line, name, 1));
}

std::string decision_line(const Decision& decision) {
  if (decision.kind == DecisionKind::use) return json_object({{"use", decision.operation}}) + "\n";
  return json_object({{name_of(decision.kind), decision.number}}) + "\n";
}

DecisionFile::DecisionFile(std::filesystem::path path, const DecisionSubject& subject, uint64_t limit_bytes,
                           Log& log)
    : path_(std::move(path)), left_bytes_(limit_bytes), log_(log) {
  file_.open(path_, std::ios::binary | std::ios::trunc);
  if (!file_.is_open()) {
    throw Error(ErrorKind::io, {"cannot write the decisions", path_.string(), system_reason(errno),
                                "name a file in a folder that can be written"});
  }
  lines_.reserve(kBufferBytes);
  lines_ += head_line(subject);
}

DecisionFile::~DecisionFile() {
  flush();
}

void DecisionFile::add(const Decision& decision) {
  if (is_over_) return;
  const std::string line = decision_line(decision);
  if (line.size() > left_bytes_) {
    lines_ += kCutLine;
    flush();
    is_over_ = true;
    log_.info(fmt::format("{}: the decisions end here, at their limit", path_.string()));
    return;
  }
  left_bytes_ -= line.size();
  lines_ += line;
  // A step at a time, so that what a run leaves behind ends with one.
  if (decision.kind == DecisionKind::step || lines_.size() + kLongestLine / 64 > kBufferBytes) flush();
}

void DecisionFile::flush() {
  if (is_over_) return;
  file_ << lines_;
  file_.flush();
  lines_.clear();
  if (!file_.fail()) return;
  is_over_ = true;
  log_.warning(fmt::format("cannot write the decisions to {}: {}; the run goes on without", path_.string(),
                           system_reason(errno).text));
}

DecisionReplay::DecisionReplay(const std::filesystem::path& path, const DecisionSubject& subject)
    : DecisionReplay(open_decisions(path), path.string(), subject) {}

DecisionReplay::DecisionReplay(std::unique_ptr<std::istream> text, std::string name,
                               const DecisionSubject& subject)
    : name_(std::move(name)), text_(std::move(text)) {
  if (!read_line()) refuse(name_, "the file is empty");
  const DecisionSubject theirs = read_head(parse_object(line_, name_, line_number_));
  if (theirs == subject) return;
  if (theirs.chunks == subject.chunks && theirs.slots == subject.slots) {
    throw Error(ErrorKind::config,
                {"cannot replay the decisions", name_,
                 fmt::format("chunks are updated on other sides there: {}, and {} here", told_sides(theirs),
                             told_sides(subject)),
                 "set zero_optimization.offload_optimizer.ratio to auto, which takes the sides of the file"});
  }
  throw Error(ErrorKind::config,
              {"cannot replay the decisions", name_,
               fmt::format("they are about {} chunks in {} device slots, and this run has {} in {}",
                           theirs.chunks, theirs.slots, subject.chunks, subject.slots),
               "give the model, the chunk size and the device budget of the run that wrote them"});
}

std::string DecisionReplay::place() const {
  return fmt::format("{}:{}", name_, line_number_);
}

bool DecisionReplay::read_line() {
  if (!get_line(*text_, line_, name_, line_number_ + 1)) return false;
  ++line_number_;
  return true;
}

const Decision* DecisionReplay::next() {
  if (!is_read_ && !is_over_) read_next();
  return is_over_ ? nullptr : &decision_;
}

void DecisionReplay::read_next() {
  is_over_ = !read_line();
  if (is_over_) return;
  if (line_ + "\n" == kCutLine) {
    if (read_line()) refuse(place(), "a line before it says that the decisions end there");
    is_over_ = true;
    return;
  }
  const JsonNode object = parse_object(line_, name_, line_number_);
  const JsonMember& member = object.members.front();
  const std::optional<DecisionKind> kind = kind_from_name(member.key);
  if (!kind || object.members.size() > 1) refuse(member.origin, "the line is no decision");
  decision_ = {*kind, 0, {}};
  if (*kind == DecisionKind::use) {
    if (!member.value.is(JsonNode::Kind::text))
      refuse(member.value.origin, "it is not the name of an operation");
    operation_ = member.value.text;
    decision_.operation = operation_;
  } else {
    decision_.number = whole(member.value);
  }
  is_read_ = true;
}

}  // namespace terrace
