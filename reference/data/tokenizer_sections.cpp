#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <terrace/base/error.h>
#include <terrace/reference/data/internal/split_pattern.h>
#include <terrace/reference/data/internal/tokenizer_sections.h>

namespace terrace::data {
namespace {

using Kind = JsonNode::Kind;

// A longer one makes no sense, and would make the search for them slow.
constexpr size_t kLongestAddedToken = 1024;
constexpr double kLargestNumber = 1 << 24;
// What GPT-2 cuts text by (Radford et al., 2019), as the ByteLevel step of the tokenizers library does.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::string text_member(const JsonNode& object, const char* key) {
  const JsonNode* found = object.find(key);
  if (found == nullptr || !found->is(Kind::text)) refuse_tokenizer(object.origin, key, "a text is expected");
  return found->text;
}

bool bool_member(const JsonNode& object, const char* key, bool otherwise) {
  const JsonNode* found = object.find(key);
  if (found == nullptr) return otherwise;
  if (!found->is(Kind::boolean)) refuse_tokenizer(found->origin, key, "true or false is expected");
  return found->boolean;
}

uint32_t id_of(const JsonNode& node, const char* key) {
  if (!node.is(Kind::number) || node.number < 0 || node.number > kLargestNumber ||
      node.number != std::floor(node.number))
    refuse_tokenizer(node.origin, key, fmt::format("a whole number up to {} is expected", kLargestNumber));
  return static_cast<uint32_t>(node.number);
}

const JsonNode& list_member(const JsonNode& object, const char* key) {
  const JsonNode* found = object.find(key);
  if (found == nullptr || !found->is(Kind::list)) refuse_tokenizer(object.origin, key, "a list is expected");
  return *found;
}

void require_object(const JsonNode& node, const char* key) {
  if (!node.is(Kind::object)) refuse_tokenizer(node.origin, key, "an object is expected");
}

void only_keys(const JsonNode& object, std::initializer_list<std::string_view> known) {
  for (const JsonMember& each : object.members) {
    if (std::find(known.begin(), known.end(), each.key) == known.end())
      refuse_tokenizer(each.origin, each.key, "this key is not known here");
  }
}

void add_split(const JsonNode& step, TokenizerFile& file) {
  only_keys(step, {"type", "pattern", "behavior", "invert"});
  const JsonNode* pattern = step.find("pattern");
  if (pattern == nullptr || !pattern->is(Kind::object) || pattern->members.size() != 1 ||
      !pattern->members[0].value.is(Kind::text))
    refuse_tokenizer(step.origin, "pattern", "an object with \"Regex\" or \"String\" is expected");
  SplitStep split;
  const JsonMember& written = pattern->members[0];
  if (written.key == "Regex") {
    split.pattern = pcre2_pattern(written.value.text, written.origin);
  } else if (written.key == "String") {
    if (written.value.text.empty()) refuse_tokenizer(written.origin, written.key, "it is empty");
    split.pattern = quoted_pattern(written.value.text);
  } else {
    refuse_tokenizer(written.origin, written.key, "\"Regex\" or \"String\" is expected");
  }
  const std::string behavior = text_member(step, "behavior");
  const bool invert = bool_member(step, "invert", false);
  if (behavior == "Removed") {
    split.drop_between = invert;
    if (!invert) split.match = SplitStep::Match::dropped;
  } else if (behavior == "MergedWithPrevious" && !invert) {
    split.match = SplitStep::Match::joins_previous;
  } else if (behavior == "MergedWithNext" && !invert) {
    split.match = SplitStep::Match::joins_next;
  } else if (behavior != "Isolated") {
    refuse_tokenizer(step.origin, "behavior",
                     fmt::format("\"{}\"{} is not understood; Isolated and Removed are, and without invert "
                                 "MergedWithPrevious and MergedWithNext",
                                 behavior, invert ? " with invert" : ""));
  }
  file.steps.push_back(split);
}

void add_byte_level(const JsonNode& step, TokenizerFile& file) {
  only_keys(step, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  SplitStep split;
  if (bool_member(step, "add_prefix_space", true)) split.prefix = " ";
  if (bool_member(step, "use_regex", true)) split.pattern = pcre2_pattern(kGpt2Pattern, step.origin);
  file.is_byte_level = true;
  if (!split.prefix.empty() || !split.pattern.empty()) file.steps.push_back(split);
}

void require_mark(const JsonNode& step, const char* key, const std::string& text) {
  if (text != kSpaceMark)
    refuse_tokenizer(step.origin, key, fmt::format("\"{}\" is not \"{}\"", text, kSpaceMark));
}

// "first", "always" or "never"; older files have "add_prefix_space" instead.
std::string prepend_scheme(const JsonNode& step) {
  const JsonNode* written = step.find("prepend_scheme");
  if (written == nullptr) return bool_member(step, "add_prefix_space", true) ? "always" : "never";
  const std::string scheme = text_member(step, "prepend_scheme");
  if (scheme != "first" && scheme != "always" && scheme != "never")
    refuse_tokenizer(written->origin, "prepend_scheme",
                     fmt::format("\"{}\" is not first, always or never", scheme));
  return scheme;
}

void add_metaspace(const JsonNode& step, TokenizerFile& file) {
  only_keys(step, {"type", "replacement", "str_rep", "prepend_scheme", "add_prefix_space", "split"});
  require_mark(step, "replacement", text_member(step, "replacement"));
  SplitStep split;
  split.marks_spaces = true;
  const std::string scheme = prepend_scheme(step);
  if (scheme != "never") split.prefix = kSpaceMark;
  split.only_first_prefix = scheme == "first";
  if (bool_member(step, "split", true)) {
    split.pattern = quoted_pattern(kSpaceMark);
    split.match = SplitStep::Match::joins_next;
  }
  file.steps.push_back(split);
}

// The pattern of a Replace that is a text.
std::string replaced_text(const JsonNode& step) {
  const JsonNode* pattern = step.find("pattern");
  const JsonNode* text = pattern == nullptr ? nullptr : pattern->find("String");
  if (text == nullptr || !text->is(Kind::text) || pattern->members.size() != 1)
    refuse_tokenizer(step.origin, "pattern", "an object with \"String\" is expected");
  return text->text;
}

// Whether the step is a Replace of `from` by `to`; others are refused.
void require_replace(const JsonNode& step, std::string_view from, std::string_view to) {
  only_keys(step, {"type", "pattern", "content"});
  const std::string pattern = replaced_text(step);
  const std::string content = text_member(step, "content");
  if (pattern != from || content != to)
    refuse_tokenizer(step.origin, "Replace",
                     fmt::format("it puts \"{}\" for \"{}\", and \"{}\" for \"{}\" is expected", content,
                                 pattern, to, from));
}

void require_strip_of_one_space(const JsonNode& step) {
  only_keys(step, {"type", "content", "start", "stop"});
  const auto count = [&](const char* key) {
    const JsonNode* found = step.find(key);
    return found == nullptr ? 0u : id_of(*found, key);
  };
  if (text_member(step, "content") != " " || count("start") != 1 || count("stop") != 0)
    refuse_tokenizer(step.origin, "Strip", "one space at the beginning is expected");
}

void add_digits(const JsonNode& step, TokenizerFile& file) {
  only_keys(step, {"type", "individual_digits"});
  SplitStep split;
  split.pattern = bool_member(step, "individual_digits", false) ? "\\p{N}" : "\\p{N}+";
  file.steps.push_back(split);
}

// The steps of a section that is one step or a "Sequence" of them under `key`; sequences of sequences are
// flattened.
void flatten(const JsonNode& section, const char* key, std::vector<const JsonNode*>& steps) {
  require_object(section, "type");
  if (text_member(section, "type") != "Sequence") {
    steps.push_back(&section);
    return;
  }
  only_keys(section, {"type", key});
  for (const JsonNode& step : list_member(section, key).items) flatten(step, key, steps);
}

std::vector<uint32_t> template_ids(const JsonNode& section, const std::string& name) {
  const JsonNode* table = section.find("special_tokens");
  const JsonNode* entry = table == nullptr ? nullptr : table->find(name);
  if (entry == nullptr)
    refuse_tokenizer(section.origin, "special_tokens", fmt::format("\"{}\" is not in it", name));
  std::vector<uint32_t> ids;
  for (const JsonNode& id : list_member(*entry, "ids").items) ids.push_back(id_of(id, "ids"));
  return ids;
}

void read_template(const JsonNode& step, TokenizerFile& file) {
  only_keys(step, {"type", "single", "pair", "special_tokens"});
  bool after_text = false;
  for (const JsonNode& piece : list_member(step, "single").items) {
    if (!piece.is(Kind::object) || piece.members.size() != 1)
      refuse_tokenizer(piece.origin, "single", "\"SpecialToken\" or \"Sequence\" is expected");
    const JsonMember& each = piece.members[0];
    if (each.key == "Sequence" && !after_text) {
      after_text = true;
    } else if (each.key == "SpecialToken") {
      const std::vector<uint32_t> ids = template_ids(step, text_member(each.value, "id"));
      std::vector<uint32_t>& where = after_text ? file.suffix : file.prefix;
      where.insert(where.end(), ids.begin(), ids.end());
    } else {
      refuse_tokenizer(each.origin, each.key, "one \"Sequence\" and \"SpecialToken\" are expected");
    }
  }
  if (!after_text) refuse_tokenizer(step.origin, "single", "the text itself is not in it");
}

}  // namespace

void refuse_tokenizer(const std::string& origin, const std::string& key, const std::string& reason) {
  throw Error(
      ErrorKind::config,
      {"cannot use the tokenizer", fmt::format("{}: {}", origin, key), reason,
       "Terrace reads BPE of the byte level (GPT-2, Llama 3, Qwen) and of SentencePiece (Llama 2, "
       "Mistral, Gemma); write the tokens of that tokenizer into .bin files (docs/data.md says how), or "
       "give another tokenizer"});
}

void read_added_tokens(const JsonNode& section, TokenizerFile& file) {
  if (!section.is(Kind::list)) refuse_tokenizer(section.origin, "added_tokens", "a list is expected");
  for (const JsonNode& node : section.items) {
    require_object(node, "added_tokens");
    only_keys(node, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    const JsonNode* id = node.find("id");
    if (id == nullptr) refuse_tokenizer(node.origin, "id", "it is missing");
    token.id = id_of(*id, "id");
    token.content = text_member(node, "content");
    token.single_word = bool_member(node, "single_word", false);
    token.lstrip = bool_member(node, "lstrip", false);
    token.rstrip = bool_member(node, "rstrip", false);
    token.special = bool_member(node, "special", false);
    token.normalized = bool_member(node, "normalized", !token.special);
    if (token.content.empty() || token.content.size() > kLongestAddedToken)
      refuse_tokenizer(node.origin, "content",
                       fmt::format("one to {} bytes are expected", kLongestAddedToken));
    file.added.push_back(std::move(token));
  }
}

void read_normalizer(const JsonNode& section, TokenizerFile& file) {
  if (section.is(Kind::null)) return;
  std::vector<const JsonNode*> steps;
  flatten(section, "normalizers", steps);
  NormalizerRules& rules = file.normalizer;
  for (const JsonNode* step : steps) {
    const std::string type = text_member(*step, "type");
    if (type == "NFC") {
      rules.composes = true;
    } else if (type == "Replace" && !rules.marks_spaces) {
      require_replace(*step, " ", kSpaceMark);
      rules.marks_spaces = true;
    } else if (type == "Prepend" && !rules.adds_mark_first) {
      only_keys(*step, {"type", "prepend"});
      require_mark(*step, "prepend", text_member(*step, "prepend"));
      rules.adds_mark_first = true;
    } else {
      refuse_tokenizer(
          step->origin, "normalizer",
          fmt::format("\"{}\" is not NFC, nor the first Prepend or Replace of SentencePiece", type));
    }
  }
}

void read_pre_tokenizer(const JsonNode& section, TokenizerFile& file) {
  if (section.is(Kind::null)) return;
  std::vector<const JsonNode*> steps;
  flatten(section, "pretokenizers", steps);
  for (size_t i = 0; i < steps.size(); ++i) {
    const JsonNode& step = *steps[i];
    const std::string type = text_member(step, "type");
    const bool is_last = i + 1 == steps.size();
    if (type == "ByteLevel" && is_last) {
      add_byte_level(step, file);
    } else if (type == "Metaspace" && is_last) {
      add_metaspace(step, file);
    } else if (type == "Split") {
      add_split(step, file);
    } else if (type == "Digits") {
      add_digits(step, file);
    } else {
      refuse_tokenizer(
          step.origin, "pre_tokenizer",
          fmt::format("\"{}\" {}; Split and Digits are understood, and as the last step ByteLevel "
                      "and Metaspace",
                      type, is_last ? "is the last step" : "is a step"));
    }
  }
  if (steps.empty()) refuse_tokenizer(section.origin, "pre_tokenizer", "it has no steps");
}

void read_post_processor(const JsonNode& section, TokenizerFile& file) {
  if (section.is(Kind::null)) return;
  std::vector<const JsonNode*> steps;
  flatten(section, "processors", steps);
  bool has_template = false;
  for (const JsonNode* step : steps) {
    const std::string type = text_member(*step, "type");
    if (type == "ByteLevel") continue;  // it is about offsets
    if (type != "TemplateProcessing" || has_template)
      refuse_tokenizer(step->origin, "post_processor",
                       fmt::format("\"{}\" is not one TemplateProcessing", type));
    has_template = true;
    read_template(*step, file);
  }
}

void read_decoder(const JsonNode& section, TokenizerFile& file) {
  if (section.is(Kind::null)) return;
  std::vector<const JsonNode*> steps;
  flatten(section, "decoders", steps);
  DecoderRules& rules = file.decoder;
  bool fuses = false;
  for (const JsonNode* step : steps) {
    const std::string type = text_member(*step, "type");
    if (type == "ByteLevel") {
      rules.is_byte_level = true;
    } else if (type == "Replace") {
      require_replace(*step, kSpaceMark, " ");
      rules.reads_marks = true;
    } else if (type == "Metaspace") {
      require_mark(*step, "replacement", text_member(*step, "replacement"));
      rules.reads_marks = true;
      if (prepend_scheme(*step) != "never") rules.begin = DecoderRules::Begin::drops_marks_of_first_token;
    } else if (type == "ByteFallback") {
      rules.joins_bytes = true;
    } else if (type == "Fuse") {
      fuses = true;
    } else if (type == "Strip" && fuses) {
      require_strip_of_one_space(*step);
      rules.begin = DecoderRules::Begin::drops_one_space;
    } else {
      refuse_tokenizer(
          step->origin, "decoder",
          fmt::format("\"{}\" is not ByteLevel, nor of SentencePiece: Replace, ByteFallback, Fuse, "
                      "then Strip, or Metaspace",
                      type));
    }
  }
}

}  // namespace terrace::data
