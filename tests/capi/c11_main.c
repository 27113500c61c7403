#include <stdio.h>

#include "c11_training.h"

int main(int count, char** words) {
  const int line = c11_train(count > 1 ? words[1] : ".");
  if (line != 0) fprintf(stderr, "line %d failed\n", line);
  return line != 0;
}
