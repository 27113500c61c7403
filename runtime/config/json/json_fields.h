// JsonFields: the members of a struct as members of a JSON object, described once for whoever writes them and
// whoever reads them. A struct that has a form in JSON has a function json_fields() beside it:
//
//   constexpr auto json_fields(const Tier&) {
//     return std::tuple(json_field("name", &Tier::name), json_field("bytes", &Tier::bytes));
//   }
//   write_fields(json.begin_object(), tier).end();
//   if (const std::optional<std::string> wrong = read_fields(node, tier)) refuse(*wrong);
//
// A type with a form of its own has write_json() and read_json() beside it instead. A reader ignores members
// that it does not know.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include <terrace/base/text/json_writer.h>
#include <terrace/runtime/config/json/json_document.h>

namespace terrace {

template <typename Value, typename Struct>
struct JsonField {
  std::string_view key;
  Value Struct::*value;
  bool may_lack = false;                          // a reader leaves the value as it is where there is none
  size_t longest_bytes = std::string_view::npos;  // a text is written cut to these
};
// A time in nanoseconds that JSON has in seconds.
template <typename Struct>
struct JsonSeconds {
  std::string_view key;
  uint64_t Struct::*ns;
};

template <typename Value, typename Struct>
constexpr auto json_field(std::string_view key, Value Struct::*value,
                          size_t longest_bytes = std::string_view::npos) {
  return JsonField<Value, Struct>{key, value, false, longest_bytes};
}
// A field that an earlier Terrace did not write.
template <typename Value, typename Struct>
constexpr auto later_json_field(std::string_view key, Value Struct::*value) {
  return JsonField<Value, Struct>{key, value, true};
}
template <typename Struct>
constexpr auto json_seconds(std::string_view key, uint64_t Struct::*ns) {
  return JsonSeconds<Struct>{key, ns};
}

// --- Values ---

inline void write_json(JsonWriter& json, const JsonValue& value) {
  json.value(value);
}
inline bool read_json(const JsonNode& node, bool& value) {
  value = node.boolean;
  return node.is(JsonNode::Kind::boolean);
}
inline bool read_json(const JsonNode& node, std::unsigned_integral auto& value) {
  const std::optional<uint64_t> whole = node.whole_number();
  if (!whole || *whole > std::numeric_limits<std::remove_reference_t<decltype(value)>>::max()) return false;
  value = static_cast<std::remove_reference_t<decltype(value)>>(*whole);
  return true;
}
// What is not finite is null in JSON, and comes back as no number.
inline bool read_json(const JsonNode& node, double& value) {
  value = node.is(JsonNode::Kind::number) ? node.number : std::numeric_limits<double>::quiet_NaN();
  return node.is(JsonNode::Kind::number) || node.is(JsonNode::Kind::null);
}
inline bool read_json(const JsonNode& node, std::string& value) {
  value = node.text;
  return node.is(JsonNode::Kind::text);
}

// Reads seconds as nanoseconds.
inline bool read_seconds(const JsonNode& node, uint64_t& ns) {
  constexpr double kMost = 9e9;  // seconds whose nanoseconds fit
  if (!node.is(JsonNode::Kind::number) || !(node.number >= 0 && node.number < kMost)) return false;
  ns = static_cast<uint64_t>(std::llround(node.number * 1e9));
  return true;
}

template <typename T>
concept HasJsonFields = requires(const T& value) {
  json_fields(value);
};

template <HasJsonFields T>
JsonWriter& write_fields(JsonWriter& json, const T& value);
template <HasJsonFields T>
std::optional<std::string> read_fields(const JsonNode& node, T& value);

template <HasJsonFields T>
void write_json(JsonWriter& json, const T& value) {
  write_fields(json.begin_object(), value).end();
}
template <HasJsonFields T>
bool read_json(const JsonNode& node, T& value) {
  return !read_fields(node, value);
}

template <typename T>
void write_json(JsonWriter& json, const std::vector<T>& items) {
  json.begin_list();
  for (const T& item : items) write_json(json, item);
  json.end();
}
template <typename T>
bool read_json(const JsonNode& node, std::vector<T>& items) {
  items.clear();
  for (const JsonNode& item : node.items) {
    if (!read_json(item, items.emplace_back())) return false;
  }
  return node.is(JsonNode::Kind::list);
}

template <typename T>
requires HasJsonFields<T>
void write_json(JsonWriter& json, const std::optional<T>& value) {
  value ? write_json(json, *value) : static_cast<void>(json.value(nullptr));
}
template <typename T>
bool read_json(const JsonNode& node, std::optional<T>& value) {
  value.reset();
  return node.is(JsonNode::Kind::null) || read_json(node, value.emplace());
}

// --- Fields ---

template <typename Value, typename Struct>
void write_field(JsonWriter& json, const JsonField<Value, Struct>& field, const Struct& of) {
  json.key(field.key);
  if constexpr (std::same_as<Value, std::string>) {
    if (field.longest_bytes < (of.*field.value).size())
      return static_cast<void>(json.value(json_raw(json_quoted(of.*field.value, field.longest_bytes))));
  }
  write_json(json, of.*field.value);
}
template <typename Struct>
void write_field(JsonWriter& json, const JsonSeconds<Struct>& field, const Struct& of) {
  json.member(field.key, static_cast<double>(of.*field.ns) / 1e9);
}

template <typename Value, typename Struct>
bool read_field(const JsonNode& object, const JsonField<Value, Struct>& field, Struct& of) {
  const JsonNode* const node = object.find(field.key);
  if (node != nullptr) return read_json(*node, of.*field.value);
  return field.may_lack || read_json(JsonNode(), of.*field.value);  // an optional value may lack as well
}
template <typename Struct>
bool read_field(const JsonNode& object, const JsonSeconds<Struct>& field, Struct& of) {
  const JsonNode* const node = object.find(field.key);
  return node == nullptr || read_seconds(*node, of.*field.ns);
}

// Writes the members of an object that has been begun.
template <HasJsonFields T>
JsonWriter& write_fields(JsonWriter& json, const T& value) {
  std::apply([&](const auto&... field) { (write_field(json, field, value), ...); }, json_fields(value));
  return json;
}
// Returns the key of the first member that is missing or of another type; nothing if there is none.
template <HasJsonFields T>
std::optional<std::string> read_fields(const JsonNode& node, T& value) {
  std::optional<std::string> wrong;
  if (!node.is(JsonNode::Kind::object)) return "an object";
  const auto read = [&](const auto& field) {
    if (!wrong && !read_field(node, field, value)) wrong = field.key;
  };
  std::apply([&](const auto&... field) { (read(field), ...); }, json_fields(value));
  return wrong;
}

}  // namespace terrace
