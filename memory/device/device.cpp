#include <terrace/memory/device/device.h>

#include <terrace/aio/engine.h>
#include <terrace/base/error.h>
#include <terrace/base/option.h>

namespace terrace {

std::unique_ptr<io::Engine> Device::make_file_reader(const io::EngineOptions&) {
  throw Error(ErrorKind::device,
              {"cannot read files into the memory of", "this device", "it has no reads past the host",
               "set " + Option::reads_past_host + " to false"});
}

}  // namespace terrace
