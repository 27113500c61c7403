#include <terrace/base/wording.h>

#include <utility>

#include <terrace/base/option.h>

namespace terrace {
namespace {

template <typename... Texts>
std::string_view first_given(Texts... texts) {
  for (const std::string_view text : {texts...}) {
    if (!text.empty()) return text;
  }
  return {};
}

std::string flag_and_key(const Names& names, bool in_parentheses) {
  const std::string flag(names.flag);
  const std::string key(names.key);
  if (flag.empty() || key.empty()) return std::string(first_given(names.flag, names.key, names.cpp, names.c));
  return in_parentheses ? key + ", " + flag : flag + " (" + key + ")";
}

std::string name_at(const Names& names, Door door, bool in_parentheses) {
  switch (door) {
    case Door::cpp:
      return std::string(first_given(names.cpp, names.c));
    case Door::c:
      return std::string(first_given(names.c, names.cpp));
    case Door::python:
      return std::string(first_given(names.python, names.c, names.cpp));
    case Door::configuration:
      return std::string(first_given(names.key, names.python, names.c, names.cpp));
    case Door::program:
      return flag_and_key(names, in_parentheses);
  }
  return {};
}

}  // namespace

Wording::Wording(std::string text) {
  if (!text.empty()) pieces_.emplace_back(std::move(text));
}

Wording::Wording(Option option) {
  pieces_.emplace_back(option);
}

Wording::Wording(const Names& names) {
  pieces_.emplace_back(names);
}

Wording& Wording::operator+=(const Wording& more) {
  pieces_.insert(pieces_.end(), more.pieces_.begin(), more.pieces_.end());
  return *this;
}

bool Wording::names(Option option) const {
  for (const auto& piece : pieces_) {
    if (const Option* named = std::get_if<Option>(&piece); named != nullptr && *named == option) return true;
  }
  return false;
}

std::string Wording::in(Door door) const {
  std::string text;
  for (size_t p = 0; p < pieces_.size(); ++p) {
    if (const std::string* words = std::get_if<std::string>(&pieces_[p])) {
      text += *words;
      continue;
    }
    const Option* const option = std::get_if<Option>(&pieces_[p]);
    const std::string* const next =
        p + 1 < pieces_.size() ? std::get_if<std::string>(&pieces_[p + 1]) : nullptr;
    const bool in_parentheses = text.ends_with('(') && next != nullptr && next->starts_with(')');
    text +=
        name_at(option != nullptr ? names_of(*option) : std::get<Names>(pieces_[p]), door, in_parentheses);
  }
  return text;
}

Wording operator+(Wording before, Option option) {
  return before += option;
}

Wording operator+(Option option, const Wording& behind) {
  return Wording(option) + behind;
}

}  // namespace terrace
