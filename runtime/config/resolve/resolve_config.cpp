// From a text or a file to a TrainConfig. What the values mean is the Resolver's business.
#include <terrace/runtime/config/train_config.h>

#include <terrace/base/error.h>
#include <terrace/base/text/text_file.h>
#include <terrace/runtime/config/engine_config.h>
#include <terrace/runtime/config/resolve/internal/resolver.h>
#include <terrace/runtime/config/schema/config_entries.h>

namespace terrace {
namespace {

constexpr size_t kLargestFileBytes = 1024 * 1024;

}  // namespace

std::string config_file(const std::filesystem::path& path) {
  return text_of_file(path, kLargestFileBytes, [&](const Reason& reason) {
    throw Error(ErrorKind::config, {"cannot read the configuration", path.string(), reason,
                                    "give the path of a DeepSpeed JSON file"});
  });
}

TrainConfig parse_train_config(std::string_view text, std::string_view name,
                               std::span<const ConfigOverride> overrides) {
  const JsonNode document = parse_json(text, name);
  ConfigProblems problems;
  const ConfigEntries entries(document, overrides, ConfigUser::program, problems);
  problems.throw_if_any();
  TrainConfig config = Resolver(entries, problems).resolve();
  problems.throw_if_any();
  return config;
}

TrainConfig load_train_config(const std::filesystem::path& path, std::span<const ConfigOverride> overrides) {
  return parse_train_config(config_file(path), path.string(), overrides);
}

TrainConfig default_train_config(std::span<const ConfigOverride> overrides) {
  return parse_train_config("{}", "defaults", overrides);
}

}  // namespace terrace
