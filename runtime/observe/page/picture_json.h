// The picture of a step as JSON, for the log of steps and the page.
#pragma once

#include <string>

#include <terrace/runtime/observe/page/step_picture.h>

namespace terrace {

std::string picture_json(const StepPicture& picture);

}  // namespace terrace
