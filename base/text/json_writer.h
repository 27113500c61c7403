// JsonWriter: JSON text, written from front to back. It adds every separator, quote and escape itself, so
// that its output is one well-formed document, and it allocates nothing but the text. A wrong order of calls
// (a member outside an object, a container that is never ended) is a programmer's mistake and ends the
// program.
//
//   JsonWriter json;
//   json.begin_object().members({{"step", 3}, {"loss", 2.5}});
//   json.list("folders", {"a", "b"}).end();
//   json.take();  // {"step": 3, "loss": 2.5, "folders": ["a", "b"]}
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace terrace {

// Returns the text as a JSON literal: in quotes, with quotes, backslashes and control characters escaped and
// with bytes that are no UTF-8 replaced by U+FFFD. A text of more than `longest` bytes is cut there and ends
// with "...".
std::string json_quoted(std::string_view text, size_t longest = std::string_view::npos);

// JsonValue: a value that is not a container, as an argument of JsonWriter's functions. It holds views of the
// texts that it was made of, and so must not outlive the call. An optional without a value is null.
class JsonValue {
 public:
  JsonValue(std::nullptr_t) : JsonValue(Kind::raw, "null") {}
  JsonValue(std::same_as<bool> auto value) : JsonValue(Kind::raw, value ? "true" : "false") {}
  JsonValue(std::signed_integral auto value) : kind_(Kind::whole), whole_(value) {}
  template <std::unsigned_integral T>
  requires(!std::same_as<T, bool>) JsonValue(T value) : kind_(Kind::unsigned_whole), unsigned_whole_(value) {}
  JsonValue(double value) : kind_(Kind::number), number_(value) {}
  template <std::convertible_to<std::string_view> T>
  JsonValue(const T& text) : JsonValue(Kind::text, text) {}
  template <typename T>
  JsonValue(const std::optional<T>& value) : JsonValue(value ? JsonValue(*value) : JsonValue(nullptr)) {}

  // A number with this many decimals. Without json_fixed(), a double is written as the shortest decimal that
  // reads back as the same double. A number that is not finite is null either way, because JSON has none.
  friend JsonValue json_fixed(double value, int decimals);
  // A value that is JSON already.
  friend JsonValue json_raw(std::string_view json);
  // The text, or null when it is empty.
  friend JsonValue json_text_or_null(std::string_view text);

 private:
  friend class JsonWriter;
  enum class Kind : uint8_t { raw, text, whole, unsigned_whole, number };

  JsonValue(Kind kind, std::string_view text) : kind_(kind), text_(text) {}

  Kind kind_;
  std::string_view text_;
  union {
    int64_t whole_ = 0;
    uint64_t unsigned_whole_;
    double number_;
  };
  int decimals_ = -1;  // below 0: as many as the number takes
};

inline JsonValue json_fixed(double value, int decimals) {
  JsonValue fixed(value);
  fixed.decimals_ = decimals;
  return fixed;
}
inline JsonValue json_raw(std::string_view json) {
  return {JsonValue::Kind::raw, json};
}
inline JsonValue json_text_or_null(std::string_view text) {
  return text.empty() ? JsonValue(nullptr) : JsonValue(text);
}

// How the items of a container are laid out: one after the other, or each on a line of its own, indented by
// two spaces for every such container around it.
enum class JsonLayout : uint8_t { line, lines };

struct JsonWriterOptions {
  bool dense = false;  // no space follows a colon or a comma
  // A value of more bytes is cut as json_quoted() cuts it.
  size_t longest_text_bytes = std::string_view::npos;
};

class JsonWriter {
 public:
  struct Member {
    std::string_view key;
    JsonValue value;
  };
  static constexpr size_t kDeepest = 64;  // containers in one another

  explicit JsonWriter(const JsonWriterOptions& options = {}) : options_(options) {}
  JsonWriter(const JsonWriter&) = delete;
  JsonWriter& operator=(const JsonWriter&) = delete;

  // Functions with a key write a member of an object; those without one write an item of a list, or the
  // document.
  JsonWriter& begin_object(JsonLayout layout = JsonLayout::line) { return begin('{', layout); }
  JsonWriter& begin_object(std::string_view key, JsonLayout layout = JsonLayout::line) {
    return this->key(key).begin('{', layout);
  }
  JsonWriter& begin_list(JsonLayout layout = JsonLayout::line) { return begin('[', layout); }
  JsonWriter& begin_list(std::string_view key, JsonLayout layout = JsonLayout::line) {
    return this->key(key).begin('[', layout);
  }
  // Ends the container that was begun last.
  JsonWriter& end();

  // Writes the key of a member alone. A function without a key, called next, writes its value.
  JsonWriter& key(std::string_view key);
  JsonWriter& value(const JsonValue& value);
  JsonWriter& member(std::string_view key, const JsonValue& value) { return this->key(key).value(value); }
  JsonWriter& members(std::initializer_list<Member> members);

  // These functions write whole containers.
  JsonWriter& object(std::initializer_list<Member> all) { return begin_object().members(all).end(); }
  JsonWriter& object(std::string_view key, std::initializer_list<Member> all) {
    return this->key(key).object(all);
  }
  JsonWriter& list(std::initializer_list<JsonValue> items);
  JsonWriter& list(std::string_view key, std::initializer_list<JsonValue> items) {
    return this->key(key).list(items);
  }
  template <typename Items>
  JsonWriter& list(std::string_view key, const Items& items) {
    return list(key, items, [this](const auto& item) { value(item); });
  }
  // Calls `write` with each item; it writes one value.
  template <typename Items, typename Write>
  JsonWriter& list(std::string_view key, const Items& items, Write write,
                   JsonLayout layout = JsonLayout::line) {
    begin_list(key, layout);
    for (const auto& item : items) write(item);
    return end();
  }

  // Begins a new line, indented by so many spaces, before the next member, item or end of the container.
  JsonWriter& break_line(size_t indentation = 0);

  // The text written so far. The caller may take it away and clear it before the document is complete.
  std::string& text() { return text_; }
  // Returns the document, which must be complete.
  std::string take();

 private:
  struct Level {
    char closing = 0;
    bool lines = false;
    bool has_items = false;
  };

  JsonWriter& begin(char opening, JsonLayout layout);
  void separate(bool is_member);
  void put_break();

  const JsonWriterOptions options_;
  std::string text_;
  std::array<Level, kDeepest> levels_{};
  size_t depth_ = 0;
  size_t indentation_ = 0;  // of the items of the innermost container with JsonLayout::lines
  std::optional<size_t> break_;
  bool has_key_ = false;
};

// A document that is one object, on one line.
std::string json_object(std::initializer_list<JsonWriter::Member> members);

}  // namespace terrace
