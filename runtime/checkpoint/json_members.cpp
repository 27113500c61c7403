#include <fmt/format.h>

#include <optional>

#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/base/text/utf8.h>
#include <terrace/runtime/checkpoint/internal/json_members.h>
#include <terrace/runtime/config/json/json_document.h>
#include <terrace/runtime/saved/sealed_text.h>

namespace terrace::checkpoint {

JsonNode parse_object(std::string_view text, const std::filesystem::path& path) {
  const auto refuse = [&](const std::string& reason) {
    throw Error(ErrorKind::corrupt, {"cannot use the manifest", path.string(), reason,
                                     "Terrace writes no such manifest: resume from another checkpoint"});
  };
  if (well_formed_bytes(text) != text.size()) refuse("it is not written the way Terrace writes them");
  JsonNode root;
  try {
    root = parse_json(text, path.filename().string());
  } catch (const Error& error) {
    refuse("it is not JSON: " + error.parts().what_failed.in(Door::cpp));
  }
  if (!root.is(JsonNode::Kind::object)) refuse("it is not JSON: no object");
  return root;
}

Members::Members(const JsonNode& object, std::string name, const std::filesystem::path& path)
    : object_(object), name_(std::move(name)), path_(path) {
  if (!object.is(JsonNode::Kind::object)) refuse(name_ + " is not an object");
}

const JsonNode& Members::take(const std::string& key) {
  const JsonNode* value = object_.find(key);
  if (value == nullptr) refuse(fmt::format("{} is missing", full(key)));
  asked_.insert(key);
  return *value;
}

uint64_t Members::whole_number(const std::string& key) {
  const std::optional<uint64_t> value = take(key).whole_number();
  if (!value) refuse(fmt::format("{} is not a whole number from 0 to 2^64 - 1", full(key)));
  return *value;
}

std::string Members::text(const std::string& key) {
  const JsonNode& value = take(key);
  if (!value.is(JsonNode::Kind::text)) refuse(fmt::format("{} is not a text", full(key)));
  return value.text;
}

uint64_t Members::hash(const std::string& key) {
  uint64_t value = 0;
  if (!saved::read_hex(text(key), value))
    refuse(fmt::format("{} is not {} hexadecimal digits", full(key), saved::kChecksumDigits));
  return value;
}

bool Members::truth(const std::string& key) {
  const JsonNode& value = take(key);
  if (!value.is(JsonNode::Kind::boolean)) refuse(fmt::format("{} is neither true nor false", full(key)));
  return value.boolean;
}

const std::vector<JsonNode>& Members::list(const std::string& key) {
  const JsonNode& value = take(key);
  if (!value.is(JsonNode::Kind::list)) refuse(fmt::format("{} is not a list", full(key)));
  return value.items;
}

std::vector<uint64_t> Members::whole_numbers(const std::string& key) {
  std::vector<uint64_t> found;
  for (const JsonNode& item : list(key)) {
    const std::optional<uint64_t> value = item.whole_number();
    if (!value) refuse(fmt::format("{} is not a list of whole numbers from 0 to 2^64 - 1", full(key)));
    found.push_back(*value);
  }
  return found;
}

std::map<std::string, uint64_t> Members::numbers(const std::string& key) {
  const JsonNode& object = take(key);
  Members members(object, key, path_);
  std::map<std::string, uint64_t> found;
  for (const JsonMember& member : object.members) found[member.key] = members.whole_number(member.key);
  return found;
}

std::map<std::string, std::string> Members::texts(const std::string& key) {
  const JsonNode& object = take(key);
  Members members(object, key, path_);
  std::map<std::string, std::string> found;
  for (const JsonMember& member : object.members) found[member.key] = members.text(member.key);
  return found;
}

void Members::require_nothing_else() const {
  for (const JsonMember& member : object_.members) {
    if (!asked_.contains(member.key)) refuse(fmt::format("{} is not known", full(member.key)));
  }
}

DataType Members::type(const std::string& key) {
  const std::string name = text(key);
  for (const DataType candidate : {DataType::fp32, DataType::bf16, DataType::fp16}) {
    if (name == name_of(candidate)) return candidate;
  }
  refuse(full(key) + " is none of fp32, bf16 and fp16");
}

void Members::refuse(const std::string& reason) const {
  throw Error(ErrorKind::corrupt, {"cannot use the manifest", path_.string(), reason,
                                   "Terrace writes no such manifest: resume from another checkpoint"});
}

std::string Members::full(const std::string& key) const {
  const std::string shown = json_quoted(key);
  return name_.empty() ? shown : shown + " of " + name_;
}

}  // namespace terrace::checkpoint
