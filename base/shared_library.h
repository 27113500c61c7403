// SharedLibrary: a third-party library that is loaded at run time, because not every machine has it.
#pragma once

#include <string>

namespace terrace {

// The library stays loaded until the process ends, so functions found in it outlive this object.
class SharedLibrary {
 public:
  // Tries to load the library by its name or path.
  explicit SharedLibrary(const std::string& name);

  // Why the library cannot be loaded; empty when it is loaded.
  const std::string& reason() const { return reason_; }
  // Sets `call`, which must have the function's type, to the function of that name. Returns false and sets
  // null when the library lacks it.
  template <class Function>
  bool find(Function*& call, const char* symbol) const {
    call = reinterpret_cast<Function*>(address_of(symbol));
    return call != nullptr;
  }

 private:
  void* address_of(const char* symbol) const;

  void* handle_;
  std::string reason_;
};

}  // namespace terrace
