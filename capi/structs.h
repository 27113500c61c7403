// Structs that say their own size. A program may know fewer members than the library, or more: what it does
// not know is 0, and what the library does not know has to be.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include <terrace/capi/errors.h>

namespace terrace::c {

// Members are at most eight bytes long, and those of a struct begin at multiples of their size, so that every
// later end of it is a multiple of eight.
constexpr bool is_size(uint32_t size) {
  return size >= 8 && size % 8 == 0;
}

// Throws Error(misuse) for a null struct, and Error(config) for one whose size was not set, or that sets what
// lies beyond the `known` bytes.
void require_struct(const void* given, uint32_t known, const Subject& action, const Subject& name);

// What the program gave.
template <typename Struct>
Struct taken(const Struct* given, const Subject& action, const Subject& name) {
  static_assert(sizeof(Struct) % 8 == 0);
  require_struct(given, sizeof(Struct), action, name);
  Struct known{};
  std::memcpy(&known, given, std::min<size_t>(given->size, sizeof(Struct)));
  known.size = sizeof(Struct);
  return known;
}

// A list of structs, each as long as the first says. Throws as taken() does.
template <typename Struct>
std::vector<Struct> taken_list(const Struct* list, uint32_t count, const Subject& action,
                               const Subject& name) {
  require_list(list, count, action, name);
  std::vector<Struct> known;
  for (uint32_t i = 0; i < count; ++i) {
    const auto* at = reinterpret_cast<const char*>(list) + uint64_t{i} * list->size;
    known.push_back(taken(reinterpret_cast<const Struct*>(at), action, name));
    uint32_t size = 0;
    std::memcpy(&size, at, sizeof(size));
    if (size != list->size)
      refuse(ErrorKind::config, action, name, "the elements of the list say different sizes",
             "initialise each with TERRACE_INIT");
  }
  return known;
}

// Gives a result to the program: the members that both know, and 0 for those that only the program knows.
template <typename Struct>
void give(Struct* to, Struct known) {
  static_assert(sizeof(Struct) % 8 == 0);
  known.size = to->size;
  std::memset(static_cast<void*>(to), 0, known.size);
  std::memcpy(static_cast<void*>(to), &known, std::min<size_t>(known.size, sizeof(Struct)));
}
// Throws, before anything is done, where give() could not.
template <typename Struct>
void require_result(const Struct* to, const Subject& action, const Subject& name) {
  require_pointer(to, action, name);
  if (!is_size(to->size)) require_struct(to, sizeof(Struct), action, name);
}

}  // namespace terrace::c
