#include <terrace/runtime/config/schema/config_entries.h>

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/base/text/digits.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/base/units.h>
#include <terrace/runtime/config/schema/section_switch.h>
#include <terrace/runtime/config/schema/suggestions.h>

namespace terrace {
namespace {

using Kind = JsonNode::Kind;

constexpr size_t kLongestQuote = 60;

std::string lower(std::string_view text) {
  std::string result;
  for (char c : text) result += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

JsonNode text_node(const std::string& text, const std::string& origin) {
  JsonNode node;
  node.kind = Kind::text;
  node.text = text;
  node.origin = origin;
  return node;
}

JsonNode number_node(uint64_t number, const std::string& origin) {
  JsonNode node = text_node(std::to_string(number), origin);
  node.kind = Kind::number;
  node.number = static_cast<double>(number);
  return node;
}

bool is_auto(const JsonNode& node) {
  return node.is(Kind::text) && lower(node.text) == "auto";
}

// A value in messages.
std::string shown(const JsonNode& node) {
  if (node.is(Kind::object)) return "an object";
  if (node.is(Kind::text)) return json_quoted(node.text, kLongestQuote);
  const std::string text = json_text(node);
  return text.size() <= kLongestQuote ? text : text.substr(0, kLongestQuote) + "...";
}

// The member of "a|b|c" that equals `text` in any case.
std::optional<std::string> among(std::string_view allowed, std::string_view text) {
  while (true) {
    const size_t bar = allowed.find('|');
    const std::string_view choice = allowed.substr(0, bar);
    if (lower(choice) == lower(text)) return std::string(choice);
    if (bar == std::string_view::npos) return std::nullopt;
    allowed.remove_prefix(bar + 1);
  }
}

// A text as a list of one.
bool conform_texts(JsonNode& node) {
  if (node.is(Kind::text)) {
    JsonNode list;
    list.kind = Kind::list;
    list.origin = node.origin;
    list.items.push_back(std::move(node));
    node = std::move(list);
  }
  return node.is(Kind::list) && !node.items.empty() &&
         std::all_of(node.items.begin(), node.items.end(),
                     [](const JsonNode& item) { return item.is(Kind::text) && !item.text.empty(); });
}

bool in_range(const JsonNode& node, const KeyLimits& limits) {
  return node.is(Kind::number) && node.number >= limits.minimum && node.number <= limits.maximum;
}

bool all_in_range(const JsonNode& list, const KeyLimits& limits) {
  return list.is(Kind::list) && !list.items.empty() &&
         std::all_of(list.items.begin(), list.items.end(),
                     [&](const JsonNode& item) { return in_range(item, limits); });
}

// Brings the value into the form of its type ("TRUE" -> true, "256MiB" -> a number); false when it is not of
// the type.
bool conform(const SchemaKey& row, JsonNode& node) {
  switch (row.type) {
    case ValueType::boolean:
      if (row.limits.boolean_texts && node.is(Kind::text) &&
          (lower(node.text) == "true" || lower(node.text) == "false")) {
        node.kind = Kind::boolean;
        node.boolean = lower(node.text) == "true";
      }
      return node.is(Kind::boolean);
    case ValueType::integer:
      return in_range(node, row.limits) && node.number == std::floor(node.number);
    case ValueType::number:
      return in_range(node, row.limits);
    case ValueType::number_list:
      return all_in_range(node, row.limits);
    case ValueType::rates:
      return in_range(node, row.limits) || all_in_range(node, row.limits);
    case ValueType::text:
      return node.is(Kind::text);
    case ValueType::text_list:
      return conform_texts(node);
    case ValueType::path_list:
      if (!node.is(Kind::text) || !node.text.empty()) return conform_texts(node);
      node.kind = Kind::list;
      return true;
    case ValueType::choice: {
      if (!node.is(Kind::text)) return false;
      const std::optional<std::string> choice = among(row.limits.allowed, node.text);
      if (choice) node.text = *choice;
      return choice.has_value();
    }
    case ValueType::size:
      if (node.is(Kind::text)) {
        try {
          const uint64_t bytes = parse_bytes(node.text, row.key);
          node = number_node(bytes, node.origin);
        } catch (const Error&) {
          return false;
        }
      }
      return in_range(node, row.limits) && node.number == std::floor(node.number);
    case ValueType::any:
      return true;
    case ValueType::section:
    case ValueType::open_section:
      return node.is(Kind::object);
    case ValueType::section_list:
      return node.is(Kind::list);
  }
  return false;
}

// Whether a refused key has one of the values that change nothing.
bool is_harmless(const SchemaKey& row, const JsonNode& node) {
  if (row.limits.allowed.empty()) return false;
  if (!node.is(Kind::number))
    return among(row.limits.allowed, node.is(Kind::text) ? node.text : json_text(node)).has_value();
  double allowed = 0;
  const char* end = row.limits.allowed.data() + row.limits.allowed.size();
  return std::from_chars(row.limits.allowed.data(), end, allowed).ec == std::errc() && allowed == node.number;
}

bool holds_auto(const JsonNode& node) {
  if (is_auto(node)) return true;
  return std::any_of(node.items.begin(), node.items.end(), holds_auto) ||
         std::any_of(node.members.begin(), node.members.end(),
                     [](const JsonMember& member) { return holds_auto(member.value); });
}

// Of what parse_bytes() refuses: whether it is a size.
bool is_too_many_bytes(const Error& refused) {
  return refused.parts().reason.find("EiB") != std::string::npos;
}

// What a value is too large for, where what is expected does not say it.
std::string missed_limit(const SchemaKey& row, const JsonNode& node) {
  if (node.is(Kind::list) && node.items.empty()) return ", at least one";
  if (row.type == ValueType::size && node.is(Kind::text)) {
    try {
      parse_bytes(node.text, row.key);
    } catch (const Error& refused) {
      return is_too_many_bytes(refused) ? " and less than 8 EiB" : "";
    }
  }
  const bool too_large = node.is(Kind::number) && node.number > row.limits.maximum;
  return too_large && row.limits.maximum == std::numeric_limits<uint32_t>::max()
             ? fmt::format(" and at most {:.17g}", row.limits.maximum)
             : "";
}

std::string refusal(const std::string& key, const JsonNode& value, std::string_view why) {
  return fmt::format("{} cannot be {}: {}", key, shown(value), why);
}

// The value to set in the place of one that other programs have: "OneBitAdam=Adam|..." names both.
std::string_view value_instead(const SchemaKey& row, std::string_view written) {
  std::string_view pairs = row.limits.instead;
  while (!pairs.empty()) {
    const std::string_view pair = pairs.substr(0, pairs.find('|'));
    const size_t sign = pair.find('=');
    if (lower(pair.substr(0, sign)) == lower(written)) return pair.substr(sign + 1);
    pairs.remove_prefix(std::min(pairs.size(), pair.size() + 1));
  }
  return "";
}

// "did you mean ...?", of a choice.
std::string choice_suggestion(const SchemaKey& row, const JsonNode& value) {
  if (row.type != ValueType::choice || !value.is(Kind::text)) return "";
  const std::string_view instead = value_instead(row, value.text);
  if (!instead.empty()) return fmt::format("set \"{}\" instead", instead);
  return suggestion_among(row.limits.allowed, value.text);
}

// "write {"enabled": true}", of a section that has a switch and is given as one.
std::string object_instead(const SchemaKey& row, const JsonNode& value) {
  if (!value.is(Kind::boolean) || find_key(row.path(), "enabled") == nullptr) return "";
  return fmt::format("write \"{}\": {{\"enabled\": {}}}", row.key, value.boolean);
}

}  // namespace

std::string named(const ConfigEntry& entry) {
  return entry.written_at.empty() ? entry.written_key
                                  : fmt::format("{} ({})", entry.written_key, entry.written_at);
}

// A value on its way into the entries.
struct ConfigEntries::Given {
  std::string key;  // as written, with its section
  std::string origin;
  JsonNode value;
  bool from_override = false;
};

std::string ConfigEntry::origin() const {
  const std::string at = written_at.empty() ? "" : fmt::format(" ({})", written_at);
  if (is_auto) return "auto" + at;
  if (written_key != row->path()) return fmt::format("mapped from {}{}", written_key, at);
  return written_at;
}

uint64_t whole_number(const JsonNode& node) {
  return number_of_digits(node.text).value_or(static_cast<uint64_t>(node.number));
}

ConfigEntries::ConfigEntries(const JsonNode& document, std::span<const ConfigOverride> overrides,
                             ConfigUser user, ConfigProblems& problems)
    : user_(user), problems_(problems) {
  if (!document.is(Kind::object)) {
    problems_.add({.origin = document.origin,
                   .key = "",
                   .text = "a configuration is an object: { \"key\": value, ... }"});
    return;
  }
  has_auto_ = holds_auto(document);
  read_section("", document, "");
  for (const ConfigOverride& setting : overrides) apply(setting);
}

const SchemaKey* ConfigEntries::row_of(std::string_view section, std::string_view key) const {
  const SchemaKey* const row = find_key(section, key);
  return row == nullptr ? nullptr : &row_for(user_, *row);
}

const SchemaKey& ConfigEntries::target_of(const SchemaKey& row) const {
  return row.limits.stands_for.empty() ? row : row_for(user_, *find_path(row.limits.stands_for));
}

const ConfigEntry* ConfigEntries::find(std::string_view path) const {
  const auto found = by_path_.find(path);
  return found == by_path_.end() ? nullptr : &found->second;
}

std::span<const ConfigEntries::EntryMap> ConfigEntries::items(std::string_view path) const {
  const auto found = items_.find(path);
  if (found == items_.end()) return {};
  return found->second;
}

// Of an optimizer or scheduler that is not supported, the parameters would only add noise.
bool ConfigEntries::refuse_type(std::string_view section, const JsonNode& object,
                                const std::string& written_section) {
  const auto type = std::find_if(object.members.begin(), object.members.end(),
                                 [](const JsonMember& member) { return member.key == "type"; });
  const SchemaKey* row = row_of(section, "type");
  if (row == nullptr || row->type != ValueType::choice || type == object.members.end() ||
      !type->value.is(Kind::text))
    return false;
  if (is_auto(type->value) || among(row->limits.allowed, type->value.text)) return false;
  problems_.add({.origin = type->origin,
                 .key = written_section + ".type",
                 .text = fmt::format("{}.type must be {}, not {}", written_section, expected_values(*row),
                                     shown(type->value)),
                 .advice = choice_suggestion(*row, type->value)});
  return true;
}

void ConfigEntries::read_section(std::string_view section, const JsonNode& object,
                                 const std::string& written_section) {
  if (refuse_type(section, object, written_section)) return;
  for (const JsonMember& member : object.members) read_member(section, member, written_section);
}

void ConfigEntries::read_member(std::string_view section, const JsonMember& member,
                                const std::string& written_section) {
  if (member.key.starts_with('_')) return;  // a comment by convention
  const SchemaKey* row = row_of(section, member.key);
  const std::string written = written_section.empty() ? member.key : written_section + "." + member.key;
  if (row == nullptr) {
    problems_.add({.origin = member.origin,
                   .key = written,
                   .text = fmt::format("unknown key {} in {}", json_quoted(member.key, kLongestQuote),
                                       written_section.empty() ? section_name("") : written_section),
                   .advice = problems_.says_next() ? suggestion_for(section, member.key) : ""});
    return;
  }
  if (member.value.is(Kind::null)) return;  // as if it were not there
  Given given{written, member.origin, member.value};
  if (row->path() == "zero_optimization" && member.value.is(Kind::boolean)) {
    given.value = number_node(member.value.boolean ? 1 : 0, member.value.origin);
    read_value(*find_path("zero_optimization.stage"), given);
  } else if (row->type == ValueType::open_section) {
    read_open_section(*row, given);
  } else if (row->type == ValueType::section_list && member.value.is(Kind::list)) {
    read_section_list(*row, given);
  } else if (row->type == ValueType::section && member.value.is(Kind::object)) {
    const size_t known_before = without_effect_.size();
    const SchemaKey& target = target_of(*row);
    sections_.emplace(target.path(), given.origin);
    read_section(target.path(), member.value, given.key);
    if (target.effect == KeyEffect::without_effect && user_ == ConfigUser::program) {
      const bool is_missed = target.limits.warns_if_enabled && switch_of(given.value) == SectionSwitch::on;
      without_effect_.resize(known_before);
      without_effect_.push_back(
          {given.key, "",
           is_missed ? fmt::format("{}: {} works in Python only: {}", given.origin, given.key, target.note)
                     : "",
           &target});
    }
  } else {
    read_value(*row, given);
  }
}

void ConfigEntries::read_open_section(const SchemaKey& row, const Given& given) {
  const auto refuse = [&](const std::string& text, const SchemaKey* about = nullptr) {
    problems_.add({.origin = given.origin, .key = given.key, .text = text, .about = about});
  };
  if (const JsonMember* degree = row.limits.divides_model ? degree_above_one(given.value) : nullptr) {
    problems_.add({.origin = degree->origin,
                   .key = given.key,
                   .text = refusal(given.key + "." + degree->key, degree->value, row.note),
                   .about = &row});
    return;
  }
  if (row.limits.divides_model && given.value.is(Kind::number) && given.value.number > 1) {
    refuse(refusal(given.key, given.value, row.note), &row);
    return;
  }
  if (is_auto(given.value) && user_ == ConfigUser::engine) return;
  if (row.effect == KeyEffect::without_effect) {
    without_effect_.push_back({given.key, "", "", &row});
    return;
  }
  // A switch or a text in the place of the object is as good as nothing unless it asks for something.
  if (!given.value.is(Kind::object)) {
    if (!given.value.is(Kind::boolean) || given.value.boolean)
      refuse(refusal(given.key, given.value, row.note));
    return;
  }
  if (row.limits.allowed.empty()) {
    refuse(fmt::format("{} is not supported: {} Remove it.", given.key, row.note));
    return;
  }
  if (const JsonMember* misspelt = misspelt_switch(given.value)) {
    problems_.add(
        {.origin = misspelt->origin,
         .key = given.key,
         .text = fmt::format("unknown key {} in {}", json_quoted(misspelt->key, kLongestQuote), given.key),
         .advice = "did you mean \"enabled\"?"});
    return;
  }
  const SectionSwitch state = switch_of(given.value);
  if (state == SectionSwitch::on) {
    refuse(
        fmt::format("{} cannot be enabled: {} Remove it, or set \"enabled\": false.", given.key, row.note));
  } else if (state == SectionSwitch::absent && !given.value.members.empty()) {
    without_effect_.push_back({given.key, "it is not enabled"});
  }
}

void ConfigEntries::read_section_list(const SchemaKey& row, const Given& given) {
  std::vector<EntryMap> items;
  for (size_t i = 0; i < given.value.items.size(); ++i) {
    const JsonNode& item = given.value.items[i];
    const std::string name = fmt::format("{}[{}]", given.key, i);
    if (!item.is(Kind::object)) {
      problems_.add({.origin = item.origin,
                     .key = name,
                     .text = fmt::format("{} must be an object, not {}", name, shown(item))});
      continue;
    }
    EntryMap outer = std::exchange(by_path_, {});
    read_section(row.path(), item, name);
    items.push_back(std::exchange(by_path_, std::move(outer)));
  }
  items_[row.path()] = std::move(items);
  insert({&row, given.key, given.origin, false, given.from_override, given.value});
}

void ConfigEntries::read_value(const SchemaKey& row, const Given& given) {
  const SchemaKey& target = target_of(row);
  ConfigEntry entry{&target, given.key, given.origin, false, given.from_override, given.value};
  entry.is_auto = is_auto(given.value) && row.type != ValueType::section &&
                  !(row.type == ValueType::choice && among(row.limits.allowed, "auto"));
  if (!entry.is_auto) {
    // What is refused whatever its value, or but for a few values, needs no lesson on its type.
    const bool of_any_type = row.effect == KeyEffect::refused && row.type != ValueType::boolean;
    if (!of_any_type && !conform(row, entry.value)) {
      problems_.add({.origin = given.value.origin.empty() ? given.origin : given.value.origin,
                     .key = given.key,
                     .text = fmt::format("{} must be {}{}, not {}", given.key, expected_values(row),
                                         missed_limit(row, entry.value), shown(given.value)),
                     .advice = row.type == ValueType::section ? object_instead(row, given.value)
                                                              : choice_suggestion(row, given.value),
                     .about = &target});
      return;
    }
    if (row.effect == KeyEffect::refused && !is_harmless(row, entry.value)) {
      problems_.add_refusal(given.origin, given.key, shown(given.value), row.note);
      return;
    }
  }
  const bool asks = !entry.is_auto || user_ == ConfigUser::program;
  if (target.effect == KeyEffect::without_effect && asks)
    without_effect_.push_back({given.key, "", "", &target});
  if (target.effect != KeyEffect::honoured) return;
  if (target.type == ValueType::choice && row.type == ValueType::boolean) {  // cpu_offload
    if (entry.is_auto || !entry.value.boolean) return;
    entry.value = text_node("cpu", given.value.origin);
  }
  if (row.limits.has_new_name) {
    const bool is_device = target.type == ValueType::choice;
    old_names_.push_back(fmt::format("{}: it stands for {}", given.key,
                                     is_device
                                         ? fmt::format("\"{}\": {{\"device\": \"cpu\"}}",
                                                       target.section.substr(target.section.find('.') + 1))
                                         : fmt::format("{}.{}", target.section, target.key)));
  }
  insert(std::move(entry));
}

void ConfigEntries::insert(ConfigEntry entry) {
  const auto [place, inserted] = by_path_.try_emplace(entry.row->path(), entry);
  if (inserted) return;
  ConfigEntry& earlier = place->second;
  const bool agree = entry.is_auto == earlier.is_auto && json_text(entry.value) == json_text(earlier.value);
  if (agree || is_auto(entry.value)) return;
  if (is_auto(earlier.value)) {
    earlier = std::move(entry);
    return;
  }
  problems_.add(entry,
                fmt::format("{} is {}, but {} is {}, and both mean {}", entry.written_key, shown(entry.value),
                            named(earlier), shown(earlier.value), entry.row->path()));
}

void ConfigEntries::apply(const ConfigOverride& setting) {
  const SchemaKey* row = find_path(setting.key);
  if (row == nullptr || has_subkeys(*row)) {
    problems_.add(
        {.origin = setting.origin,
         .key = setting.key,
         .text = fmt::format("{} is not a key that can be set", json_quoted(setting.key, kLongestQuote))});
    return;
  }
  Given given{setting.key, setting.origin, text_node(setting.value, setting.origin), true};
  const bool as_text = row->type == ValueType::text || row->type == ValueType::choice ||
                       row->type == ValueType::size ||
                       (row->type == ValueType::path_list && !setting.value.starts_with('['));
  if (!as_text) {
    try {
      given.value = parse_json(setting.value, setting.origin);
      given.value.origin = setting.origin;
    } catch (const Error&) {
      // It stays a text, and read_value() says what was expected.
    }
  }
  const std::string path = row->limits.stands_for.empty() ? row->path() : std::string(row->limits.stands_for);
  const auto earlier = by_path_.find(path);
  if (setting.is_fact && earlier != by_path_.end() && shown(earlier->second.value) != shown(given.value))
    without_effect_.push_back(
        {earlier->second.written_key, fmt::format("it is {} by {}, not {}", shown(given.value),
                                                  setting.origin, shown(earlier->second.value))});
  by_path_.erase(path);
  read_value(*row, given);
}

}  // namespace terrace
