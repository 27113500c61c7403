// require_possible(): the options that no budget makes possible, each with what to do instead.
#pragma once

#include <terrace/memory/space/space_layout.h>
#include <terrace/offload/options/offload_options.h>

namespace terrace {

// Throws Error(config) where these tensors cannot be trained with these options, whatever the budgets are.
void require_possible(const SpaceLayout& space, const OffloadOptions& options);

}  // namespace terrace
