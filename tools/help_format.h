// HelpFormatter: --help as the terminal shows it: lines end at words, at its width, and groups stand one
// empty line apart.
#pragma once

#include <memory>

namespace CLI {
class Formatter;
}  // namespace CLI

namespace terrace {

std::shared_ptr<CLI::Formatter> help_formatter();

}  // namespace terrace
