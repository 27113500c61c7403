// What a configuration means to the engine for Python where that is not what it means to the program: one
// small table beside the schema. docs/config.md says it for each key.
#pragma once

#include <string>
#include <string_view>

#include <terrace/runtime/config/schema/schema.h>

namespace terrace {

// Who trains with a configuration.
enum class ConfigUser : uint8_t { program, engine };

enum class EngineEffect : uint8_t {
  as_program,  // but with the note, and with the default if there is one
  honoured,    // the program refuses it, or has no use for it
  refused,     // unless it has its default; the note says what to do instead
  idle,        // the program alone has a use for it
};

struct EngineKey {
  std::string_view path;  // of a key, or of a section with all its keys
  EngineEffect effect;
  std::string_view note = "";
  std::string_view default_text = "";
  std::string_view allowed = "";  // of a choice that only the engine honours
};

// Returns the row of the table for a key or for a section around it; null if it is as the program has it.
const EngineKey* engine_key(std::string_view path);

// Returns the row of a key as `user` has it.
const SchemaKey& row_for(ConfigUser user, const SchemaKey& row);

// Returns every key with its values, default, effect and note, as the engine has them: a JSON list of
// objects.
std::string engine_keys_json();

}  // namespace terrace
