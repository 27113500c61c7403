// JSON that only Terrace writes, read member by member. Nothing of it is trusted: a member that is missing,
// of another type, or unknown makes the whole text an Error(corrupt).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/base/data_type.h>
#include <terrace/runtime/config/json/json_document.h>

namespace terrace::checkpoint {

// `path` is named in errors. Throws Error(corrupt) for a text that is no object.
JsonNode parse_object(std::string_view text, const std::filesystem::path& path);

// The members of one JSON object, each read once. A member that is never read is an error as well.
class Members {
 public:
  // The object and the path outlive this.
  Members(const JsonNode& object, std::string name, const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  bool has(const std::string& key) const { return object_.find(key) != nullptr; }
  const JsonNode& take(const std::string& key);
  uint64_t whole_number(const std::string& key);
  std::string text(const std::string& key);
  uint64_t hash(const std::string& key);
  bool truth(const std::string& key);
  DataType type(const std::string& key);
  const std::vector<JsonNode>& list(const std::string& key);
  std::vector<uint64_t> whole_numbers(const std::string& key);
  // These return objects of names and whole numbers, and of names and texts.
  std::map<std::string, uint64_t> numbers(const std::string& key);
  std::map<std::string, std::string> texts(const std::string& key);
  void require_nothing_else() const;

  [[noreturn]] void refuse(const std::string& reason) const;

 private:
  std::string full(const std::string& key) const;

  const JsonNode& object_;
  std::string name_;
  const std::filesystem::path& path_;
  std::set<std::string> asked_;
};

}  // namespace terrace::checkpoint
