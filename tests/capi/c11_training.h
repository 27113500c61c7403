/* A training by a program in C11 alone. */
#ifndef TERRACE_TESTS_C11_TRAINING_H
#define TERRACE_TESTS_C11_TRAINING_H

#ifdef __cplusplus
extern "C" {
#endif

/* Trains a few steps with everything in files of `folder`. Returns 0, or the line that failed. */
int c11_train(const char* folder);

#ifdef __cplusplus
}
#endif

#endif
