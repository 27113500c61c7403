// The switch "enabled" of a section whose keys are not checked, at whatever depth.
#pragma once

#include <cstdint>

#include <terrace/runtime/config/json/json_document.h>

namespace terrace {

enum class SectionSwitch : uint8_t { absent, off, on };

// `on` when one of them is.
SectionSwitch switch_of(const JsonNode& section);

// The first key that is "enabled", misspelt; null: none.
const JsonMember* misspelt_switch(const JsonNode& section);

}  // namespace terrace
