#include "flags/shown_configuration.h"

#include <string>

#include "command_line.h"
#include "flags/compute_choice.h"
#include "flags/model_choice.h"

namespace terrace {

bool wants_configuration(const TrainFlags& flags) {
  return flags.print_config || !flags.explain.empty();
}

int show_configuration(const TrainFlags& flags, Console& console) {
  const TrainConfig config = resolve_config(flags);
  const auto settled = [&] { return ComputeChoice(config, console).settle(config, console); };
  if (!flags.explain.empty()) {
    print_result(config_explanation(settled(), flags.explain));
    return kDone;
  }
  for (const std::string& warning : config.warnings) console.warning(warning);
  choose_model(flags);
  const TrainConfig in_force = settled();
  print_result(flags.json ? config_json(in_force) : config_table(in_force));
  return kDone;
}

}  // namespace terrace
