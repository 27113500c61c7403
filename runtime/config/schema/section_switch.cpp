#include <terrace/runtime/config/schema/section_switch.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <string_view>

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

// The keys that DeepSpeed and the files around it have for the number of parts of a model.
constexpr std::string_view kDegrees[] = {"autotp_size",
                                         "tp_size",
                                         "autoep_size",
                                         "ep_size",
                                         "sp_size",
                                         "pp_size",
                                         "num_stages",
                                         "stages",
                                         "degree",
                                         "size",
                                         "tensor_parallel_size",
                                         "expert_parallel_size",
                                         "pipeline_parallel_size",
                                         "sequence_parallel_size"};

// A number, or the text of one.
bool is_above_one(const JsonNode& node) {
  if (node.is(Kind::number)) return node.number > 1;
  double number = 0;
  const char* const end = node.text.data() + node.text.size();
  return node.is(Kind::text) && std::from_chars(node.text.data(), end, number).ptr == end && number > 1;
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

const JsonMember* degree_above_one(const JsonNode& node) {
  for (const JsonMember& member : node.members) {
    if (std::ranges::find(kDegrees, member.key) != std::end(kDegrees) && is_above_one(member.value))
      return &member;
    if (const JsonMember* inner = degree_above_one(member.value)) return inner;
  }
  for (const JsonNode& item : node.items) {
    if (const JsonMember* inner = degree_above_one(item)) return inner;
  }
  return nullptr;
}

}  // namespace terrace
