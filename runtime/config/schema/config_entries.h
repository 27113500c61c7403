// ConfigEntries: the values of a document that the schema knows, checked one by one. It does not look for
// contradictions between them: resolve/ does.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/runtime/config/json/json_document.h>
#include <terrace/runtime/config/schema/schema.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace {

// The problems of a configuration: the first ones in words, the others as a number.
class ConfigProblems {
 public:
  // Adds a problem, "ds.json:14:7: unknown key ...". `about` is the key whose note says what would be right;
  // null: none.
  void add(const std::string& origin, const std::string& text, const SchemaKey* about = nullptr);
  // Adds the refusal of a key: "ds.json:14:7: zenflow.topk_ratio cannot be 0.1: <reason>". Further keys of
  // the section that are refused for the same reason, one behind the other, share its line.
  void add_refusal(const std::string& origin, const std::string& key, const std::string& value,
                   std::string_view reason);
  // True if the next problem will be reported in words.
  bool says_next() const;
  void throw_if_any() const;

 private:
  std::vector<std::string> lines_;
  size_t count_ = 0;
  std::string last_reason_, last_section_;  // of the last refused key
  const SchemaKey* about_ = nullptr;        // the key of the first problem
};

// A key that has no effect.
struct IdleKey {
  std::string key;     // as written, with its section
  std::string reason;  // why not in this configuration, such as "its device is none"; else empty
  // A warning of its own, for what somebody will miss; empty: the key is listed with the others.
  std::string warning = "";
};

struct ConfigEntry {
  const SchemaKey* row;     // the row of the key that has the effect, even if the file has another key for it
  std::string written_key;  // "zero_optimization.cpu_offload"
  std::string written_at;   // "ds.json:14:7", "--lr"
  bool is_auto;
  bool from_override;
  JsonNode value;  // of the type of its row; not set for "auto"

  // Returns the origin for people: "ds.json:14:7", "auto (ds.json:14:7)", "mapped from cpu_offload
  // (ds.json:14:7)".
  std::string origin() const;
};

class ConfigEntries {
 public:
  using EntryMap = std::map<std::string, ConfigEntry, std::less<>>;  // by path

  // Adds the problems that it finds to `problems`.
  ConfigEntries(const JsonNode& document, std::span<const ConfigOverride> overrides,
                ConfigProblems& problems);

  // Returns the entry of the honoured key `path`; null if neither the file nor an override has it.
  const ConfigEntry* find(std::string_view path) const;
  const EntryMap& all() const { return by_path_; }
  // Returns the objects of a section list, in the order of the file. The paths of their entries hold no
  // position.
  std::span<const EntryMap> items(std::string_view path) const;
  // True if the document has the section, even an empty one.
  bool has_section(std::string_view path) const { return sections_.contains(path); }
  // The keys without effect, in the order of the file.
  const std::vector<IdleKey>& without_effect() const { return without_effect_; }
  // True if any value of the document is "auto", which a trainer with settings of its own fills in.
  bool has_auto() const { return has_auto_; }

 private:
  struct Given;
  void read_section(std::string_view section, const JsonNode& object, const std::string& written_section);
  void read_member(std::string_view section, const JsonMember& member, const std::string& written_section);
  void read_value(const SchemaKey& row, const Given& given);
  bool refuse_type(std::string_view section, const JsonNode& object, const std::string& written_section);
  void read_open_section(const SchemaKey& row, const Given& given);
  void read_section_list(const SchemaKey& row, const Given& given);
  void insert(ConfigEntry entry);
  void apply(const ConfigOverride& setting);

  ConfigProblems& problems_;
  EntryMap by_path_;
  std::map<std::string, std::vector<EntryMap>, std::less<>> items_;
  std::set<std::string, std::less<>> sections_;
  std::vector<IdleKey> without_effect_;
  bool has_auto_ = false;
};

// Returns the value of a node whose type has been checked.
uint64_t whole_number(const JsonNode& node);

}  // namespace terrace
