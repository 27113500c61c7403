#include <terrace/runtime/config/schema/section_switch.h>

#include <algorithm>

#include <terrace/runtime/config/schema/suggestions.h>

namespace terrace {
namespace {

using Kind = JsonNode::Kind;

// Whether a switch in a section that is not checked asks for something: in Python, which reads the file
// there, every text and every number but 0 does.
bool is_truthy(const JsonNode& node) {
  if (node.is(Kind::boolean)) return node.boolean;
  if (node.is(Kind::text)) return !node.text.empty() && edit_distance(node.text, "false") > 0;
  return node.is(Kind::number) && node.number != 0;
}

}  // namespace

SectionSwitch switch_of(const JsonNode& node) {
  SectionSwitch found = SectionSwitch::absent;
  const auto note = [&](SectionSwitch other) { found = std::max(found, other); };
  for (const JsonMember& member : node.members) {
    if (member.key == "enabled") note(is_truthy(member.value) ? SectionSwitch::on : SectionSwitch::off);
    note(switch_of(member.value));
  }
  for (const JsonNode& item : node.items) note(switch_of(item));
  return found;
}

const JsonMember* misspelt_switch(const JsonNode& node) {
  for (const JsonMember& member : node.members) {
    if (is_nearly_enabled(member.key)) return &member;
    if (const JsonMember* inner = misspelt_switch(member.value)) return inner;
  }
  for (const JsonNode& item : node.items) {
    if (const JsonMember* inner = misspelt_switch(item)) return inner;
  }
  return nullptr;
}

}  // namespace terrace
