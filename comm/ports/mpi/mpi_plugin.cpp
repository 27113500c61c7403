#include <terrace/comm/ports/mpi/mpi_plugin.h>

#include <dlfcn.h>
#include <link.h>

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

// The file that this code was loaded from: the program, or a library in a program of somebody else.
std::filesystem::path own_file(std::error_code& unknown) {
  Dl_info info{};
  link_map* loaded = nullptr;
  const void* const here = reinterpret_cast<const void*>(&load_mpi);
  if (dladdr1(here, &info, reinterpret_cast<void**>(&loaded), RTLD_DL_LINKMAP) != 0 && loaded != nullptr &&
      *loaded->l_name != '\0')
    return std::filesystem::canonical(loaded->l_name, unknown);
  return std::filesystem::read_symlink("/proc/self/exe", unknown);
}

}  // namespace

std::string own_mpi_plugin() {
  std::error_code unknown;
  const std::filesystem::path own = own_file(unknown);
  for (const char* const folder : {".", "../lib", "../lib64", "../comm"}) {
    const std::filesystem::path plugin = own.parent_path() / folder / kMpiPlugin;
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
