// The terrace program: reads the command line and hands over to one subcommand. It decides nothing else.
#pragma once

namespace terrace {

// Runs what the command line says and returns the exit status: 0, 1 for a failure, 2 for wrong usage, or what
// the subcommand says. Prints every error to stderr. Call it once in a process, as its first thing: it sets a
// signal handler.
int run_program(int argc, const char* const* argv);

}  // namespace terrace
