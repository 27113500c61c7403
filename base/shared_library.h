// SharedLibrary: a library of others that is loaded at run time, because not every machine has it.
#pragma once

#include <string>

namespace terrace {

// It stays loaded until the process ends, also when this is gone: what was found in it stays valid.
class SharedLibrary {
 public:
  // Tries to load it, by its name or path.
  explicit SharedLibrary(const std::string& name);

  // Why it cannot be loaded; empty when it is.
  const std::string& reason() const { return reason_; }
  // Sets `call` to the function of that name, whose type it has to have. False, and null, when the library
  // lacks it.
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
