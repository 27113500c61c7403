// The picture of a step in the JSON of its page.
#pragma once

#include <terrace/base/text/json_writer.h>
#include <terrace/runtime/observe/page/step_picture.h>

namespace terrace {

// Writes the member "picture".
void write_picture(JsonWriter& json, const StepPicture& picture);

}  // namespace terrace
