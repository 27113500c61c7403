#include <terrace/base/shared_library.h>

#include <dlfcn.h>

#include <terrace/base/assert.h>

namespace terrace {

SharedLibrary::SharedLibrary(const std::string& name) : handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ != nullptr) return;
  const char* const reason = dlerror();
  reason_ = reason != nullptr ? reason : "unknown reason";
  if (reason_.starts_with(name + ": ")) reason_.erase(0, name.size() + 2);  // whoever asks has named it
}

void* SharedLibrary::address_of(const char* symbol) const {
  TERRACE_ASSERT(handle_ != nullptr, "nothing is found in a library that could not be loaded");
  return dlsym(handle_, symbol);
}

}  // namespace terrace
