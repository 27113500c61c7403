// What there is of cuFile, NVIDIA's GPUDirect Storage, on this machine. Its library is loaded at run time and
// asked for its version alone: it needs no GPU for that, opens no driver and writes no log of its own.
// Nothing is transferred by it.
#pragma once

#include <string>

namespace terrace {

struct CuFileFacts {
  std::string version;  // "1.13"; empty where there is none
  std::string reason;   // why there is none
};

// Loads `library`, which stays loaded until the process ends. Never throws for what is missing.
CuFileFacts probe_cu_file(const std::string& library = "libcufile.so.0");

}  // namespace terrace
