#include <terrace/reference/fault_spec.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>

#include <terrace/aio/engines/fault_transport.h>
#include <terrace/base/error.h>
#include <terrace/base/text/digits.h>
#include <terrace/base/units.h>

namespace terrace {
namespace {

constexpr uint64_t kBlockBytes = 4096;  // of direct files
constexpr std::array kWhere = {"read", "write", "path", "file"};
constexpr std::array kWhat = {"error", "short", "delay", "corrupt", "torn", "lost", "full-after", "rate"};
constexpr std::array kWhen = {"at", "from", "every", "after", "probability", "seed"};
constexpr std::array kWithoutValue = {"read", "write", "lost", "corrupt"};

template <size_t kCount>
bool contains(const std::array<const char*, kCount>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

template <size_t kCount>
std::string list_of(const std::array<const char*, kCount>& words) {
  return fmt::format("{}", fmt::join(words, ", "));
}

// The words of one specification, and their values.
class Words {
 public:
  explicit Words(std::string_view spec) : spec_(spec) {
    while (!spec.empty()) {
      const size_t end = std::min(spec.find_first_of(",:"), spec.size());
      take(spec.substr(0, end));
      spec.remove_prefix(std::min(end + 1, spec.size()));
    }
  }

  [[noreturn]] void refuse(std::string reason, std::string advice) const {
    throw Error(ErrorKind::config, {"cannot inject", spec_, std::move(reason), std::move(advice)});
  }
  bool has(const char* word) const { return values_.contains(word); }
  const std::string& text(const char* word) const { return values_.at(word); }
  // The one word of `what`.
  std::string one_of_what() const {
    std::string found;
    for (const char* word : kWhat) {
      if (!has(word)) continue;
      if (!found.empty())
        refuse(fmt::format("it says both {} and {}", found, word), "inject each of them by itself");
      found = word;
    }
    if (found.empty()) refuse("it does not say what goes wrong", "add one of " + list_of(kWhat));
    return found;
  }
  void exclude(const char* one, const char* other, const char* advice) const {
    if (has(one) && has(other)) refuse(fmt::format("{} and {} do not go together", one, other), advice);
  }

  uint64_t bytes(const char* word) const { return parse_bytes(text(word), fmt::format("fault {}", word)); }
  uint64_t whole_number(const char* word, uint64_t least) const {
    const std::optional<uint64_t> value = number_of_digits(text(word));
    if (!value || *value < least)
      refuse(fmt::format("{} is \"{}\"", word, text(word)),
             fmt::format("write a whole number of at least {}", least));
    return *value;
  }
  uint64_t duration_ns(const char* word) const {
    struct Unit {
      std::string_view name;
      double ns;
    };
    constexpr std::array<Unit, 4> kUnits = {{{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}}};
    const std::string& value = text(word);
    for (const Unit& unit : kUnits) {
      if (!value.ends_with(unit.name)) continue;
      const auto number = real(std::string_view(value).substr(0, value.size() - unit.name.size()));
      constexpr double kLongest = 1e18;
      if (number && *number >= 0 && *number * unit.ns < kLongest)
        return static_cast<uint64_t>(*number * unit.ns);
    }
    refuse(fmt::format("{} is \"{}\"", word, value), "write a time such as 20ms or 1.5s");
  }
  double probability() const {
    const auto value = real(text("probability"));
    if (!value || !(*value > 0 && *value <= 1))
      refuse(fmt::format("probability is \"{}\"", text("probability")),
             "write a number above 0 and at most 1");
    return *value;
  }
  uint64_t rate() const {
    std::string_view value = text("rate");
    if (!value.ends_with("/s"))
      refuse(fmt::format("rate is \"{}\"", value), "write bytes per second, such as 200MB/s");
    value.remove_suffix(2);
    const uint64_t bytes = parse_bytes(value, "fault rate");
    if (bytes == 0) refuse("nothing would ever pass", "write a rate above 0");
    return bytes;
  }

 private:
  static std::optional<double> real(std::string_view text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
      return std::nullopt;
    return value;
  }

  void take(std::string_view item) {
    const size_t equals = item.find('=');
    const std::string word(item.substr(0, equals));
    if (!contains(kWhere, word) && !contains(kWhat, word) && !contains(kWhen, word)) {
      refuse(fmt::format("it knows no word \"{}\"", word),
             fmt::format("where: {}; what: {}; when: {}", list_of(kWhere), list_of(kWhat), list_of(kWhen)));
    }
    const bool valued = equals != std::string_view::npos;
    if (!valued && !contains(kWithoutValue, word))
      refuse(fmt::format("{} has no value", word), fmt::format("write {}=VALUE", word));
    if (valued && word != "corrupt" && contains(kWithoutValue, word))
      refuse(fmt::format("{} takes no value", word), fmt::format("write {} alone", word));
    const std::string value(valued ? item.substr(equals + 1) : std::string_view());
    if (valued && value.empty())
      refuse(fmt::format("{} is empty", word), fmt::format("write {}=VALUE", word));
    if (!values_.emplace(word, value).second)
      refuse(fmt::format("it says {} twice", word), "leave out one of them");
  }

  std::string spec_;
  std::map<std::string, std::string, std::less<>> values_;
};

int error_number(const Words& words) {
  constexpr int kLast = 133;
  const std::string& wanted = words.text("error");
  for (int number = 1; number <= kLast; ++number) {
    const char* name = strerrorname_np(number);
    if (name != nullptr && wanted == name) return number;
  }
  words.refuse(fmt::format("no error is called \"{}\"", wanted),
               "write one as errno(3) names them: EIO, ENOSPC, EINTR");
}

void set_where(const Words& words, const std::string& what, io::Fault& fault) {
  words.exclude("read", "write", "leave out both: a fault is for both by default");
  const bool of_writes = what == "torn" || what == "lost" || what == "full-after";
  if (of_writes && words.has("read")) words.refuse(what + " is for writes", "leave out read");
  if (what == "corrupt" && words.has("write")) words.refuse("corrupt is for reads", "leave out write");
  if (words.has("read") || what == "corrupt") fault.operation = io::OpKind::read;
  if (words.has("write") || of_writes) fault.operation = io::OpKind::write;
  if (words.has("path")) fault.path = words.text("path");
  if (words.has("file")) fault.file = words.text("file");
}

void set_what(const Words& words, const std::string& what, io::Fault& fault) {
  if (what == "error") {
    fault.kind = io::FaultKind::fail;
    fault.error = error_number(words);
  } else if (what == "short") {
    fault.kind = io::FaultKind::short_transfer;
    fault.bytes = words.bytes("short");
    if (fault.bytes == 0)
      words.refuse("nothing moved is the end of the file, not a short transfer", "write at least 4KiB");
    if (fault.bytes % kBlockBytes != 0)
      words.refuse("direct files move whole blocks of 4 KiB", "write a multiple of 4KiB");
  } else if (what == "delay") {
    fault.kind = io::FaultKind::delay;
    fault.delay_ns = words.duration_ns("delay");
  } else if (what == "corrupt") {
    fault.kind = io::FaultKind::corrupt_read;
    fault.bytes = words.text("corrupt").empty() ? io::kAnyByte : words.bytes("corrupt");
  } else if (what == "torn") {
    fault.kind = io::FaultKind::torn_write;
    fault.bytes = words.bytes("torn");
  } else if (what == "lost") {
    fault.kind = io::FaultKind::torn_write;
  } else if (what == "full-after") {
    fault.kind = io::FaultKind::full;
    fault.bytes = words.bytes("full-after") / kBlockBytes * kBlockBytes;  // as a disk is full
  } else {
    fault.kind = io::FaultKind::rate_limit;
    fault.bytes_per_second = words.rate();
  }
}

void set_when(const Words& words, const std::string& what, io::Fault& fault) {
  for (const char* word : {"from", "every", "probability"})
    words.exclude("at", word, "`at` names one transfer: leave out the other");
  if (what == "rate" || what == "full-after") {
    for (const char* word : {"at", "every", "probability", "seed"})
      words.exclude(what.c_str(), word, "leave it out, or say `from` or `after`");
  }
  if (words.has("seed") && !words.has("probability") && what != "corrupt")
    words.refuse("seed has no effect without probability", "leave it out, or add probability=P");
  if (words.has("at")) fault.index = words.whole_number("at", 1) - 1;
  if (words.has("from")) fault.from_index = words.whole_number("from", 1) - 1;
  if (words.has("every")) fault.every = words.whole_number("every", 1);
  if (words.has("after")) fault.from_ns = words.duration_ns("after");
  if (words.has("probability")) fault.probability = words.probability();
  if (words.has("seed")) fault.seed = words.whole_number("seed", 0);
}

}  // namespace

io::Fault parse_fault_spec(std::string_view spec) {
  const Words words(spec);
  const std::string what = words.one_of_what();
  io::Fault fault;
  set_where(words, what, fault);
  set_what(words, what, fault);
  set_when(words, what, fault);
  return fault;
}

std::function<std::unique_ptr<io::Engine>(std::unique_ptr<io::Engine>)> engines_with_faults(
    io::FaultPlan& plan) {
  return [&plan](std::unique_ptr<io::Engine> engine) {
    const io::EngineOptions options = engine->options();
    engine.reset();
    return io::make_engine_over(std::make_unique<io::FaultTransport>(io::make_transport(options), plan),
                                options);
  };
}

}  // namespace terrace
