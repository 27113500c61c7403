#include <terrace/comm/mpi_plugin.h>

#include <array>
#include <memory>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/base/shared_library.h>
#include <terrace/comm/mpi_port.h>

namespace terrace {
namespace {

Error mpi_error(std::string what_failed, const std::string& plugin, std::string reason) {
  return Error(ErrorKind::config,
               {std::move(what_failed), plugin, std::move(reason),
                "install MPI and the plug-in of this version of Terrace where the loader of shared libraries "
                "finds them, and start all ranks with MPI's own launcher; or run one rank"});
}

}  // namespace

MakeMessagePort load_mpi(const std::string& plugin) {
  const SharedLibrary loaded(plugin);
  if (!loaded.reason().empty())
    throw mpi_error("cannot load the message library MPI", plugin, loaded.reason());
  MakeMpiPort* make = nullptr;
  if (!loaded.find(make, kMakeMpiPort))
    throw mpi_error("cannot use the message library MPI", plugin, std::string("it lacks ") + kMakeMpiPort);
  return [make, plugin] {
    std::array<char, 1024> reason{};
    std::unique_ptr<MessagePort> port(make(kMpiPortVersion, reason.data(), reason.size()));
    if (port == nullptr) throw mpi_error("cannot begin the message library MPI", plugin, reason.data());
    return port;
  };
}

}  // namespace terrace
