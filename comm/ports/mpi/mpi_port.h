// The one function of the plug-in libterrace_mpi.so, which is a MessagePort over MPI. The plug-in is the only
// part of Terrace that is linked to MPI.
#pragma once

#include <cstddef>
#include <cstdint>

#include <terrace/comm/messages/message_port.h>

namespace terrace {

// Changes with MessagePort and with the function.
inline constexpr uint32_t kMpiPortVersion = 2;

// Makes the port of this process on the thread that calls, which has not to be the main one: MPI begins
// there, unless the program has begun it, and ends with the port. The caller owns the port. Returns null
// where that fails, with the reason in `reason`, of `reason_bytes` with the 0 at its end.
using MakeMpiPort = MessagePort*(uint32_t version, char* reason, size_t reason_bytes);
inline constexpr const char* kMakeMpiPort = "terrace_make_mpi_port";

}  // namespace terrace

extern "C" terrace::MakeMpiPort terrace_make_mpi_port;
