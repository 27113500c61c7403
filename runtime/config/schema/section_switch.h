// What asks for something at any depth of a section whose keys are not checked: the key "enabled", and the
// degrees of parallelism.
#pragma once

#include <cstdint>

#include <terrace/runtime/config/json/json_document.h>

namespace terrace {

enum class SectionSwitch : uint8_t { absent, off, on };

// Returns `on` if any switch in the section is on.
SectionSwitch switch_of(const JsonNode& section);

// Returns the first key that looks like a misspelt "enabled"; null if there is none.
const JsonMember* misspelt_switch(const JsonNode& section);

// Returns the first key that divides a model into several parts ("tp_size": 4); null if there is none.
const JsonMember* degree_above_one(const JsonNode& section);

}  // namespace terrace
