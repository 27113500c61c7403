// ConfigEntries: the values of a document that the schema knows, checked one by one. It does not look for
// contradictions between them: resolve/ does.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/runtime/config/json/json_document.h>
#include <terrace/runtime/config/schema/config_problems.h>
#include <terrace/runtime/config/schema/engine_keys.h>
#include <terrace/runtime/config/schema/schema.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace {

// A key that has no effect.
struct IdleKey {
  std::string key;     // as written, with its section
  std::string reason;  // why not in this configuration, such as "its device is none"; else empty
  // A warning of its own, for what somebody will miss; empty: the key is listed with the others.
  std::string warning = "";
  const SchemaKey* row = nullptr;  // whose note is the reason if there is no other
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
  ConfigEntries(const JsonNode& document, std::span<const ConfigOverride> overrides, ConfigUser user,
                ConfigProblems& problems);

  // Returns the entry of the honoured key `path`; null if neither the file nor an override has it.
  const ConfigEntry* find(std::string_view path) const;
  const EntryMap& all() const { return by_path_; }
  // Returns the objects of a section list, in the order of the file. The paths of their entries hold no
  // position.
  std::span<const EntryMap> items(std::string_view path) const;
  // True if the document has the section, even an empty one.
  bool has_section(std::string_view path) const { return sections_.contains(path); }
  // The places of the sections that the document has.
  const std::map<std::string, std::string, std::less<>>& sections() const { return sections_; }
  // The keys without effect, in the order of the file: the program's list has a section for all its keys.
  const std::vector<IdleKey>& without_effect() const { return without_effect_; }
  // The keys that have a new name, with a line that says it.
  const std::vector<std::string>& old_names() const { return old_names_; }
  // True if any value of the document is "auto", which a trainer with settings of its own fills in.
  bool has_auto() const { return has_auto_; }

 private:
  struct Given;
  void read_section(std::string_view section, const JsonNode& object, const std::string& written_section);
  void read_member(std::string_view section, const JsonMember& member, const std::string& written_section);
  void read_value(const SchemaKey& row, const Given& given);
  const SchemaKey* row_of(std::string_view section, std::string_view key) const;
  const SchemaKey& target_of(const SchemaKey& row) const;
  bool refuse_type(std::string_view section, const JsonNode& object, const std::string& written_section);
  void read_open_section(const SchemaKey& row, const Given& given);
  void read_section_list(const SchemaKey& row, const Given& given);
  void insert(ConfigEntry entry);
  void apply(const ConfigOverride& setting);

  const ConfigUser user_;
  ConfigProblems& problems_;
  EntryMap by_path_;
  std::map<std::string, std::vector<EntryMap>, std::less<>> items_;
  std::map<std::string, std::string, std::less<>> sections_;
  std::vector<IdleKey> without_effect_;
  std::vector<std::string> old_names_;
  bool has_auto_ = false;
};

// Returns "train_batch_size (ds.json:2:3)".
std::string named(const ConfigEntry& entry);

// Returns the value of a node whose type has been checked.
uint64_t whole_number(const JsonNode& node);

}  // namespace terrace
