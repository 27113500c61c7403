#include <terrace/capi/structs.h>

#include <fmt/format.h>

#include <string>

namespace terrace::c {

void require_struct(const void* given, uint32_t known, const Subject& action, const Subject& name) {
  require_pointer(given, action, name);
  uint32_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  if (!is_size(size))
    refuse(ErrorKind::config, action, name, fmt::format("its size is {}", size),
           "initialise it with TERRACE_INIT");
  const auto* bytes = static_cast<const unsigned char*>(given);
  for (uint32_t at = known; at < size; ++at) {
    if (bytes[at] != 0)
      refuse(ErrorKind::config, action, name,
             fmt::format("byte {} of it is set, and this library knows {}", at, known),
             "leave what is newer than the library at 0, or use a newer library");
  }
}

}  // namespace terrace::c
