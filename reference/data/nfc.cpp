#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <new>

#include <terrace/base/assert.h>
#include <terrace/base/text/utf8.h>
#include <terrace/reference/data/internal/nfc.h>

namespace terrace::data {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};

// What combines with its neighbours since a Unicode later than 9 (up to 15): for the library these are
// characters that stand by themselves. bench/compare/tokenizer finds what is missing here.
constexpr Range kLater[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0xECE, 0xECE},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},
    {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E},
    {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943},
    {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F},
    {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
};

// Below U+0300, which is 0xCC 0x80, every text is in NFC.
bool may_combine(char c) {
  return static_cast<uint8_t>(c) >= 0xCC;
}

bool is_later(char32_t code_point) {
  const auto range = std::lower_bound(std::begin(kLater), std::end(kLater), code_point,
                                      [](const Range& each, char32_t wanted) { return each.last < wanted; });
  return range != std::end(kLater) && range->first <= code_point;
}

void append_composed(std::string_view text, std::string& out) {
  if (std::none_of(text.begin(), text.end(), may_combine)) {
    out += text;
    return;
  }
  utf8proc_uint8_t* bytes = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
      &bytes, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (size == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  TERRACE_ASSERT(size >= 0, utf8proc_errmsg(size));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(bytes, &std::free);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

}  // namespace

std::string_view composed(std::string_view text, std::string& out) {
  if (std::none_of(text.begin(), text.end(), may_combine)) return text;
  out.clear();
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    if (!may_combine(text[at])) {
      ++at;
      continue;
    }
    const CodePoint point = first_code_point(text.substr(at));
    TERRACE_ASSERT(point.bytes > 0, "normalisation of broken UTF-8");
    if (is_later(point.value)) {
      append_composed(text.substr(done, at - done), out);
      out += text.substr(at, point.bytes);
      done = at + point.bytes;
    }
    at += point.bytes;
  }
  append_composed(text.substr(done), out);
  return out;
}

}  // namespace terrace::data
