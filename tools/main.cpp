#include "program.h"

int main(int argc, char** argv) {
  return terrace::run_program(argc, argv);
}
