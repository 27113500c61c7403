// HelpFormatter: --help for the terminal. Lines break between words at its width, and an empty line separates
// groups.
#pragma once

#include <memory>

namespace CLI {
class Formatter;
}  // namespace CLI

namespace terrace {

std::shared_ptr<CLI::Formatter> help_formatter();

}  // namespace terrace
