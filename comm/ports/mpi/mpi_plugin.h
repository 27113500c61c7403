// MPI as the message library of a MessageCommunicator. It is loaded when it is asked for, so that no machine
// needs it for one rank.
#pragma once

#include <string>

#include <terrace/comm/messages/message_port.h>

namespace terrace {

inline constexpr const char* kMpiPlugin = "libterrace_mpi.so";

// The plug-in that belongs to this program, or to the library that this is a part of: beside it, in the "lib"
// beside its folder, or in the tree in which it was built; else its name, which the loader of shared
// libraries may know.
std::string own_mpi_plugin();

// Loads the plug-in by its name or path and returns what makes the port. MPI itself begins with the port, on
// the port's thread, and ends with it; a process does that once. Throws Error(config) where the plug-in, or
// MPI, which it is linked to, is not there; making the port throws the same where MPI does not begin.
// Thread-safe.
MakeMessagePort load_mpi(const std::string& plugin);

}  // namespace terrace
