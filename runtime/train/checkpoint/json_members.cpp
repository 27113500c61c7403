#include <fmt/format.h>

#include <charconv>
#include <memory>

#include <terrace/base/error.h>
#include <terrace/runtime/config/json/json_document.h>
#include <terrace/runtime/train/checkpoint/internal/json_members.h>

namespace terrace::checkpoint {

bool read_hex(std::string_view text, uint64_t& value) {
  if (text.size() != kChecksumDigits || text.find_first_not_of("0123456789abcdef") != std::string_view::npos)
    return false;
  return std::from_chars(text.data(), text.data() + text.size(), value, 16).ec == std::errc();
}

Json::Value parse_object(std::string_view text, const std::filesystem::path& path) {
  Json::CharReaderBuilder builder;
  Json::CharReaderBuilder::strictMode(&builder.settings_);
  builder["stackLimit"] = 16;
  const std::unique_ptr<Json::CharReader> reader(builder.newCharReader());
  Json::Value root;
  std::string problems;
  try {
    if (!reader->parse(text.data(), text.data() + text.size(), &root, &problems)) root = Json::Value();
  } catch (const Json::Exception&) {  // the only one it throws: its stack limit
    problems = "brackets are nested too deeply";
    root = Json::Value();
  }
  if (!root.isObject()) {
    throw Error(ErrorKind::corrupt,
                {"cannot use the manifest", path.string(),
                 "it is not JSON: " + problems.substr(0, problems.find_last_not_of('\n') + 1),
                 "Terrace writes no such manifest: resume from another checkpoint"});
  }
  return root;
}

Members::Members(const Json::Value& object, std::string name, const std::filesystem::path& path)
    : object_(object), name_(std::move(name)), path_(path) {
  if (!object.isObject()) refuse(name_.empty() ? "it is not an object" : name_ + " is not an object");
}

const Json::Value& Members::take(const std::string& key) {
  if (!has(key)) refuse(fmt::format("{} is missing", full(key)));
  asked_.insert(key);
  return object_[key];
}

uint64_t Members::whole_number(const std::string& key) {
  const Json::Value& value = take(key);
  const bool whole =
      value.type() == Json::uintValue || (value.type() == Json::intValue && value.asInt64() >= 0);
  if (!whole) refuse(fmt::format("{} is not a whole number from 0 to 2^64 - 1", full(key)));
  return value.asUInt64();
}

std::string Members::text(const std::string& key) {
  const Json::Value& value = take(key);
  if (!value.isString()) refuse(fmt::format("{} is not a text", full(key)));
  return value.asString();
}

uint64_t Members::hash(const std::string& key) {
  uint64_t value = 0;
  if (!read_hex(text(key), value))
    refuse(fmt::format("{} is not {} hexadecimal digits", full(key), kChecksumDigits));
  return value;
}

std::map<std::string, uint64_t> Members::numbers(const std::string& key) {
  const Json::Value& object = take(key);
  Members members(object, key, path_);
  std::map<std::string, uint64_t> found;
  for (const std::string& name : object.getMemberNames()) found[name] = members.whole_number(name);
  return found;
}

std::map<std::string, std::string> Members::texts(const std::string& key) {
  const Json::Value& object = take(key);
  Members members(object, key, path_);
  std::map<std::string, std::string> found;
  for (const std::string& name : object.getMemberNames()) found[name] = members.text(name);
  return found;
}

void Members::require_nothing_else() const {
  for (const std::string& key : object_.getMemberNames()) {
    if (!asked_.contains(key)) refuse(fmt::format("{} is not known", full(key)));
  }
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
