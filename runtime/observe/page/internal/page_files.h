// The files of page/, embedded when the library was built (cmake/TerraceEmbed.cmake).
#pragma once

#include <string_view>

namespace terrace::page_files {

extern const std::string_view report_html;
extern const std::string_view report_css;
extern const std::string_view script;  // all .js, in the order in which CMake names them

}  // namespace terrace::page_files
