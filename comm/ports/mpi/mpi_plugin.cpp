#include <terrace/comm/ports/mpi/mpi_plugin.h>

#include <array>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include <terrace/base/error.h>
#include <terrace/base/shared_library.h>
#include <terrace/comm/ports/mpi/mpi_port.h>

namespace terrace {
namespace {

Error mpi_error(std::string what_failed, const std::string& plugin, std::string reason) {
  return Error(ErrorKind::config,
               {std::move(what_failed), plugin, std::move(reason),
                "install MPI and the plug-in of this version of Terrace where the loader of shared libraries "
                "finds them, and start all ranks with MPI's own launcher; or run one rank"});
}

}  // namespace

std::string own_mpi_plugin() {
  std::error_code unknown;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", unknown);
  for (const char* const folder : {".", "../lib", "../lib64", "../comm"}) {
    const std::filesystem::path plugin = program.parent_path() / folder / kMpiPlugin;
    if (!unknown && std::filesystem::exists(plugin, unknown)) return plugin.lexically_normal().string();
  }
  return kMpiPlugin;
}

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
