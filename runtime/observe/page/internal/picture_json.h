// The picture of a step as the JSON of its page; "null" where there is none.
#pragma once

#include <optional>
#include <string>

#include <terrace/runtime/observe/page/step_picture.h>

namespace terrace {

std::string picture_json(const std::optional<StepPicture>& picture);

}  // namespace terrace
