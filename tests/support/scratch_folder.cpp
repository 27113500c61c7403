#include "support/scratch_folder.h"

#include <fstream>

namespace terrace {

void ScratchFolder::write(const std::filesystem::path& name, const std::string& text) const {
  const std::filesystem::path file = path_ / name;
  std::filesystem::create_directories(file.parent_path());
  std::ofstream out(file, std::ios::binary);
  if (!(out << text).flush()) throw std::runtime_error("cannot write " + file.string());
}

}  // namespace terrace
